"""Stand-in engines whose requests a coroutine answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager

from tools.standin.connection import Connection, Request, listen

Respond = Callable[[Request, Connection], Coroutine[None, None, None]]


class TaskConnection(Connection):
    """Requests are answered by a coroutine, which ends with the connection."""

    def __init__(self, respond: Respond) -> None:
        self._respond = respond
        self._answering: asyncio.Task[None] | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answering is not None:
            self._answering.cancel()

    def answer(self, request: Request) -> None:
        self._answering = asyncio.create_task(self._respond(request, self))


@asynccontextmanager
async def served(respond: Respond) -> AsyncIterator[str]:
    """The URL of an engine whose requests `respond` answers."""
    server = await listen(lambda: TaskConnection(respond))
    host, port = server.sockets[0].getsockname()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.close()
