"""The ports for other gateways: one for all services, and one for each InferencePool."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial

import grpc

from inflight_base.manifest.keys import ServiceKey
from inflight_base.manifest.names import pool_port
from inflight_gateway.discovery.catalog import Catalog, Change
from inflight_gateway.guests.endpoint_picker import Bodies, EndpointPickerProcessor
from inflight_gateway.guests.exchange import Parts
from inflight_gateway.guests.grpc_server import self_signed, serve_endpoint_picker

_log = logging.getLogger(__name__)

AGAIN_S = 5.0
"""Seconds between two attempts to open a port that is in use."""


class EndpointPickerPorts:
    """Opens the ports. A port stays open when its last pool is deleted: ports are few, and the requests of later calls
    name their service.

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
        self._services: dict[int, ServiceKey | None] = {}
        self._in_use: set[int] = set()
        self._changed = asyncio.Event()

    async def open(self) -> None:
        """Listens on the ports of all services that are known.

        Raises:
            OSError: the shared port is in use.
        """
        try:
            await self._listen(self._shared, lambda: None)
        except OSError as error:
            raise OSError(f"{error} (--ext-proc-port)") from error
        self._parts.catalog.subscribe(self._on_change)
        await self._open_pools()

    async def run(self) -> None:
        """Listens on the ports of new pools, until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), AGAIN_S if self._in_use else None)
            self._changed.clear()
            await self._open_pools()

    async def drain(self, least_s: float, most_s: float) -> None:
        """Returns when no call is open, or after `most_s`: calls are open until the response to their request ends.
        New calls are accepted for `least_s`, until other gateways know that this pod ends."""
        await asyncio.sleep(least_s)
        await asyncio.gather(*(server.stop(max(0.0, most_s - least_s)) for server in self._servers.values()))

    async def close(self) -> None:
        await asyncio.gather(*(server.stop(0.0) for server in self._servers.values()))

    def _on_change(self, change: Change) -> None:
        if change.services:
            self._changed.set()

    async def _open_pools(self) -> None:
        self._services = only_services(self._parts.catalog)
        missing = self._services.keys() - self._servers.keys()
        self._in_use &= missing
        for port in missing:
            try:
                await self._listen(port, partial(self._pool_of, port))
            except OSError as error:
                if port not in self._in_use:
                    _log.error("gateways do not reach the picker of an InferencePool: %s", error)
                self._in_use.add(port)
            else:
                self._in_use.discard(port)

    async def _listen(self, port: int, pool: Callable[[], ServiceKey | None]) -> None:
        """Opens a port. Args: pool: returns the service whose pool has it now; None: the request decides."""
        self._servers[port] = await serve_endpoint_picker(
            port, EndpointPickerProcessor(self._parts, self._bodies, pool), self._certificate
        )

    def _pool_of(self, port: int) -> ServiceKey | None:
        return self._services.get(port)


def only_services(catalog: Catalog) -> dict[int, ServiceKey | None]:
    """Returns, by port, the service whose InferencePool has it; None if several share it."""
    found: dict[int, ServiceKey | None] = {}
    for key in (key for key, config in catalog.services.items() if config.inference_pool):
        port = pool_port(key)
        found[port] = None if port in found else key
    return found
