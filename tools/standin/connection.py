"""The stand-in engine's side of an HTTP connection. The levels of the stand-in say what it answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import httptools

JSON = b"application/json"
PROGRESS = b"x-inflight-progress"
"""Header: in a request it asks for progress frames (docs/engine.md), in a response it says that it has them."""


@dataclass(slots=True)
class Request:
    """A whole request. Attributes: headers: names, in lower case, and values, as they came."""

    method: bytes = b""
    target: bytes = b""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""

    def header(self, wanted: bytes) -> bytes:
        """The value of a header that comes once; empty without it."""
        for name, value in self.headers:
            if name == wanted:
                return value
        return b""


class Connection(asyncio.Protocol):
    """Requests one after the other. Where answers are streams, the client sends the next request after the last answer
    has ended."""

    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.abort()

    def answer(self, request: Request) -> None:
        """Write the answer now, or begin a stream."""
        raise NotImplementedError

    def whole(self, body: bytes, kind: bytes = JSON, status: bytes = b"200 OK", headers: bytes = b"") -> None:
        """Write a whole answer. Args: headers: further ones, each with its line end."""
        self.transport.write(
            b"HTTP/1.1 %s\r\ncontent-type: %s\r\ncontent-length: %d\r\n%s\r\n%s"
            % (status, kind, len(body), headers, body if self._request.method != b"HEAD" else b"")
        )
        self._close_if_asked()

    def begin(self, progress: bool, headers: bytes = b"") -> None:
        """Write the head of a stream of events, or of progress frames."""
        self.transport.write(_head(progress, headers))

    def send(self, part: bytes) -> None:
        """Write a part of a stream."""
        self.transport.write(_chunk(part))

    def end(self) -> None:
        """End a stream."""
        self.transport.write(_END)
        self._close_if_asked()

    def streamed(self, events: bytes, progress: bool) -> None:
        """Write a stream at once."""
        self.transport.write(_head(progress, b"") + _chunk(events) + _END)
        self._close_if_asked()

    def _close_if_asked(self) -> None:
        if not self._parser.should_keep_alive():
            self.transport.close()

    def on_message_begin(self) -> None:
        self._request, self._parts = Request(), list[bytes]()

    def on_url(self, url: bytes) -> None:
        self._request.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._request.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Called before the body."""

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def on_message_complete(self) -> None:
        self._request.method, self._request.body = self._parser.get_method(), b"".join(self._parts)
        self.answer(self._request)


_END = b"0\r\n\r\n"


def _head(progress: bool, headers: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n%s%stransfer-encoding: chunked\r\n\r\n" % (
        PROGRESS + b": 1\r\n" if progress else b"",
        headers,
    )


def _chunk(part: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(part), part) if part else b""  # an empty chunk would end the stream


async def listen(connection: Callable[[], Connection], port: int = 0, host: str = "127.0.0.1") -> asyncio.Server:
    """Answer on `port`, or on a free one."""
    return await asyncio.get_running_loop().create_server(connection, host, port, backlog=4096)
