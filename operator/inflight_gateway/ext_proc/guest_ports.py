"""The ports for other gateways: one for all services, and one for each InferencePool."""

from __future__ import annotations

import asyncio
import logging

import grpc

from inflight_gateway.catalog import Catalog, Change
from inflight_gateway.ext_proc.certificate import self_signed
from inflight_gateway.ext_proc.exchange import Parts
from inflight_gateway.ext_proc.grpc_server import serve_guests
from inflight_gateway.ext_proc.guests import Bodies, GuestProcessor
from inflight_gateway.ext_proc.pool import pool_port
from inflight_gateway.types import ServiceKey

_log = logging.getLogger(__name__)


class GuestPorts:
    """A port stays open when its last pool is gone: there are few, and its calls are then resolved by their requests.

    Args:
        shared: port that serves all services.
        tls: whether the ports take TLS.
    """

    def __init__(self, parts: Parts, shared: int, *, tls: bool) -> None:
        self._parts = parts
        self._shared = shared
        self._certificate = self_signed("inflight-gateway") if tls else None
        self._bodies = Bodies()
        self._servers: dict[int, grpc.aio.Server] = {}
        self._changed = asyncio.Event()

    async def open(self) -> None:
        """Listens on the ports of all services that are known.

        Raises:
            OSError: the shared port is in use.
        """
        await self._listen(self._shared, None)
        self._parts.catalog.subscribe(self._on_change)
        await self._open_pools()

    async def run(self) -> None:
        """Listens on the ports of new pools, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._open_pools()

    async def drain(self, least_s: float, most_s: float) -> None:
        """Returns when no call is open or the time is over: calls are open until the response to their request ends.
        New calls are taken for `least_s`, until other gateways know that this pod ends."""
        await asyncio.sleep(least_s)
        await asyncio.gather(*(server.stop(max(0.0, most_s - least_s)) for server in self._servers.values()))

    async def close(self) -> None:
        await asyncio.gather(*(server.stop(0.0) for server in self._servers.values()))

    def _on_change(self, change: Change) -> None:
        if change.services:
            self._changed.set()

    async def _open_pools(self) -> None:
        for port in {pool_port(key) for key in _pools(self._parts.catalog)} - self._servers.keys():
            try:
                await self._listen(port, port)
            except OSError as error:
                _log.error("gateways do not reach the picker of an InferencePool: %s", error)

    async def _listen(self, port: int, pool: int | None) -> None:
        processor = GuestProcessor(self._parts, self._bodies, lambda: self._only_service(pool))
        self._servers[port] = await serve_guests(port, processor, self._certificate)

    def _only_service(self, port: int | None) -> ServiceKey | None:
        """The one service whose InferencePool has this port."""
        if port is None:
            return None
        keys = [key for key in _pools(self._parts.catalog) if pool_port(key) == port]
        return keys[0] if len(keys) == 1 else None


def _pools(catalog: Catalog) -> list[ServiceKey]:
    return [key for key, config in catalog.services.items() if config.inference_pool]
