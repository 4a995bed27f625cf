"""Server side of one gRPC method over HTTP/2, for the Envoy of this pod: as much of RFC 9113 and of gRPC's protocol
(https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md) as Envoy's external processor uses.

gRPC's own server takes a multiple of the CPU time that a pick takes, as each of its messages crosses to another thread
and back. Here a message is a call. The socket serves a single method, so request headers say nothing of interest and
are not decoded: no table of header compression is needed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from struct import Struct
from typing import Protocol, cast

from inflight_gateway.settings import MAX_BODY_BYTES

_log = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = MAX_BODY_BYTES + 2**20
"""Of one message: a request's body, or its head."""

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _WINDOW_UPDATE, _CONTINUATION = 0, 1, 3, 4, 6, 8, 9
_END_STREAM, _ACK, _END_HEADERS, _PADDED = 0x1, 0x1, 0x4, 0x8
_INITIAL_WINDOW_SIZE = 4
_INTERNAL_ERROR = 2

_FRAME_HEAD = Struct(">BHBBI")
"""Length (8 and 16 bits), type, flags, stream."""
_FRAME_HEAD_BYTES = 9
_FRAME_BYTES = 16_384
"""Maximum payload in both directions: the value that every peer permits."""

_MESSAGE_HEAD = Struct(">BI")
"""Of a gRPC message: whether it is compressed, length."""
_MESSAGE_HEAD_BYTES = 5

_DEFAULT_WINDOW = 65_535
_MAX_WINDOW = 2**31 - 1


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    length = len(payload)
    return _FRAME_HEAD.pack(length >> 16, length & 0xFFFF, kind, flags, stream) + payload


def _field(name: bytes, value: bytes) -> bytes:
    """Of a header block: a literal that is not indexed (RFC 7541, 6.2.2)."""
    return b"\x00%c%s%c%s" % (len(name), name, len(value), value)


_STATUS_200 = b"\x88"
"""Entry 8 of HPACK's static table."""
_RESPONSE_HEAD = _STATUS_200 + _field(b"content-type", b"application/grpc")
_TRAILERS = _field(b"grpc-status", b"0")
_GREETING = (
    # All that Envoy sends is read at once: bodies are complete there, and are in this process' memory only briefly.
    _frame(_SETTINGS, 0, 0, Struct(">HI").pack(_INITIAL_WINDOW_SIZE, _MAX_WINDOW))
    + _frame(_WINDOW_UPDATE, 0, 0, Struct(">I").pack(_MAX_WINDOW - _DEFAULT_WINDOW))
)


def framed(message: bytes) -> bytes:
    """A gRPC message with its length."""
    return _MESSAGE_HEAD.pack(0, len(message)) + message


class Call(Protocol):
    """One call of the method."""

    def message(self, content: bytes) -> None:
        """An exception ends the call with an error."""

    def closed(self) -> None:
        """Comes once, and last: the client has ended the call, or the connection is lost."""


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
        """Args: message: from `framed`. Ignored after the end of the call."""
        if not self._connection.is_open(self._number):
            return
        head = b"" if self._answered else _frame(_HEADERS, _END_HEADERS, self._number, _RESPONSE_HEAD)
        self._answered = True
        self.room -= len(message)
        if self.room < 0:
            # Responses are a few KiB, and windows at least 64.
            self.fail("its responses are too large")
            return
        parts = [
            _frame(_DATA, 0, self._number, message[begin : begin + _FRAME_BYTES])
            for begin in range(0, len(message), _FRAME_BYTES)
        ]
        self._connection.write(head + b"".join(parts), len(message))

    def fail(self, why: str) -> None:
        """Ends the call with an error."""
        _log.error("a request goes on without the picker: %s", why)
        self._connection.reset(self._number)

    def data(self, payload: bytes) -> None:
        """A part of the request messages."""
        received = self._received
        if not received and len(payload) >= _MESSAGE_HEAD_BYTES:
            # Nearly always a whole message comes in one frame.
            compressed, length = _MESSAGE_HEAD.unpack_from(payload)
            if not compressed and length == len(payload) - _MESSAGE_HEAD_BYTES:
                self.call.message(payload[_MESSAGE_HEAD_BYTES:])
                return
        received += payload
        while len(received) >= _MESSAGE_HEAD_BYTES:
            compressed, length = _MESSAGE_HEAD.unpack_from(received)
            if compressed or length > MAX_MESSAGE_BYTES:
                raise ValueError("a message is compressed, or too large")
            end = _MESSAGE_HEAD_BYTES + length
            if len(received) < end:
                return
            content = bytes(memoryview(received)[_MESSAGE_HEAD_BYTES:end])
            del received[:end]
            self.call.message(content)

    def ended(self) -> None:
        """The client has sent everything: nothing is left to answer."""
        if self._connection.is_open(self._number):
            head = b"" if self._answered else _RESPONSE_HEAD
            trailers = _frame(_HEADERS, _END_HEADERS | _END_STREAM, self._number, head + _TRAILERS)
            self._connection.write(trailers, 0)
            self._connection.close_stream(self._number)


class Connection(asyncio.Protocol):
    """
    Args:
        answer: the call for a new stream.
        opened, lost: called with this connection.
    """

    def __init__(
        self,
        answer: Callable[[Stream], Call],
        opened: Callable[[Connection], None],
        lost: Callable[[Connection], None],
    ) -> None:
        self._answer = answer
        self._opened = opened
        self._lost = lost
        self._transport: asyncio.Transport
        self._buffer = b""
        self._greeted = False
        self._streams: dict[int, Stream] = {}
        self._unacknowledged = 0
        self._room = _DEFAULT_WINDOW
        self._stream_room = _DEFAULT_WINDOW
        self._unsent: deque[tuple[bytes, int]] = deque()

    # Of the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclasses
        self._transport.write(_GREETING)
        self._opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost(self)
        for number in tuple(self._streams):
            self.close_stream(number)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data if self._buffer else data
        at = 0
        if not self._greeted:
            if len(buffer) < len(_PREFACE):
                self._buffer = buffer
                return
            if not buffer.startswith(_PREFACE):
                self._break("this is no HTTP/2 client")
                return
            self._greeted, at = True, len(_PREFACE)
        available = len(buffer)
        while available - at >= _FRAME_HEAD_BYTES:
            high, low, kind, flags, number = _FRAME_HEAD.unpack_from(buffer, at)
            length = high << 16 | low
            if length > _FRAME_BYTES:
                self._break("a frame is too large")
                return
            begin = at + _FRAME_HEAD_BYTES
            at = begin + length
            if at > available:
                at = begin - _FRAME_HEAD_BYTES
                break
            self._take(kind, flags, number & _MAX_WINDOW, buffer[begin:at])
        self._buffer = buffer[at:]

    # Of streams.

    def is_open(self, number: int) -> bool:
        return number in self._streams

    def write(self, frames: bytes, size: int) -> None:
        """In order. Args: size: of the frames' data, for flow control."""
        if self._unsent or size > self._room:
            self._unsent.append((frames, size))
            return
        self._room -= size
        self._transport.write(frames)

    def reset(self, number: int) -> None:
        if number in self._streams:
            self.write(_frame(_RST_STREAM, 0, number, Struct(">I").pack(_INTERNAL_ERROR)), 0)
            self.close_stream(number)

    def close_stream(self, number: int) -> None:
        stream = self._streams.pop(number, None)
        if stream is not None:
            stream.call.closed()

    def abort(self) -> None:
        self._transport.abort()

    def _break(self, why: str) -> None:
        _log.error("the connection of Envoy breaks off: %s", why)
        self.abort()

    # Frames.

    def _take(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if kind == _DATA:
            self._data(flags, number, payload)
        elif kind == _HEADERS:
            self._head(flags, number)
        elif kind == _RST_STREAM:
            self.close_stream(number)
        elif kind == _WINDOW_UPDATE:
            self._more_room(number, int.from_bytes(payload, "big") & _MAX_WINDOW)
        elif kind == _SETTINGS and not flags & _ACK:
            self._settings(payload)
        elif kind == _PING and not flags & _ACK:
            self._transport.write(_frame(_PING, _ACK, 0, payload))

    def _head(self, flags: int, number: int) -> None:
        """A request head, or trailers. Parts of a long head (CONTINUATION) are ignored like the head itself."""
        stream = self._streams.get(number)
        if stream is None:
            stream = self._streams[number] = Stream(self, number, self._stream_room)
            stream.call = self._answer(stream)
        if flags & _END_STREAM:
            stream.ended()

    def _data(self, flags: int, number: int, payload: bytes) -> None:
        self._unacknowledged += len(payload)
        if self._unacknowledged > _MAX_WINDOW // 2:
            self._transport.write(_frame(_WINDOW_UPDATE, 0, 0, Struct(">I").pack(self._unacknowledged)))
            self._unacknowledged = 0
        stream = self._streams.get(number)
        if stream is None:
            return
        if flags & _PADDED:
            payload = payload[1 : len(payload) - payload[0]]
        if payload:
            try:
                stream.data(payload)
            except Exception:
                _log.exception("a request goes on without the picker")
                self.reset(number)
        if flags & _END_STREAM:
            stream.ended()

    def _settings(self, payload: bytes) -> None:
        for name, value in Struct(">HI").iter_unpack(payload):
            if name == _INITIAL_WINDOW_SIZE:
                for stream in self._streams.values():
                    stream.room += value - self._stream_room
                self._stream_room = value
        self._transport.write(_frame(_SETTINGS, _ACK, 0))

    def _more_room(self, number: int, size: int) -> None:
        if number:
            stream = self._streams.get(number)
            if stream is not None:
                stream.room += size
            return
        self._room += size
        while self._unsent and self._unsent[0][1] <= self._room:
            frames, size = self._unsent.popleft()
            self._room -= size
            self._transport.write(frames)
