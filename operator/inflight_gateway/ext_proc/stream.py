"""One call of the external processor: a stream of HTTP/2 with messages of gRPC in both directions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from inflight_gateway.ext_proc.frames import (
    DATA,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES,
    HEADERS,
    MESSAGE_HEAD,
    MESSAGE_HEAD_BYTES,
    RESPONSE_HEAD,
    TRAILERS,
    frame,
)
from inflight_gateway.settings import MAX_BODY_BYTES

if TYPE_CHECKING:
    from inflight_gateway.ext_proc.http2 import Connection

MAX_MESSAGE_BYTES = MAX_BODY_BYTES + 2**20
"""Of one message: a request's body, or its head."""


class Call(Protocol):
    """One call of the method."""

    def message(self, content: bytes) -> None:
        """An exception ends the call with an error."""

    def closed(self) -> None:
        """Comes once, and last: the client has ended the call, it failed, or the connection is lost."""


class Stream:
    """Where a call writes its responses to."""

    __slots__ = ("_answered", "_connection", "_number", "_received", "call", "room")

    call: Call

    def __init__(self, connection: Connection, number: int, room: int) -> None:
        self.room = room
        """Bytes that the client takes on this stream."""
        self._connection = connection
        self._number = number
        self._answered = False
        self._received = bytearray()

    def send(self, message: bytes) -> None:
        """Ignored after the end of the call.

        Args:
            message: from `framed`.

        Raises:
            ValueError: it is larger than the client's window.
        """
        if not self._connection.is_open(self._number):
            return
        head = b"" if self._answered else frame(HEADERS, END_HEADERS, self._number, RESPONSE_HEAD)
        self._answered = True
        self.room -= len(message)
        if self.room < 0 or len(message) > DEFAULT_WINDOW:
            raise ValueError("the responses of a call are larger than its window")
        parts = [
            frame(DATA, 0, self._number, message[begin : begin + FRAME_BYTES])
            for begin in range(0, len(message), FRAME_BYTES)
        ]
        self._connection.write(self._number, head + b"".join(parts), len(message))

    def fail(self) -> None:
        """Ends the call with an error."""
        self._connection.reset(self._number)

    def data(self, payload: bytes) -> None:
        """A part of the request messages."""
        received = self._received
        if not received and len(payload) >= MESSAGE_HEAD_BYTES:
            # Nearly always a whole message comes in one frame.
            compressed, length = MESSAGE_HEAD.unpack_from(payload)
            if not compressed and length == len(payload) - MESSAGE_HEAD_BYTES:
                self.call.message(payload[MESSAGE_HEAD_BYTES:])
                return
        received += payload
        while len(received) >= MESSAGE_HEAD_BYTES:
            compressed, length = MESSAGE_HEAD.unpack_from(received)
            if compressed or length > MAX_MESSAGE_BYTES:
                raise ValueError("a message is compressed, or too large")
            end = MESSAGE_HEAD_BYTES + length
            if len(received) < end:
                return
            content = bytes(memoryview(received)[MESSAGE_HEAD_BYTES:end])
            del received[:end]
            self.call.message(content)

    def ended(self) -> None:
        """The client has sent everything: nothing is left to answer."""
        if self._connection.is_open(self._number):
            head = b"" if self._answered else RESPONSE_HEAD
            trailers = frame(HEADERS, END_HEADERS | END_STREAM, self._number, head + TRAILERS)
            self._connection.write(self._number, trailers, 0)
            self._connection.close_stream(self._number)
