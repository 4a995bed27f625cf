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
from typing import cast

from inflight_gateway.ext_proc.frames import (
    ACK,
    DATA,
    DEFAULT_WINDOW,
    END_STREAM,
    FRAME_BYTES,
    FRAME_HEAD,
    FRAME_HEAD_BYTES,
    GREETING,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    INTERNAL_ERROR,
    MAX_WINDOW,
    NUMBER,
    PADDED,
    PING,
    PREFACE,
    RST_STREAM,
    SETTING,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
)
from inflight_gateway.ext_proc.stream import Call, Stream

_log = logging.getLogger(__name__)


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
        self._newest = 0
        self._unacknowledged = 0
        self._room = DEFAULT_WINDOW
        self._stream_room = DEFAULT_WINDOW
        self._unsent: deque[tuple[int, bytes, int]] = deque()
        """Of the connection, for want of room: stream, frames, and size of their data."""

    # Of the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclasses
        self._transport.write(GREETING)
        self._opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost(self)
        for number in tuple(self._streams):
            self.close_stream(number)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data if self._buffer else data
        at = 0
        if not self._greeted:
            if len(buffer) < len(PREFACE):
                self._buffer = buffer
                return
            if not buffer.startswith(PREFACE):
                self._break("this is no HTTP/2 client")
                return
            self._greeted, at = True, len(PREFACE)
        available = len(buffer)
        while available - at >= FRAME_HEAD_BYTES:
            high, low, kind, flags, number = FRAME_HEAD.unpack_from(buffer, at)
            length = high << 16 | low
            if length > FRAME_BYTES:
                self._break("a frame is too large")
                return
            begin = at + FRAME_HEAD_BYTES
            at = begin + length
            if at > available:
                at = begin - FRAME_HEAD_BYTES
                break
            self._take(kind, flags, number & MAX_WINDOW, buffer[begin:at])
        self._buffer = buffer[at:]

    # Of streams.

    def is_open(self, number: int) -> bool:
        return number in self._streams

    def write(self, number: int, frames: bytes, size: int) -> None:
        """In order. Args: size: of the frames' data, for flow control."""
        if self._unsent or size > self._room:
            self._unsent.append((number, frames, size))
            return
        self._room -= size
        self._transport.write(frames)

    def reset(self, number: int) -> None:
        if number in self._streams:
            self._discard_unsent(number)
            self._transport.write(frame(RST_STREAM, 0, number, NUMBER.pack(INTERNAL_ERROR)))
            self.close_stream(number)

    def close_stream(self, number: int) -> None:
        stream = self._streams.pop(number, None)
        if stream is not None:
            try:
                stream.call.closed()
            except Exception:
                _log.exception("the end of a request was not taken")

    def abort(self) -> None:
        self._transport.abort()

    def _discard_unsent(self, number: int) -> None:
        if self._unsent:
            self._unsent = deque(each for each in self._unsent if each[0] != number)

    def _break(self, why: str) -> None:
        _log.error("the connection of Envoy breaks off: %s", why)
        self.abort()

    # Frames.

    def _take(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if kind == DATA:
            self._data(flags, number, payload)
        elif kind == HEADERS:
            self._head(flags, number)
        elif kind == RST_STREAM:
            self._discard_unsent(number)
            self.close_stream(number)
        elif kind == WINDOW_UPDATE:
            self._more_room(number, int.from_bytes(payload, "big") & MAX_WINDOW)
        elif kind == SETTINGS and not flags & ACK:
            self._settings(payload)
        elif kind == PING and not flags & ACK:
            self._transport.write(frame(PING, ACK, 0, payload))

    def _head(self, flags: int, number: int) -> None:
        """A request head, or trailers. Parts of a long head (CONTINUATION) are ignored like the head itself."""
        if number > self._newest:
            self._newest = number
            stream = self._streams[number] = Stream(self, number, self._stream_room)
            stream.call = self._answer(stream)
        known = self._streams.get(number)
        if known is not None and flags & END_STREAM:
            known.ended()

    def _data(self, flags: int, number: int, payload: bytes) -> None:
        self._unacknowledged += len(payload)
        if self._unacknowledged > MAX_WINDOW // 2:
            self._transport.write(frame(WINDOW_UPDATE, 0, 0, NUMBER.pack(self._unacknowledged)))
            self._unacknowledged = 0
        stream = self._streams.get(number)
        if stream is None:
            return
        if flags & PADDED:
            payload = payload[1 : len(payload) - payload[0]]
        if payload:
            try:
                stream.data(payload)
            except Exception:
                _log.exception("a request goes on without the picker")
                self.reset(number)
        if flags & END_STREAM:
            stream.ended()

    def _settings(self, payload: bytes) -> None:
        for name, value in SETTING.iter_unpack(payload):
            if name == INITIAL_WINDOW_SIZE:
                for stream in self._streams.values():
                    stream.room += value - self._stream_room
                self._stream_room = value
        self._transport.write(frame(SETTINGS, ACK, 0))

    def _more_room(self, number: int, size: int) -> None:
        if number:
            stream = self._streams.get(number)
            if stream is not None:
                stream.room += size
            return
        self._room += size
        while self._unsent and self._unsent[0][2] <= self._room:
            _, frames, size = self._unsent.popleft()
            self._room -= size
            self._transport.write(frames)
