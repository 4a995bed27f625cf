"""The relay's end of the stream to one picker (`link/wire.py`): kept open, and its messages in frames."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, cast

import msgspec

from inflight_gateway.link import wire
from inflight_gateway.link.signed import HANDSHAKE_S, Proving, Sealed, watch
from inflight_gateway.link.wire import Ended, Frames, FromPicker, FromRelay
from inflight_gateway.relay.pickers.health import Health, Trust
from inflight_gateway.types import Finished

_log = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0
"""Bounds of the pause between two attempts to connect."""

CONNECT_S = 2.0
"""Most seconds to connect."""

MAX_OUTBOX = 50_000
"""Most messages for a picker that does not read; then the stream is broken off."""

_MESSAGES_OF_FRAME = 500
"""Most messages of a frame, so that it stays below `MAX_FRAME_BYTES`: the hashes of a prompt take 16 KiB."""


class Receiver(Protocol):
    """Receiver of what a link hears: `Pickers`."""

    def opened(self, link: PickerLink, /) -> None:
        """The picker is heard on a new stream."""

    def heard_again(self, link: PickerLink, /) -> None:
        """The picker is heard after a long silence."""

    def take(self, link: PickerLink, messages: list[FromPicker], /) -> None: ...

    def lost(self, link: PickerLink, unsent: list[Finished], /) -> None:
        """The stream has ended. Args: unsent: reports that did not leave."""


class PickerLink:
    """The stream to one picker. Create it in the event loop.

    Args:
        name: of the picker, for the log.
        address: UNIX socket of the picker of this pod; IP:PORT of that of another pod.
        proving: makes the relay's side of a signed stream; None: there is no key, so that other pods are not asked.

    Attributes:
        asked: questions that the picker has not acknowledged, by id, and the tick of each, oldest first.
    """

    def __init__(
        self, name: str, address: Path | str, receiver: Receiver, proving: Callable[[], Proving | None] = lambda: None
    ) -> None:
        self.name, self.address = name, address
        self.health = Health()
        self.asked: dict[str, int] = {}
        self._receiver = receiver
        self._proving = proving
        self._loop = asyncio.get_running_loop()
        self._stream: _Stream | None = None
        self._outbox: list[FromRelay] = []
        self._flushes = False

    @property
    def trust(self) -> Trust:
        return self.health.trust

    def send(self, message: FromRelay) -> None:
        """Sends a message with the others of this turn of the loop; without a stream, drops it."""
        if self._stream is None:
            return
        self._outbox.append(message)
        if not self._flushes:
            self._flushes = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Sends what waits, unless the picker does not read."""
        self._flushes = False
        stream = self._stream
        if stream is None:
            return
        if stream.full:
            if len(self._outbox) > MAX_OUTBOX:
                _log.warning("the picker %s does not read: its stream is broken off", self.name)
                stream.abort()
            return
        outbox, self._outbox = self._outbox, []
        for begin in range(0, len(outbox), _MESSAGES_OF_FRAME):
            stream.write(outbox[begin : begin + _MESSAGES_OF_FRAME])

    async def run(self) -> None:
        """Connects, again and again, until cancelled; then closes the stream after what was sent."""
        pause = FIRST_PAUSE_S
        stream: _Stream | None = None
        try:
            while True:
                begun = self._loop.time()
                try:
                    stream = await self._connect()
                    await stream.ended
                except OSError as error:
                    _log.debug("the picker %s cannot be reached: %s", self.name, error)
                pause = FIRST_PAUSE_S if self._loop.time() - begun > 1.0 else min(LONGEST_PAUSE_S, 2 * pause)
                await asyncio.sleep(pause * random.uniform(0.8, 1.2))
        finally:
            self.flush()
            if stream is not None:
                stream.close()

    async def _connect(self) -> _Stream:
        """Raises OSError where there is no connection."""
        if isinstance(self.address, Path):
            return (await self._loop.create_unix_connection(lambda: _Stream(self, None), str(self.address)))[1]
        proving = self._proving()
        if proving is None:
            raise OSError("there is no gateway key")
        host, _, port = self.address.rpartition(":")
        async with asyncio.timeout(CONNECT_S):
            connection = await self._loop.create_connection(lambda: _Stream(self, proving), host.strip("[]"), int(port))
        return connection[1]

    # Called by the stream.

    def heard(self, stream: _Stream, *, beat: bool) -> None:
        """Notes a frame of the picker. Args: beat: it is a beat."""
        gone = self.trust is Trust.GONE
        self.health.heard(beat=beat)
        if stream is not self._stream:
            self._stream = stream
            self._receiver.opened(self)
        elif gone and beat:
            self._receiver.heard_again(self)

    def take(self, messages: list[FromPicker]) -> None:
        self._receiver.take(self, messages)

    def lost(self, stream: _Stream) -> None:
        """Goes on without the stream."""
        if self._stream is not stream:
            return
        self._stream = None
        self.health.lost()
        self.asked.clear()
        unsent, self._outbox = self._outbox, []
        self._receiver.lost(self, [message.report for message in unsent if isinstance(message, Ended)])


class _Stream(asyncio.Protocol):
    """A connection to the picker. Attributes: full: the picker does not read now. ended: done when the connection is
    lost."""

    def __init__(self, link: PickerLink, proving: Proving | None) -> None:
        self.full = False
        self._link = link
        self._proving = proving
        self._frames: Frames | Sealed = Frames()
        self._transport: asyncio.Transport
        self._expiry: asyncio.TimerHandle | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def write(self, messages: Sequence[FromRelay]) -> None:
        self._transport.write(self._frames.frame(messages))

    def close(self) -> None:
        """Closes it after what was written."""
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclasses
        if self._proving is not None:
            watch(transport)
            self._expiry = asyncio.get_running_loop().call_later(HANDSHAKE_S, self.abort)

    def data_received(self, data: bytes) -> None:
        try:
            if self._proving is not None:
                data = self._prove(self._proving, data)
            for content in self._frames.feed(data) if self._proving is None else ():
                messages = wire.from_picker.decode(content)
                self._link.heard(self, beat=not messages)
                if messages:
                    self._link.take(messages)
        except (ValueError, msgspec.MsgspecError) as error:
            _log.error("the stream of the picker %s is closed: %s", self._link.name, error)
            self._transport.abort()

    def _prove(self, proving: Proving, data: bytes) -> bytes:
        """Returns what follows the proof of the picker."""
        answer = proving.feed(data)
        if answer:
            self._transport.write(answer)
        if proving.sealed is None:
            return b""
        self._frames, self._proving = proving.sealed, None
        if self._expiry is not None:
            self._expiry.cancel()
        return proving.rest

    def connection_lost(self, exc: Exception | None) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        self._link.lost(self)
        if not self.ended.done():
            self.ended.set_result(None)

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        self.full = False
        self._link.flush()
