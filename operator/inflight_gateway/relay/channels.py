"""Channels to engines: one connection for the events of all streams of this process at an engine.

An engine may be hostile: what it may send of a stream that does not read, or is not there, is bounded.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import Protocol

from inflight_base.http.engine_pool import EnginePool, Loss, ResponseReader
from inflight_base.http.heads import Headers, chunk, request_head
from inflight_base.manifest.keys import ServiceKey
from inflight_contract.channels import CHANNEL_PATH, COMMAND, FRAME, MAX_FRAME_BYTES
from inflight_gateway.request import headers as names

_log = logging.getLogger(__name__)

MAX_CHANNELS = 1024
"""Most channels of a process."""

IDLE_S = 60.0
"""Seconds without a stream after which a channel is closed."""

AGAIN_S = 60.0
"""Seconds after which a channel is asked for again that an engine did not open, or cut."""

OPEN_WITHIN_S = 10.0

SILENCE_S = 60.0
"""Seconds without a frame after which a channel is lost, as where a firewall drops its packets: engines say each 15 s
that it lives."""

MAX_UNREAD_BYTES = 16 * 2**20
"""Most bytes of a stream that come after it was told to wait or was cancelled: what is under way then."""

MAX_CANCELLED = 4096
"""Most cancelled streams of a channel whose end has not come."""

_BEATS, _BEATS_PER_S = 20, 2.0
"""Most signs of life of a channel: at once, and for each second."""

CHANNEL = names.CHANNEL.encode()


class LaneReader(Protocol):
    """Receiver of a stream's events. Nothing is called after `ended` or `lost`, or after the end of its lane."""

    def data(self, data: bytes) -> None: ...

    def ended(self) -> None: ...

    def lost(self, loss: Loss) -> None: ...


class Streamed(ResponseReader, Protocol):
    """Receiver of a response whose events may come in a channel."""

    @property
    def in_channel(self) -> bool:
        """True if they do."""

    def connection_ended(self) -> None:
        """Notes that its own connection is for other requests now."""


class Beside:
    """Reader of the own connection of a stream in a channel: its head, and no events. Without a channel after all, that
    of the whole response."""

    __slots__ = ("_reader",)

    def __init__(self, reader: Streamed) -> None:
        self._reader = reader

    def head(self, status: int, headers: Headers) -> None:
        self._reader.head(status, headers)

    def data(self, data: bytes) -> None:
        if self._reader.in_channel:
            self._reader.lost(Loss.GARBLED)
        else:
            self._reader.data(data)

    def ended(self) -> None:
        if self._reader.in_channel:
            self._reader.connection_ended()
        else:
            self._reader.ended()

    def lost(self, loss: Loss) -> None:
        self._reader.lost(loss)

    def engine_writable(self, *, now: bool) -> None:
        self._reader.engine_writable(now=now)


class Lane:
    """A stream in a channel. Attributes: name: for its request's head. over: its end came before its head."""

    __slots__ = ("_channel", "begun", "name", "number", "over", "reader", "unread")

    def __init__(self, channel: Channel, number: int, reader: LaneReader) -> None:
        self._channel = channel
        self.number = number
        self.name = b"%b %d" % (channel.name, number)
        self.reader = reader
        self.begun = self.over = False
        self.unread: int | None = MAX_UNREAD_BYTES
        """Bytes that may come while it does not read; None: it reads."""

    def begin(self, *, reads: bool) -> None:
        """Lets the engine send, which has answered."""
        self.begun = True
        if self.over:
            self.end()
            self.reader.ended()
        elif reads:
            self.resume()

    def pause(self) -> None:
        self.unread = MAX_UNREAD_BYTES
        self._channel.tell(self.number, reads=False)

    def resume(self) -> None:
        self.unread = None
        self._channel.tell(self.number, reads=True)

    def end(self) -> None:
        """Ends the stream here; may be called again."""
        self._channel.cancelled(self)


class Channel:
    """A channel, which is opened now.

    Args:
        head: of the request. service: whose streams it may have.
        closed: called once, when it is closed, with whether it failed.
    """

    def __init__(
        self,
        pool: EnginePool,
        address: str,
        name: bytes,
        head: bytes,
        service: ServiceKey,
        closed: Callable[[Channel, bool], None],
    ) -> None:
        self.name = name
        self.address = address
        self._service = service
        self._on_closed = closed
        self._loop = asyncio.get_running_loop()
        self._open = self._closed = False
        self._lanes: dict[int, Lane] = {}
        self._cancelled: dict[int, int] = {}
        """Bytes that may come of cancelled streams."""
        self._newest = self._ends = self._beats = 0
        self._rest = b""
        self._commands: list[bytes] = []
        self._used_at = self._begun_at = self._heard_at = self._loop.time()
        self._timer = self._loop.call_later(OPEN_WITHIN_S, self._fail, "it was not opened in time")
        self._call = pool.call(address, self)
        self._call.write(head)

    def lane(self, service: ServiceKey, reader: LaneReader) -> Lane | None:
        """Returns a new stream; None: it has a connection of its own."""
        if not self._open or service != self._service or len(self._cancelled) >= MAX_CANCELLED:
            return None
        self._newest += 1
        self._lanes[self._newest] = lane = Lane(self, self._newest, reader)
        return lane

    def tell(self, number: int, *, reads: bool) -> None:
        """Sends a command, with all others of this turn of the loop."""
        if not self._commands:
            self._loop.call_soon(self._send_commands)
        self._commands.append(COMMAND.pack(number, reads))

    def _send_commands(self) -> None:
        commands = b"".join(self._commands)
        self._commands.clear()
        if self._open:
            self._call.write(chunk(commands))

    def cancelled(self, lane: Lane) -> None:
        """Ends a stream of this side."""
        if self._lanes.pop(lane.number, None) is not None:
            self._used_at = self._loop.time()
            if lane.begun and not lane.over:
                self._cancelled[lane.number] = MAX_UNREAD_BYTES

    def close(self, *, failed: bool = False) -> None:
        """Closes the connection; its streams are lost."""
        if self._closed:
            return
        self._closed, self._open = True, False
        self._timer.cancel()
        self._call.cancel()
        self._on_closed(self, failed)
        lanes, self._lanes = self._lanes, {}
        for lane in lanes.values():
            lane.reader.lost(Loss.BROKEN)

    def _fail(self, why: str) -> None:
        _log.warning("the channel to the engine at %s is given up: %s", self.address, why)
        self.close(failed=True)

    def _close_idle(self) -> None:
        now = self._loop.time()
        if now >= self._heard_at + SILENCE_S:
            self._fail("it is silent")
        elif self._lanes or now < self._used_at + IDLE_S:
            self._timer = self._loop.call_later(min(IDLE_S, SILENCE_S / 4), self._close_idle)
        else:
            self.close()

    # Called by the connection.

    def head(self, status: int, headers: Headers) -> None:
        if status != 200:
            self._fail(f"status {status}")
            return
        self._open = True
        self._timer.cancel()
        self._heard_at = self._loop.time()
        self._timer = self._loop.call_later(min(IDLE_S, SILENCE_S / 4), self._close_idle)

    def data(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        if self._rest:
            data = self._rest + data
        at, size, lanes, unpack, head = 0, len(data), self._lanes, FRAME.unpack_from, FRAME.size
        while size - at >= head:
            number, length = unpack(data, at)
            begin = at + head
            end = begin + length
            if end > size:
                if length > MAX_FRAME_BYTES:
                    self._fail("a part is too long")
                    return
                break
            at = end
            lane = lanes.get(number)
            if lane is not None and length and lane.unread is None:
                self._give(lane, data[begin:end])
            elif not self._unusual(number, lane, data[begin:end]):
                self._fail(f"it sent what stream {number} may not have")
            if self._closed:
                return
        self._rest = data[at:]

    def _give(self, lane: Lane, part: bytes) -> None:
        """Gives a stream's part to its reader, or, without bytes, its end."""
        try:
            if part:
                lane.reader.data(part)
            else:
                lane.reader.ended()
        except Exception:
            _log.exception("a stream is given up")
            lane.end()
            lane.reader.lost(Loss.BROKEN)

    def _unusual(self, number: int, lane: Lane | None, part: bytes) -> bool:
        """Takes a frame that is no part of a stream that reads; returns False if it may not come."""
        if not number:
            self._beats += 1
            return not part and self._beats <= _BEATS + _BEATS_PER_S * (self._loop.time() - self._begun_at)
        if not part:
            self._ends += 1
            self._cancelled.pop(number, None)
            if lane is not None and lane.begun:
                self.cancelled(lane)
                self._cancelled.pop(number, None)
                self._give(lane, part)
            elif lane is not None:
                lane.over = True
            return number <= self._newest and self._ends <= self._newest
        if lane is None:
            left = self._cancelled.get(number, 0) - len(part)
            self._cancelled[number] = left
            return left >= 0
        if not lane.begun or lane.unread is None:
            return False
        lane.unread -= len(part)
        if lane.unread < 0:
            lane.end()
            lane.reader.lost(Loss.GARBLED)
        else:
            self._give(lane, part)
        return True

    def ended(self) -> None:
        """Closes the channel: the engine drains."""
        self.close(failed=True)

    def lost(self, loss: Loss) -> None:
        self._fail(self._call.why)

    def engine_writable(self, *, now: bool) -> None:
        if not now:
            self._fail("the engine does not read commands")


class Channels:
    """The channels of a process, by the engine's address."""

    def __init__(self) -> None:
        self._pool = EnginePool(warn=False)
        self._of: dict[str, Channel] = {}
        self._not_before: dict[str, float] = {}
        """Times of the loop's clock until which engines are asked for none."""

    def lane(self, address: str, service: ServiceKey, reader: LaneReader) -> Lane | None:
        """Returns a new stream of the engine's channel; None: it has none that is open."""
        channel = self._of.get(address)
        return None if channel is None else channel.lane(service, reader)

    def offered(self, address: str, service: ServiceKey, signed: Callable[[str], tuple[tuple[str, str], ...]]) -> None:
        """Opens a channel to an engine that has them.

        Args:
            signed: returns the headers by which the engine accepts a request with this id.
        """
        now = asyncio.get_running_loop().time()
        if address in self._of or len(self._of) >= MAX_CHANNELS or now < self._not_before.get(address, now):
            return
        name, request_id = secrets.token_hex(16), secrets.token_hex(8)
        headers = [
            (b"host", address.encode()),
            (b"transfer-encoding", b"chunked"),
            (b"x-request-id", request_id.encode()),
            (CHANNEL, name.encode()),
            *((each.encode(), value.encode("latin-1")) for each, value in signed(request_id)),
        ]
        head = request_head(b"POST", CHANNEL_PATH.encode(), headers)
        self._of[address] = Channel(self._pool, address, name.encode(), head, service, self._closed)

    def _closed(self, channel: Channel, failed: bool) -> None:
        del self._of[channel.address]
        if failed:
            if len(self._not_before) >= MAX_CHANNELS:
                self._not_before.clear()
            self._not_before[channel.address] = asyncio.get_running_loop().time() + AGAIN_S

    def close(self) -> None:
        """Close all channels."""
        for channel in [*self._of.values()]:
            channel.close()
        self._pool.close()
