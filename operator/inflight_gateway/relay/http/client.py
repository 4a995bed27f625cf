"""A client's request, as a stream of a connection from Envoy."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Protocol

from inflight_base.http.heads import Headers
from inflight_gateway.relay.http import frames
from inflight_gateway.relay.http.errors import ClientError

_log = logging.getLogger(__name__)

WRITE_BUFFER_BYTES = 64 * 2**10
"""Bytes buffered for a client that does not read, before reading of its response is paused."""

WINDOW_BYTES = 256 * 2**10
"""Bytes of a request's body that may come before the relay has taken them."""

_FAILED = ClientError(500, "the gateway failed to answer this request", "gateway_failed")
_OTHER_LENGTH = ClientError(400, "the body is not as long as its content-length says", "malformed_request")


@dataclass(slots=True)
class Request:
    """The head of a request.

    Attributes:
        target: path and query.
        headers: end-to-end only, without internal ones.
        length: bytes of the body; None: not known before its end.
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


class Sender(Protocol):
    """A connection, as its streams use it."""

    @property
    def room(self) -> int:
        """Most bytes of a part that may be sent now."""

    def head(self, number: int, status: int, headers: Headers, *, ends: bool) -> None:
        """Writes the head of a response. Args: ends: it has no body."""

    def data(self, number: int, data: bytes, *, ends: bool) -> None:
        """Writes a part of a body, for which there is `room`. Args: ends: it is the last one."""

    def reset(self, number: int, code: int) -> None:
        """Aborts a stream."""

    def forget(self, number: int) -> None:
        """Drops a stream, which is over."""

    def acknowledge(self, number: int, size: int) -> None:
        """Lets more of a body come."""

    def wait(self, client: Client) -> None:
        """Notes a client that sends once there is room."""


class Client:
    """A stream: a request and its response. Whatever its exchange does, the other streams of the connection go on:
    frames leave in an order that HTTP/2 permits, and what has no head yet is answered with an error.

    Attributes:
        exchange: receiver of events; None: the response is complete, or aborted.
        window: bytes of the response that may be sent.
        target: of the request.
    """

    __slots__ = (
        *("_blocked", "_connection", "_ended", "_is_head", "_left", "_number", "_open", "_paused", "_receiving"),
        *("_started", "_taken", "_to_send", "_unsent", "exchange", "target", "window"),
    )

    def __init__(self, connection: Sender, number: int, window: int, *, receiving: bool) -> None:
        self._connection = connection
        self._number = number
        self.window = window
        self.exchange: Exchange | None = None
        self.target = b""
        self._left: int | None = None
        """Bytes of the request's body to come; None: not known."""
        self._is_head = self._blocked = self._paused = self._started = self._ended = False
        self._receiving, self._open = receiving, True
        self._to_send: int | None = None
        """Bytes of the response's body to be sent; None: not known. A client that counts them ends with the last one,
        so the stream does too."""
        self._taken = 0
        """Bytes of the body that the other side was not told to have been taken."""
        self._unsent = bytearray()

    @property
    def unsent_bytes(self) -> int:
        """Bytes written that may not be sent yet."""
        return len(self._unsent)

    # Called by the exchange.

    def start(self, status: int, headers: Headers, length: int | None) -> None:
        """Write the head of the response. `headers` name no length; `length`: bytes of the body; None: unknown."""
        if self._started:
            self.abort()
        if not self._open:
            return
        self._started = True
        if length is not None and status != 204:
            headers = [*headers, (b"content-length", b"%d" % length)]
        self._to_send = length
        self._ended = length == 0 or status in (204, 304) or self._is_head
        self._connection.head(self._number, status, headers, ends=self._ended)

    def write(self, data: bytes) -> None:
        """Write a part of the body."""
        size = len(data)
        if not self._open or self._ended or not size:
            return
        if not self._started:
            self.refuse(_FAILED)
            return
        if self._to_send is not None and size > self._to_send - len(self._unsent):
            data = data[: self._to_send - len(self._unsent)]
            size = len(data)
        if size <= self.window and size <= self._connection.room and not self._unsent:
            self._send_part(data, size)
            return
        self._unsent += data
        self.send()
        if len(self._unsent) > WRITE_BUFFER_BYTES and not self._blocked and self.exchange is not None:
            self._blocked = True
            self.exchange.client_writable(now=False)

    def finish(self) -> None:
        """End the response, which is complete."""
        if self._open and not self._started:
            self.refuse(_FAILED)
        elif not self._ended and self._to_send is not None and self._to_send > len(self._unsent):
            self.abort()
        self.exchange = None
        if self._open:
            self._open = False
            if not self._unsent:
                self._end()

    def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Write a whole response, possibly before the request is read completely."""
        self.start(status, headers, len(body))
        self.write(body)
        self.finish()

    def refuse(self, error: ClientError) -> None:
        self.respond(error.status, error.headers, error.body(self.target))

    def abort(self, code: int = frames.INTERNAL_ERROR) -> None:
        """Abort the response, so that the client detects that it is incomplete."""
        self.exchange = None
        if self._open or self._unsent:
            self._open = False
            self._unsent.clear()
            self._connection.reset(self._number, code)

    def pause(self) -> None:
        """Read no more of the request's body for now."""
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._acknowledge()

    # Called by the connection.

    def begin(self, exchange: Exchange, request: Request) -> None:
        """Begin the exchange. A length of 0 means that there is no body."""
        self.exchange = exchange
        self._left = request.length
        self._is_head = request.method == b"HEAD"
        exchange.begin()

    def body(self, data: bytes, size: int) -> None:
        """Takes a part of the request's body. Args: size: bytes that it takes of the window.

        Raises:
            Violation: it may not come.
        """
        self._taken += size
        if not self._receiving or self._taken > WINDOW_BYTES:
            raise frames.Violation(frames.FLOW_CONTROL_ERROR, "more of a body than may come")
        if self._left is not None:
            self._left -= len(data)
        if self.exchange is None:
            return
        if self._left is not None and self._left < 0:
            self.broken(_OTHER_LENGTH)
        elif data:
            self.exchange.body(data)
            self._acknowledge()

    def body_ended(self) -> None:
        self._receiving = False
        if self._left:
            self.broken(_OTHER_LENGTH)
        elif self.exchange is not None:
            self.exchange.body_ended()

    def broken(self, error: ClientError = _FAILED) -> None:
        """Ends a stream that cannot go on. A reset before the head would make Envoy send the request again."""
        exchange, self.exchange = self.exchange, None
        if self._started:
            self.abort(frames.PROTOCOL_ERROR)
        else:
            self.refuse(error)
        _tell_left(exchange)

    def left(self) -> None:
        """Ends it where the client or the connection did."""
        exchange, self.exchange = self.exchange, None
        self._open = False
        self._unsent.clear()
        _tell_left(exchange)

    def send(self) -> None:
        """Sends as much of what was written as the windows permit."""
        if not self._unsent:
            return
        connection = self._connection
        while self._unsent and (size := min(len(self._unsent), self.window, connection.room)) > 0:
            part = bytes(self._unsent[:size])
            del self._unsent[:size]
            self._send_part(part, size)
        if self._unsent:
            if self.window > 0:
                connection.wait(self)
        elif not self._open:
            self._end()
        elif self._blocked and self.exchange is not None:
            self._blocked = False
            self.exchange.client_writable(now=True)

    def _send_part(self, part: bytes, size: int) -> None:
        self.window -= size
        if self._to_send is not None:
            self._to_send -= size
            self._ended = self._to_send <= 0
        self._connection.data(self._number, part, ends=self._ended)

    def _end(self) -> None:
        if not self._ended:
            self._connection.data(self._number, b"", ends=True)
        if self._receiving:
            # The rest of the request's body is not read.
            self._connection.reset(self._number, frames.NO_ERROR)
        else:
            self._connection.forget(self._number)

    def _acknowledge(self) -> None:
        if self._open and self._receiving and not self._paused and self._taken >= WINDOW_BYTES // 2:
            self._connection.acknowledge(self._number, self._taken)
            self._taken = 0


def _tell_left(exchange: Exchange | None) -> None:
    try:
        if exchange is not None:
            exchange.left()
    except Exception:
        _log.exception("a request that is over is given up")
