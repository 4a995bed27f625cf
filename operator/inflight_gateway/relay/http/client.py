"""Connections from Envoy: sequential requests on each connection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast

import httptools

from inflight_base.http.heads import (
    LAST_CHUNK,
    Headers,
    chunk,
    find,
    response_head,
)
from inflight_gateway.relay.http.errors import ClientError
from inflight_gateway.request.headers import JWT_TENANT, passed_on

_log = logging.getLogger(__name__)

_JWT_TENANT = JWT_TENANT.encode()

WRITE_BUFFER_BYTES = 64 * 2**10
"""Bytes buffered for a client that does not read, before reading of its response is paused."""

LINGER_S = 2.0
"""Seconds for which the rest of a request is read after an early response. Envoy closes the connection well before."""

_UNREADABLE = ClientError(400, "the head of the request cannot be read as HTTP/1.1", "malformed_request")


@dataclass(slots=True)
class Request:
    """The head of a request.

    Attributes:
        target: path and query.
        headers: end-to-end only, without internal ones.
        length: bytes of the body; None: chunked.
        arrived: seconds of the loop's clock.
        token_tenant: tenant of a token that Envoy verified; None without one.
    """

    method: bytes
    target: bytes
    headers: Headers
    length: int | None
    arrived: float = 0.0
    token_tenant: bytes | None = None

    @property
    def path(self) -> bytes:
        return self.target.partition(b"?")[0]


class Exchange(Protocol):
    """Receiver of one request's events from the connection. Nothing is called after `left`, or after the response is
    complete."""

    def begin(self) -> None: ...

    def body(self, data: bytes) -> None: ...

    def body_ended(self) -> None: ...

    def left(self) -> None:
        """The client disconnected."""

    def client_writable(self, *, now: bool) -> None:
        """Pause or resume writing of the response."""


class ClientConnection(asyncio.Protocol):
    """A connection. Envoy sends a request only after the whole previous response, so data before that is a protocol
    violation: the connection is closed.

    Args:
        begin: makes the exchange of a request.
        opened, closed: called with this connection.
    """

    def __init__(
        self,
        begin: Callable[[Request, ClientConnection], Exchange],
        opened: Callable[[ClientConnection], None],
        closed: Callable[[ClientConnection], None],
    ) -> None:
        self._begin = begin
        self._opened = opened
        self._closed = closed
        self._transport: asyncio.Transport
        self._parser = httptools.HttpRequestParser(self)
        self._loop = asyncio.get_running_loop()
        self._target = self._head = b""
        self._headers: Headers = []
        self._exchange: Exchange | None = None
        self._receiving = self._chunked = self._bodiless = self._last = False

    @property
    def busy(self) -> bool:
        return self._exchange is not None or self._receiving

    @property
    def unsent_bytes(self) -> int:
        """Bytes written that the client has not read yet."""
        return self._transport.get_write_buffer_size()

    def drain(self) -> None:
        """Close after the current request."""
        self._last = True
        if not self.busy:
            self._transport.close()

    def close(self) -> None:
        """Abort the current request."""
        self._transport.abort()

    # Called by the exchange.

    def start(self, status: int, headers: Headers, length: int | None) -> None:
        """Write the head of the response. `headers` name no length; `length`: bytes of the body; None: unknown."""
        self._bodiless = status in (204, 304) or self._parser.get_method() == b"HEAD"
        self._chunked = length is None and not self._bodiless
        if self._chunked:
            headers = [*headers, (b"transfer-encoding", b"chunked")]
        elif length is not None:
            headers = [*headers, (b"content-length", b"%d" % length)]
        if self._last:
            headers = [*headers, (b"connection", b"close")]
        # Usually the body follows in this turn of the loop: each write is a system call.
        self._head = response_head(status, headers)
        self._loop.call_soon(self._send_head)

    def _send_head(self) -> None:
        if self._head and not self._transport.is_closing():
            self._transport.write(self._head)
        self._head = b""

    def write(self, data: bytes) -> None:
        """Write a part of the body."""
        if data and not self._bodiless:
            if self._chunked:
                data = chunk(data)
            if self._head:
                data, self._head = self._head + data, b""
            self._transport.write(data)

    def finish(self) -> None:
        """End the response, which is complete."""
        if self._chunked:
            self._transport.write(self._head + LAST_CHUNK)
            self._head = b""
        self._send_head()
        self._exchange = None
        self._chunked = False
        if self._receiving:
            # The rest of the request's body is discarded: closing a connection with unread data resets it, and the
            # response could be lost.
            self._last = True
            self.resume()
            self._loop.call_later(LINGER_S, self._transport.close)
        elif self._last:
            self._transport.close()

    def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Write a whole response, possibly before the request is read completely."""
        if self._receiving:
            self._last = True
        self.start(status, headers, len(body))
        self.write(body)
        self.finish()

    def refuse(self, error: ClientError) -> None:
        self.respond(error.status, error.headers, error.body(self._target))

    def abort(self) -> None:
        """Abort the response, so that the client detects that it is incomplete."""
        self._exchange = None
        self._transport.abort()

    def pause(self) -> None:
        """Read no more of the request's body for now."""
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's are no subclasses
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self._transport = transport
        self._opened(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if isinstance(error, httptools.HttpParserCallbackError):
                _log.exception("a request is given up")
            elif not self.busy and not self._transport.is_closing():
                # Envoy checks heads before, but permits more in HTTP/2, such as arbitrary methods.
                body = _UNREADABLE.body(b"")
                length = (b"content-length", b"%d" % len(body))
                self._transport.write(response_head(400, [*_UNREADABLE.headers, length]) + body)
                self._transport.close()
                return
            self._leave()
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed(self)
        self._leave()

    def _leave(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.left()

    def pause_writing(self) -> None:
        if self._exchange is not None:
            self._exchange.client_writable(now=False)

    def resume_writing(self) -> None:
        if self._exchange is not None:
            self._exchange.client_writable(now=True)

    # Called by the parser.

    def on_message_begin(self) -> None:
        if self.busy or self._last:
            self._leave()
            self._transport.abort()
        self._target = b""
        self._headers = []

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._transport.is_closing():
            return
        length: int | None = 0
        for name, value in self._headers:
            if name == b"content-length":
                length = int(value)
            elif name == b"transfer-encoding":
                length = None
            elif name == b"expect":
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if not self._parser.should_keep_alive():
            self._last = True
        # Envoy removes internal headers of clients, and sets the tenant of a verified token.
        token_tenant = find(self._headers, _JWT_TENANT)
        headers = passed_on(self._headers)
        method, now = self._parser.get_method(), self._loop.time()
        request = Request(method, self._target, headers, length, now, token_tenant)
        self._receiving = True
        self._exchange = exchange = self._begin(request, self)
        exchange.begin()

    def on_body(self, data: bytes) -> None:
        if self._exchange is not None:
            self._exchange.body(data)

    def on_message_complete(self) -> None:
        self._receiving = False
        if self._exchange is not None:
            self._exchange.body_ended()
        elif self._last:
            self._transport.close()
