"""Graceful shutdown: new connections go to other gateway pods, running requests end, then the picker may exit. It
goes through Envoy's admin interface, on its UNIX socket."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from types import TracebackType

import aiohttp

from inflight_gateway.proxy.config import CLIENTS

_TIMEOUT = aiohttp.ClientTimeout(total=2)


class Admin:
    """Client of Envoy's admin interface, for `async with`. Methods raise OSError if Envoy does not respond."""

    def __init__(self, socket: Path) -> None:
        self._session = aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(socket)), timeout=_TIMEOUT)

    async def __aenter__(self) -> Admin:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def drain_inbound(self) -> None:
        """Drains the listeners for clients: each response asks the client to reconnect elsewhere; later the listeners
        close."""
        await self._call("POST", "/drain_listeners?graceful&skip_exit&inboundonly")

    async def ready(self) -> bool:
        """Returns whether Envoy listens and is not drained. It never raises."""
        try:
            await self._call("GET", "/ready")
        except OSError:
            return False
        return True

    async def active_requests(self) -> int:
        """Returns the number of unfinished requests of clients."""
        page = await self._call("GET", f"/stats?filter=^http\\.{CLIENTS}\\.downstream_rq_active$")
        return int(page.rpartition(":")[2])

    async def _call(self, method: str, path: str) -> str:
        try:
            async with self._session.request(method, f"http://envoy{path}") as answer:
                text = await answer.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise OSError(f"Envoy's admin interface: {error or type(error).__name__}") from error
        if answer.status != 200:
            raise OSError(f"Envoy's admin interface: {answer.status} for {method} {path}: {text[:200]}")
        return text


_log = logging.getLogger(__name__)

_POLL_S = 0.2


async def drain(admin_socket: Path, least_s: float, most_s: float) -> None:
    """Returns when no client request is in flight, the time is over, or Envoy has exited.

    Args:
        least_s: seconds until no node's endpoints of the Service name this pod; new requests are served until then.
        most_s: most seconds that the drain takes.
    """
    begin, active = time.monotonic(), 0
    async with Admin(admin_socket) as admin:
        try:
            await admin.drain_inbound()
            while time.monotonic() - begin < most_s:
                await asyncio.sleep(_POLL_S)
                active = await admin.active_requests()
                if not active and time.monotonic() - begin >= least_s:
                    break
        except (OSError, ValueError) as error:
            _log.warning("drain: %s", error)
            return
    took = time.monotonic() - begin
    if active:
        _log.warning("drained for %.1f s, the most that --drain-max allows: %d requests are cut off", took, active)
    else:
        _log.info("drained in %.1f s: no request is under way", took)
