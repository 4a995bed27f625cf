"""Connections from Envoy: HTTP/2 with prior knowledge, so that the events of many streams take one system call."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from http import HTTPMethod
from itertools import chain
from typing import cast

from jh2._hazmat import Decoder, Encoder, HPACKError, OversizedHeaderListError

from inflight_base.http.heads import Headers
from inflight_gateway.relay.http import frames
from inflight_gateway.relay.http.client import WINDOW_BYTES, Client, Exchange, Request
from inflight_gateway.relay.http.errors import ClientError
from inflight_gateway.relay.http.frames import Violation
from inflight_gateway.request.headers import JWT_TENANT, Fields, split

_log = logging.getLogger(__name__)

MAX_STREAMS = 2**20
"""Most streams of a connection: the picker's queue and Envoy's listeners bound them."""

MAX_HEAD_BYTES = 256 * 2**10
"""Most bytes of a request's head as HPACK counts them; Envoy permits less."""

MAX_BUFFER_BYTES = 4 * 2**20
"""Bytes that go out in one turn of the loop, and that Envoy may leave unread, before all streams wait."""

_UNREADABLE = ClientError(400, "the head of the request cannot be read as HTTP", "malformed_request")

_METHODS = frozenset(method.encode() for method in HTTPMethod)

_BAD = re.compile(rb"[\r\n\0]")
"""Ends of a line in the head that an engine gets. Envoy refuses them before."""

_BAD_TARGET = re.compile(rb"[\0-\x20\x7f]")

_JWT_TENANT = JWT_TENANT.encode()


class Connection(asyncio.Protocol):
    """A connection, with a `Client` for each request.

    Attributes:
        room: most bytes of a frame of data that may be sent now.

    Args:
        begin: makes the exchange of a request.
        opened, closed: called with this connection.
    """

    def __init__(
        self,
        begin: Callable[[Request, Client], Exchange],
        opened: Callable[[Connection], None],
        closed: Callable[[Connection], None],
    ) -> None:
        self._begin = begin
        self._opened = opened
        self._closed = closed
        self._transport: asyncio.Transport
        self._loop = asyncio.get_running_loop()
        self._decoder, self._encoder = Decoder(MAX_HEAD_BYTES), Encoder()
        self._clients: dict[int, Client] = {}
        self._waiting: dict[Client, None] = {}
        """Clients that wait for the window of the connection."""
        self._rest = b""
        self._out: list[bytes] = []
        self._queued = 0
        """Bytes of bodies in `_out`."""
        self._prefaced = self._full = self._draining = self._last = self._violated = False
        self._newest = self._taken = 0
        self._head_of: tuple[int, int] | None = None
        """Stream and flags of a head that is not complete."""
        self._head = b""
        self._window = self._first_window = frames.DEFAULT_WINDOW
        self.room = frames.MAX_FRAME_BYTES

    @property
    def num_requests(self) -> int:
        return len(self._clients)

    def drain(self) -> None:
        """Close after the requests that are on their way."""
        if not self._prefaced:
            self._transport.close()
        elif not self._draining:
            self._draining = True
            self._write(frames.frame(frames.GOAWAY, 0, 0, frames.number(frames.LAST_STREAM) + bytes(4)))
            # Envoy sends no request after the answer to this.
            self._write(frames.frame(frames.PING, 0, 0, bytes(8)))

    def close(self) -> None:
        """Abort all requests."""
        self._transport.abort()

    # Called by the clients, see `Sender`.

    def head(self, number: int, status: int, headers: Headers, *, ends: bool) -> None:
        fields = [(b":status", b"%d" % status, False), *((name.lower(), value, False) for name, value in headers)]
        block = self._encoder.encode(fields, False)
        kind, flags = frames.HEADERS, frames.END_STREAM if ends else 0
        while len(block) > frames.MAX_FRAME_BYTES:
            part, block = block[: frames.MAX_FRAME_BYTES], block[frames.MAX_FRAME_BYTES :]
            self._write(frames.frame(kind, flags, number, part))
            kind, flags = frames.CONTINUATION, 0
        self._write(frames.frame(kind, flags | frames.END_HEADERS, number, block))

    def data(self, number: int, data: bytes, *, ends: bool) -> None:
        size = len(data)
        self._window -= size
        self._queued += size
        self.room = min(self.room, self._window) if self._queued < MAX_BUFFER_BYTES else 0
        self._write(frames.HEAD.pack(size >> 8, size & 255, frames.DATA, ends, number) + data)

    def reset(self, number: int, code: int) -> None:
        self._write(frames.frame(frames.RST_STREAM, 0, number, frames.number(code)))
        self.forget(number)

    def forget(self, number: int) -> None:
        client = self._clients.pop(number, None)
        if client is not None:
            self._waiting.pop(client, None)
            self._close_last()

    def acknowledge(self, number: int, size: int) -> None:
        self._write(frames.frame(frames.WINDOW_UPDATE, 0, number, frames.number(size)))

    def wait(self, client: Client) -> None:
        self._waiting[client] = None

    def _write(self, data: bytes) -> None:
        """Writes with all else of this turn of the loop: each write is a system call here, and one in Envoy."""
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(data)

    def _flush(self) -> None:
        data = b"".join(self._out)
        self._out.clear()
        self._queued = 0
        if not self._transport.is_closing():
            self._transport.write(data)
        if not self.room:
            self._make_room()

    def _make_room(self) -> None:
        self.room = 0 if self._full else min(self._window, frames.MAX_FRAME_BYTES)
        if self.room:
            waiting, self._waiting = self._waiting, {}
            for client in waiting:
                self._let_send(client)

    def _close_last(self) -> None:
        if self._last and not self._clients:
            self._loop.call_soon(self._transport.close)

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclasses
        self._transport.set_write_buffer_limits(high=MAX_BUFFER_BYTES)
        self._write(
            frames.settings((frames.MAX_CONCURRENT_STREAMS, MAX_STREAMS), (frames.INITIAL_WINDOW_SIZE, WINDOW_BYTES))
        )
        # Bodies are bounded by their own windows, and all of them together by `Bodies`.
        self.acknowledge(0, frames.LARGEST_WINDOW - frames.DEFAULT_WINDOW)
        self._opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed(self)
        clients, self._clients, self._waiting = self._clients, {}, {}
        for client in clients.values():
            client.left()

    def pause_writing(self) -> None:
        self._full = True
        self._make_room()

    def resume_writing(self) -> None:
        self._full = False
        self._make_room()

    def data_received(self, data: bytes) -> None:
        if self._violated:
            return
        if self._rest:
            data = self._rest + data
        at, size, head = 0, len(data), frames.HEAD.size
        try:
            if not self._prefaced:
                at = len(frames.PREFACE)
                if not frames.PREFACE.startswith(data[:at]):
                    raise Violation(frames.PROTOCOL_ERROR, "no HTTP/2")
                if size < at:
                    self._rest = data
                    return
                self._prefaced = True
            while size - at >= head:
                high, low, kind, flags, number = frames.HEAD.unpack_from(data, at)
                begin, end = at + head, at + head + (high << 8 | low)
                if end - begin > frames.MAX_FRAME_BYTES:
                    raise Violation(frames.FRAME_SIZE_ERROR, f"a frame of {end - begin} bytes")
                if end > size:
                    break
                at = end
                try:
                    self._take(kind, flags, number & frames.LAST_STREAM, data[begin:end])
                except Violation:
                    raise
                except Exception:
                    self._give_up(self._clients.get(number & frames.LAST_STREAM))
            self._rest = data[at:]
        except Violation as error:
            self._violated = True
            _log.warning("a connection of Envoy is closed: %s", error)
            code = frames.number(self._newest) + frames.number(error.code)
            self._write(frames.frame(frames.GOAWAY, 0, 0, code))
            self._loop.call_soon(self._transport.close)

    def _take(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if self._head_of is not None and (kind != frames.CONTINUATION or number != self._head_of[0]):
            raise Violation(frames.PROTOCOL_ERROR, "a head that is not ended")
        if kind == frames.DATA:
            self._take_data(flags, number, payload)
        elif kind == frames.HEADERS:
            self._head_of, self._head = (number, flags), frames.content(flags, payload)
            self._take_head(flags)
        elif kind == frames.CONTINUATION:
            if self._head_of is None or len(self._head) > MAX_HEAD_BYTES:
                raise Violation(frames.ENHANCE_YOUR_CALM, "a head that does not end")
            self._head += payload
            self._take_head(flags)
        elif kind == frames.WINDOW_UPDATE:
            self._take_window(number, frames.number_of(payload))
        elif kind == frames.RST_STREAM:
            client = self._clients.get(number)
            self.forget(number)
            if client is not None:
                client.left()
        elif kind == frames.SETTINGS:
            if not flags & frames.ACK:
                self._take_settings(payload)
        elif kind == frames.PING:
            if not flags & frames.ACK:
                self._write(frames.frame(frames.PING, frames.ACK, 0, payload))
            elif self._draining:
                self._last = True
                self._close_last()
        elif kind == frames.PUSH_PROMISE:
            raise Violation(frames.PROTOCOL_ERROR, "a pushed response")

    def _take_data(self, flags: int, number: int, payload: bytes) -> None:
        size = len(payload)
        self._taken += size
        if self._taken >= frames.LARGEST_WINDOW // 2:
            self.acknowledge(0, self._taken)
            self._taken = 0
        if number > self._newest or not number:
            raise Violation(frames.PROTOCOL_ERROR, "data of a stream that has not begun")
        client = self._clients.get(number)
        if client is not None:
            if size:
                client.body(frames.content(flags & frames.PADDED, payload), size)
            # The body may have ended its stream.
            if flags & frames.END_STREAM and number in self._clients:
                client.body_ended()

    def _take_head(self, flags: int) -> None:
        """Takes a head, if it is complete."""
        if not flags & frames.END_HEADERS:
            return
        assert self._head_of is not None
        (number, flags), block = self._head_of, self._head
        self._head_of, self._head = None, b""
        if not block:
            raise Violation(frames.PROTOCOL_ERROR, "a head without a field")
        try:
            fields = self._decoder.decode(block, True)
        except (HPACKError, OversizedHeaderListError) as error:
            raise Violation(frames.COMPRESSION_ERROR, f"a head that cannot be read: {error}") from None
        ends = bool(flags & frames.END_STREAM)
        if number > self._newest:
            if not number % 2:
                raise Violation(frames.PROTOCOL_ERROR, "a stream with an even number")
            self._newest = number
            self._open(number, cast(Fields, fields), ends)
        elif (client := self._clients.get(number)) is not None:
            if not ends:
                raise Violation(frames.PROTOCOL_ERROR, "trailers that do not end their stream")
            client.body_ended()

    def _open(self, number: int, fields: Fields, ends: bool) -> None:
        self._clients[number] = client = Client(self, number, self._first_window, receiving=not ends)
        own, headers = split(fields)
        method, target, length = own.get(b":method", b""), own.get(b":path", b""), own.get(b"content-length")
        readable = method in _METHODS and target and not _BAD_TARGET.search(target)
        if not readable or (length and not length.isdigit()) or _BAD.search(b"".join(chain.from_iterable(headers))):
            # Envoy checks heads before, but permits more, such as arbitrary methods.
            client.refuse(_UNREADABLE)
            return
        client.target = target
        size = 0 if ends else int(length) if length else None
        # Envoy removes internal headers of clients, and sets the tenant of a verified token.
        request = Request(method, target, headers, size, self._loop.time(), own.get(_JWT_TENANT))
        client.begin(self._begin(request, client), request)
        if ends and number in self._clients:
            client.body_ended()

    def _take_window(self, number: int, size: int) -> None:
        if not number:
            self._window += size
            self._make_room()
        elif (client := self._clients.get(number)) is not None:
            client.window += size
            self._let_send(client)

    def _take_settings(self, payload: bytes) -> None:
        for name, value in frames.settings_of(payload):
            if name == frames.HEADER_TABLE_SIZE:
                self._encoder.header_table_size = min(value, self._encoder.header_table_size)
            elif name == frames.INITIAL_WINDOW_SIZE:
                more, self._first_window = value - self._first_window, value
                for client in [*self._clients.values()]:
                    client.window += more
                    self._let_send(client)
        self._write(frames.frame(frames.SETTINGS, frames.ACK, 0))

    def _let_send(self, client: Client) -> None:
        try:
            client.send()
        except Exception:
            self._give_up(client)

    def _give_up(self, client: Client | None) -> None:
        """Ends the stream alone whose exchange has failed."""
        _log.exception("a request is given up")
        if client is not None:
            client.broken()
