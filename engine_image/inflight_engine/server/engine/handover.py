"""Reads of this engine's KV cache by other engines of the service, and its own of theirs."""

from __future__ import annotations

import asyncio
import os
import time
from hashlib import blake2b
from typing import Any

from inflight_contract import admin_token
from inflight_contract.errors import ApiError
from inflight_contract.kv_blocks import KVSource, read_source, source_of
from inflight_engine.messages import BlocksRead, ReadBlocks
from inflight_engine.server.engine.session import EngineSession

SETTLED_SECONDS = 0.5
"""Time without reads after which nobody is expected to read any more."""
_LONGEST_SECONDS = 5.0


class Handover:
    """Names this engine to relays, reads the names of others, and serves reads.

    Attributes:
        port: that others read at; 0: not known yet.
    """

    def __init__(self, session: EngineSession) -> None:
        self.port = 0
        self._session = session
        self._reading = asyncio.Lock()  # the engine has one file for what is read
        self._named = False
        self._read_at = 0.0

    @property
    def pod(self) -> str:
        """The uid of this pod; empty: it is in none."""
        return os.environ.get(admin_token.POD_VARIABLE, "")

    @property
    def readable(self) -> bool:
        """Others can read blocks: it keeps some in host memory, and has an admin token and a pod."""
        return self._shared() is not None and bool(self.pod and self.port)

    def source(self, host: str) -> str | None:
        """Return the name of this engine, for relays that reach it at this address; None: it is not `readable`."""
        shared = self._shared()
        if shared is None or not (self.pod and host and self.port):
            return None
        self._named = True
        address = f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"
        return source_of(KVSource(address, self.pod), *shared, time.time())

    def transfer_params(self, host: str) -> dict[str, Any] | None:
        """Return vLLM's `kv_transfer_params`, as its NixlConnector returns them, by which another engine finds the keys
        and values of a prompt here. It asks for blocks by hash, so their numbers are of no use to it.

        Args:
            host: address at which it reaches this engine.
        """
        name = self.source(host)
        if name is None:
            return None
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": name,
            "remote_block_ids": [],
            "remote_host": host,
            "remote_port": self.port,
            "tp_size": 1,
        }

    def read_source(self, text: str | None) -> KVSource | None:
        """Return the engine that a name stands for, as `kv_blocks.read_source`."""
        if text is None:  # as nearly always: the token may be in a file
            return None
        shared = self._shared()
        if shared is None:
            return None
        identity, token = shared
        return read_source(text, identity, self.pod, token, time.time())

    async def read(self, hashes: bytes) -> tuple[bytes, bytes]:
        """Read blocks; returns their checksums, and their bytes.

        Raises:
            ApiError: the engine does not answer, or has no blocks that others can read.
        """
        if self._identity() is None:
            raise ApiError(404, "this engine keeps no blocks in host memory: see --swap-space", code="no_host_memory")
        self._read_at = time.monotonic()
        async with self._reading:
            answer = await self._session.calls.ask(lambda call_id: ReadBlocks(call_id, hashes))
            assert isinstance(answer, BlocksRead)
            data = await asyncio.to_thread(_read, answer.path, answer.num_bytes)
        self._read_at = time.monotonic()
        return answer.checksums, data

    async def settled(self) -> None:
        """Wait until nobody is expected to read any more, where relays know this engine as a source."""
        if not self._named:
            return
        left = time.monotonic()
        while time.monotonic() - left < _LONGEST_SECONDS:
            wait = max(self._read_at, left) + SETTLED_SECONDS - time.monotonic()
            if wait <= 0:
                return
            await asyncio.sleep(wait)

    def _shared(self) -> tuple[str, bytes] | None:
        """Return what engines that read from each other share: `_identity`, and the admin token; None: it lacks one."""
        identity, token = self._identity(), _token()
        return None if identity is None or token is None else (identity, token)

    def _identity(self) -> str | None:
        """Return what blocks depend on beside tokens; None: there is no host memory that they can come through."""
        ready = self._session.ready
        if ready is None or not ready.runner.kv_identity or not ready.runner.num_host_blocks:
            return None
        return blake2b((ready.runner.kv_identity + ready.runner.digest).encode(), digest_size=16).hexdigest()


def _read(path: str, num_bytes: int) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read(num_bytes)


def _token() -> bytes | None:
    try:
        return admin_token.configured()
    except ApiError:
        return None
