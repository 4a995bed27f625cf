"""A relay process: accepts connections of Envoy's outer listener until it drains."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path

from inflight_gateway.relay.bodies import Bodies
from inflight_gateway.relay.budget import RetryBudget
from inflight_gateway.relay.client import ClientConnection, Exchange, Request
from inflight_gateway.relay.engine_pool import EnginePool
from inflight_gateway.relay.generation import Generation
from inflight_gateway.relay.kept import Kept
from inflight_gateway.relay.proxying import PassThrough
from inflight_gateway.relay.reports import Reports
from inflight_gateway.relay.shared import Shared, Tuning
from inflight_gateway.request.paths import GENERATING

_log = logging.getLogger(__name__)

_GENERATING = frozenset(path.encode() for path in GENERATING)

BACKLOG = 4096
"""Connections that may wait to be accepted: a UNIX socket refuses more."""


class Worker:
    """Serves a socket. Create it in the event loop. Args: inner, reports: sockets of inner listener and picker."""

    def __init__(self, inner: Path, reports: Path, tuning: Tuning) -> None:
        self._reports = Reports(str(reports))
        self._shared = Shared(
            EnginePool(),
            Kept(),
            tuning,
            Bodies(tuning.max_bodies_bytes),
            RetryBudget(tuning.budget, asyncio.get_running_loop().time()),
            self._reports.add,
            self._reports.retried,
        )
        self._connections: set[ClientConnection] = set()
        self._none_open = asyncio.Event()
        self._listen: Path
        self._server: asyncio.AbstractServer
        self._sending: asyncio.Task[None]

    async def start(self, listen: Path) -> None:
        """Listen at this socket; a stale socket is replaced."""
        self._listen = listen
        _remove(listen)
        self._server = await asyncio.get_running_loop().create_unix_server(
            lambda: ClientConnection(self._begin, self._connections.add, self._closed), str(listen), backlog=BACKLOG
        )
        _open_to_all(listen)
        self._sending = asyncio.create_task(self._reports.run())
        _log.info("relay listens on %s", listen)

    async def stop(self, seconds: float) -> None:
        """Stop accepting, finish requests in flight within `seconds`, abort the rest."""
        self._server.close()
        _remove(self._listen)
        for connection in [*self._connections]:
            connection.drain()
        self._none_open.clear()
        with contextlib.suppress(TimeoutError):
            if self._connections:
                await asyncio.wait_for(self._none_open.wait(), seconds)
        if self._connections:
            _log.warning("%d requests did not end within %g s and are broken off", len(self._connections), seconds)
        for connection in [*self._connections]:
            connection.close()
        self._shared.pool.close()
        self._sending.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._sending

    def _begin(self, request: Request, client: ClientConnection) -> Exchange:
        if request.method == b"POST" and request.path in _GENERATING:
            return Generation(self._shared, request, client)
        return PassThrough(self._shared.pool, request, client)

    def _closed(self, connection: ClientConnection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._none_open.set()


def _remove(socket: Path) -> None:
    socket.unlink(missing_ok=True)


def _open_to_all(socket: Path) -> None:
    """Lets all users connect: Envoy runs as another user. Only containers of this pod can access the directory."""
    socket.chmod(0o666)
