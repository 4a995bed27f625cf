"""Envoy's admin interface, on its UNIX socket."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

import aiohttp

_TIMEOUT = aiohttp.ClientTimeout(total=2)


class Admin:
    """Use it in `async with`. All methods raise OSError if Envoy does not respond."""

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

    async def active_requests(self, listener: str) -> int:
        """Unfinished requests of a listener's clients."""
        page = await self._call("GET", f"/stats?filter=^http\\.{listener}\\.downstream_rq_active$")
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
