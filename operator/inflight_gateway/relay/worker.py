"""A relay process: accepts connections of Envoy until it drains."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import uuid
from functools import partial
from pathlib import Path

from inflight_base.http.engine_pool import EnginePool
from inflight_gateway.discovery.catalog import Catalog
from inflight_gateway.link.wire import Keys
from inflight_gateway.relay.answers.kept import Kept
from inflight_gateway.relay.answers.usage import MAX_COUNTED_BYTES
from inflight_gateway.relay.budget import RetryBudget
from inflight_gateway.relay.channels import Channels
from inflight_gateway.relay.exchanges import exchange
from inflight_gateway.relay.http.connection import Connection
from inflight_gateway.relay.intake.admission import Admission
from inflight_gateway.relay.intake.bodies import Bodies
from inflight_gateway.relay.pickers.alone import Alone
from inflight_gateway.relay.pickers.pickers import Pickers
from inflight_gateway.relay.shared import Shared, Tuning
from inflight_gateway.tenants.signature import EngineHeaders

_log = logging.getLogger(__name__)

BACKLOG = 4096
"""Connections that may wait to be accepted: a UNIX socket refuses more."""


KNOWN_WITHIN_S = 10.0
"""Seconds for which a new process accepts no connection while the picker has not told it the services."""


class Worker:
    """Serves a socket. Create it in the event loop. Args: picker: socket of the picker."""

    def __init__(self, picker: Path, tuning: Tuning) -> None:
        loop = asyncio.get_running_loop()
        catalog, pool = Catalog(), EnginePool()
        admission, alone = Admission(catalog), Alone(catalog, pool.in_flight)

        def use_keys(keys: Keys) -> None:
            admission.engine_headers = EngineHeaders(keys.current, keys.previous)

        self._pickers = Pickers(picker, uuid.uuid4().hex, catalog, alone, use_keys)
        self._shared = Shared(
            tuning,
            catalog,
            pool,
            Bodies(tuning.max_bodies_bytes),
            Kept(),
            Kept(MAX_COUNTED_BYTES),
            RetryBudget(tuning.budget, loop.time()),
            admission,
            alone,
            self._pickers.asks,
            Channels(),
        )
        self._connections: set[Connection] = set()
        self._none_open = asyncio.Event()
        self._known = asyncio.Event()
        catalog.subscribe(lambda change: self._known.set() if change.complete else None)
        self._server: asyncio.AbstractServer | None = None
        self._linking: asyncio.Task[None] | None = None

    async def start(self, listener: socket.socket) -> None:
        """Accepts the connections of a listening socket, once the services are known: connections wait for that, as
        those of a worker that died do."""
        self._linking = asyncio.create_task(self._pickers.run())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._known.wait(), KNOWN_WITHIN_S)
        self._server = await asyncio.get_running_loop().create_unix_server(
            lambda: Connection(partial(exchange, self._shared), self._connections.add, self._closed),
            sock=listener,
            backlog=BACKLOG,
        )
        _log.info("relay listens on %s", listener.getsockname())

    async def stop(self, seconds: float) -> None:
        """Stop accepting, finish requests in flight within `seconds`, abort the rest."""
        if self._server is not None:
            self._server.close()
        for connection in [*self._connections]:
            connection.drain()
        self._none_open.clear()
        with contextlib.suppress(TimeoutError):
            if self._connections:
                await asyncio.wait_for(self._none_open.wait(), seconds)
        if number := sum(connection.num_requests for connection in self._connections):
            _log.warning("%d requests did not end within %g s and are broken off", number, seconds)
        for connection in [*self._connections]:
            connection.close()
        self._shared.channels.close()
        self._shared.pool.close()
        # Their ends are reported in the next turn of the loop.
        await asyncio.sleep(0)
        if self._linking is not None:
            self._linking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._linking

    def _closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._none_open.set()
