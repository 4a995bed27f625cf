"""The responder as a child process, and the commands that it takes."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tools.localcluster.process import tail


class EngineProcess:
    """Fake engines, answering from a process of their own so that they take no time from what measures."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._requests = asyncio.Lock()

    @property
    def pid(self) -> int:
        return self._process.pid

    def pods(self, pods: Sequence[tuple[str, str, str | None]]) -> None:
        """Names pods by address, uid and admin token; a new uid at an address is a new engine."""
        self._write({"pods": pods})

    async def waiting(self, requests: int, addresses: Collection[str]) -> None:
        """Sets the number of requests that wait in each of these engines."""
        await self._send({"waiting": [requests, list(addresses)]})

    async def hung(self, value: bool, addresses: Collection[str]) -> None:
        """Makes these engines accept connections and never answer, or answer again."""
        await self._send({"hung": [value, list(addresses)]})

    async def pages(self) -> int:
        """Returns the number of metrics pages that were answered."""
        async with self._requests:
            await self._send({"pages": 0})
            assert self._process.stdout is not None
            return int(await self._process.stdout.readline())

    async def _send(self, command: dict[str, Any]) -> None:
        await self._write(command).drain()

    def _write(self, command: dict[str, Any]) -> asyncio.StreamWriter:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        return self._process.stdin


@asynccontextmanager
async def engine_process(log: Path) -> AsyncIterator[EngineProcess]:
    """Starts the responder and ends it with the block.

    Raises:
        RuntimeError: it did not start; the message has the end of its log.
    """
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tools.standin.page",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
    assert process.stdout is not None
    try:
        if await process.stdout.readline() != b"ready\n":
            raise RuntimeError(f"the responder did not start; its log ends with:\n{tail(log)}")
        yield EngineProcess(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
