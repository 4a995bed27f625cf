"""The client of every load: one request, one answer, and an error for anything else.

It reads tens of thousands of events a second: aiohttp parses HTTP in C, where httpx takes several times as long.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

import aiohttp

from inflight_kubectl.load.answers import Answer, AnswerError, EventReader, refusal

if TYPE_CHECKING:
    from aiohttp.connector import Connection

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"

CONNECT_SECONDS = 10.0

KEPT_SECONDS = 60.0
"""Seconds for which a connection without a request stays open: making one through a port-forward takes several round
trips."""


class DisconnectedError(AnswerError):
    """No connection, or it was lost before the end of the answer."""


class _Connector(aiohttp.TCPConnector):
    """Attributes:
    port: TCP port of this side of the last used connection; None before.
    """

    port: int | None = None

    async def connect(self, *arguments: Any, **named: Any) -> Connection:
        connection = await super().connect(*arguments, **named)
        if connection.transport is not None:
            self.port = connection.transport.get_extra_info("sockname")[1]
        return connection


class Client:
    """HTTP to one server. Use it in an `async with`.

    Args:
        url: base of the server's API.
        headers: headers of each request.
        keep: True if connections are reused, else each request has its own.
        read_seconds: longest wait for the next byte of an answer.
        connect_seconds: longest wait for a connection.

    Attributes:
        http: the connections, as many as there are requests at once; for other requests than completions.
    """

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str] | None = None,
        *,
        keep: bool = True,
        read_seconds: float = 600.0,
        connect_seconds: float = CONNECT_SECONDS,
    ) -> None:
        kept: dict[str, Any] = {"keepalive_timeout": KEPT_SECONDS} if keep else {"force_close": True}
        self._connector = _Connector(limit=0, use_dns_cache=False, **kept)
        timeout = aiohttp.ClientTimeout(sock_connect=connect_seconds, sock_read=read_seconds)
        self.http = aiohttp.ClientSession(url, connector=self._connector, timeout=timeout, headers=headers)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.close()

    @property
    def port(self) -> int | None:
        """TCP port of this side in the last request, of a client with one request at a time; None: not connected."""
        return self._connector.port

    async def ask(
        self,
        body: Mapping[str, Any],
        answer: Answer,
        *,
        path: str = COMPLETIONS,
        headers: Mapping[str, str] | None = None,
        show: Callable[[str], None] = lambda piece: None,
    ) -> None:
        """Sends a request and reads its answer to the end, streamed if `body` says so.

        Args:
            answer: filled while it is read.
            show: called with the text of each event.

        Raises:
            RefusalError: any other status than 200.
            DisconnectedError: no connection, or it was lost.
            AnswerError: the answer has an error, or is not whole.
        """
        self._connector.port = None
        try:
            async with self.http.post(path, json=body, headers=headers) as response:
                if response.status != 200:
                    retry_after = response.headers.get("Retry-After", "")
                    raise refusal(response.status, await response.read(), retry_after)
                if body.get("stream"):
                    reader = EventReader()
                    async for chunk in response.content.iter_any():
                        now = time.monotonic()
                        for data in reader.feed(chunk):
                            show(answer.take(data, now))
                else:
                    answer.take_whole(await response.read(), time.monotonic())
        except (aiohttp.ClientError, OSError) as error:
            raise DisconnectedError(f"connection: {type(error).__name__}") from error
        answer.ended = time.monotonic()
        answer.check_whole()
