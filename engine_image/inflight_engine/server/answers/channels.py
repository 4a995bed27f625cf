"""Channels to relays: all events that one turn of the loop has for the streams of a relay are one write."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from inflight_contract.channels import CHANNEL_HEADER, COMMAND, FRAME, MAX_FRAME_BYTES
from inflight_contract.errors import ApiError, bad_request
from inflight_engine.server.answers.send import raw_headers, server_send

MAX_CHANNELS = 256
"""Most channels: each relay process has one. Without a channel streams have connections of their own."""

BEAT_SECONDS = 15.0
"""Seconds without an event after which a channel says that it lives; only so the end of a node is noticed."""

_NAME = re.compile(r"[0-9a-f]{32}")
_LANE = re.compile(r"([0-9a-f]{32}) ([1-9][0-9]{0,9})")
_MOST_NUMBER = 2**32 - 1


class Channels:
    """The open channels, by name.

    Attributes:
        offered: whether answers tell relays of channels.
    """

    def __init__(self, *, offered: bool = True) -> None:
        self.offered = offered
        self._open: dict[str, Channel] = {}
        self._closed = False

    def open(self, name: str) -> Channel:
        """A new channel.

        Raises:
            ApiError: 400, the name is none; 409, it is taken; 503, there are enough, or the server ends.
        """
        if _NAME.fullmatch(name) is None:
            raise bad_request(f"{CHANNEL_HEADER}: must be 32 hexadecimal digits", CHANNEL_HEADER)
        if name in self._open:
            raise ApiError(409, f"{CHANNEL_HEADER}: this channel is open", CHANNEL_HEADER)
        if self._closed:
            raise ApiError(503, "the server ends", retry_after=1.0)
        if len(self._open) >= MAX_CHANNELS:
            raise ApiError(503, f"{MAX_CHANNELS} channels are open, the most this server takes", retry_after=60.0)
        self._open[name] = channel = Channel(lambda: self._open.pop(name, None))
        return channel

    def lane(self, headers: Headers, send: Send) -> Lane | None:
        """The way of a stream whose request names an open channel and a free number in it; None: its own connection.

        Args:
            send: of its own connection, which ends when it does.
        """
        found = _LANE.fullmatch(headers.get(CHANNEL_HEADER, ""))
        channel = None if found is None else self._open.get(found[1])
        return None if found is None or channel is None else channel.lane(int(found[2]), send)

    def close(self) -> None:
        """End all channels, once what they have is written, and open no more."""
        self._closed = True
        for channel in self._open.values():
            channel.close()


class Channel:
    """A channel. Streams wait while `MAX_FRAME_BYTES` are not written, each with one part.

    Args:
        ended: called at its end.
    """

    def __init__(self, ended: Callable[[], object]) -> None:
        self.room = asyncio.Event()
        self.room.set()
        self.closed = False
        self._ended = ended
        self._lanes: dict[int, Lane] = {}
        self._unwritten: list[bytes] = []
        self._size = 0
        self._changed = asyncio.Event()
        self._command = b""

    def lane(self, number: int, send: Send) -> Lane | None:
        """The way of a stream; None: the number is taken."""
        if number in self._lanes or number > _MOST_NUMBER or self.closed:
            return None
        self._lanes[number] = lane = Lane(self, number, send)
        return lane

    def put(self, number: int, part: bytes) -> None:
        """Write a part of a stream's events, at most `MAX_FRAME_BYTES`, with all others of this turn of the loop."""
        if self.closed:
            return
        self._unwritten += (FRAME.pack(number, len(part)), part)
        self._size += len(part)
        if self._size >= MAX_FRAME_BYTES:
            self.room.clear()
        self._changed.set()

    def end(self, number: int) -> None:
        """Write the end of a stream, once."""
        if self._lanes.pop(number, None) is not None:
            self.put(number, b"")

    def close(self) -> None:
        """Write no more than what is there."""
        self.closed = True
        self._changed.set()
        self.room.set()
        for lane in self._lanes.values():
            lane.reads.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The response that is the channel."""
        reading = asyncio.create_task(self._read(receive))
        send_body = server_send(scope)
        try:
            headers = raw_headers({"content-type": "application/octet-stream"})
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            while not self.closed:
                await self._write(send_body)
            await self._write(send_body, last=True)
        finally:
            reading.cancel()
            self.close()
            self._ended()

    async def _write(self, send: Send, *, last: bool = False) -> None:
        try:
            async with asyncio.timeout(BEAT_SECONDS):
                await self._changed.wait()
        except TimeoutError:
            self._unwritten.append(FRAME.pack(0, 0))
        if not self.closed:  # else the last write follows at once
            self._changed.clear()
        data = b"".join(self._unwritten)
        self._unwritten.clear()
        self._size = 0
        self.room.set()
        await send({"type": "http.response.body", "body": data, "more_body": not last})

    async def _read(self, receive: Receive) -> None:
        more = True
        while more:
            message = await receive()
            more = message["type"] == "http.request" and message.get("more_body", False)
            self._take(message.get("body", b""))
        self.close()

    def _take(self, data: bytes) -> None:
        data = self._command + data
        whole = len(data) - len(data) % COMMAND.size
        for number, reads in COMMAND.iter_unpack(data[:whole]):
            lane = self._lanes.get(number)
            if lane is None:  # it has ended meanwhile
                continue
            if reads:
                lane.reads.set()
            else:
                lane.reads.clear()
        self._command = data[whole:]


class Lane:
    """The way of a stream in a channel. Attributes: number: of the stream. reads: set while its events may be sent."""

    def __init__(self, channel: Channel, number: int, send: Send) -> None:
        self.number = number
        self.reads = asyncio.Event()
        self._channel = channel
        self._send = send
        self._over = False

    async def send(self, message: Message) -> None:
        """An ASGI `send` of bodies. It waits while the relay does not read; the last one ends the own connection's
        response, which has no body."""
        channel, body = self._channel, message["body"]
        for begin in range(0, len(body), MAX_FRAME_BYTES):
            if not channel.room.is_set():
                await channel.room.wait()  # once: all that waited put a part, so that a long event stops no other
            while not self.reads.is_set():  # again: it may have been told to send and to wait in one turn
                await self.reads.wait()
            if not self._over:
                channel.put(self.number, body[begin : begin + MAX_FRAME_BYTES])
        if not message["more_body"]:
            self.end()
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    def end(self) -> None:
        """Send nothing more, and wait for nothing."""
        self._over = True
        self.reads.set()
        self._channel.end(self.number)
