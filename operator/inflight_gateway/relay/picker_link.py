"""The relay's end of the stream to the picker (`link/wire.py`): asks, what the picker knows, and reports."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, cast

import msgspec

from inflight_gateway.discovery.catalog import Catalog
from inflight_gateway.link import wire
from inflight_gateway.link.wire import (
    ACKNOWLEDGED_S,
    Answering,
    Ask,
    Ended,
    FromPicker,
    FromRelay,
    Go,
    Held,
    Hello,
    Keys,
    Known,
    Left,
    Pods,
    Progress,
    Refuse,
)
from inflight_gateway.relay.alone import Alone
from inflight_gateway.relay.mirror import Mirror
from inflight_gateway.types import Finished

_log = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0
"""Bounds of the pause between two attempts to connect."""

PROGRESS_S = 1.0

LONGEST_ACKNOWLEDGEMENT_S = 2.0
"""Seconds for which an acknowledgement is awaited from a picker that answers others: in a burst it is busy, and not
gone."""

MAX_REPORTS = 10_000
"""Most reports that wait for a picker: those of about 5 s at the highest rate that one process can serve."""

MAX_REFUSED_PER_S = 100
"""Most reports per second on requests that were refused by their heads: their number depends on clients alone."""

MAX_OUTBOX = 50_000
"""Most messages for a picker that does not read; then the stream is broken off."""

_MESSAGES_OF_FRAME = 500
"""Most messages of a frame, so that it stays below `MAX_FRAME_BYTES`: the hashes of a prompt take 16 KiB."""


class Asked(Protocol):
    """Receiver of the answer to an `Ask`: one call, unless the request ends before."""

    def go(self, go: Go) -> None: ...

    def refused(self, refuse: Refuse) -> None: ...


@dataclass(slots=True)
class _Pending:
    """An attempt that no engine was picked for. Attributes: since: when it was asked for. sent: when this
    picker was asked. timer: the picker did not
    acknowledge it yet, and this ends the wait for that; None: acknowledged."""

    ask: Ask
    asked: Asked
    since: float
    sent: float = 0.0
    timer: asyncio.TimerHandle | None = None


@dataclass(slots=True)
class _Running:
    """An attempt at an engine. Attributes: ask: without the hashes of its prompt. tokens: returns the completion tokens
    so far. told: those of the last message."""

    ask: Ask
    address: str
    tokens: Callable[[], int]
    told: int = 0


class PickerLink:
    """The stream, and what a relay does without it. Create it in the event loop.

    Args:
        name: unique for each process.
        keys: called with the gateway keys.

    Attributes:
        dropped: reports that no picker got.
    """

    def __init__(self, path: Path, name: str, catalog: Catalog, alone: Alone, keys: Callable[[Keys], None]) -> None:
        self.dropped = 0
        self._path = str(path)
        self._name = name
        self._mirror = Mirror(catalog)
        self._alone = alone
        self._keys = keys
        self._loop = asyncio.get_running_loop()
        self._stream: _Stream | None = None
        self._pending: dict[str, _Pending] = {}
        self._running: dict[str, _Running] = {}
        self._outbox: list[FromRelay] = []
        self._reports: deque[Finished] = deque()
        """Reports while there is no stream, oldest first."""
        self._flushes = False
        self._heard_at = float("-inf")
        self._refused_left = MAX_REFUSED_PER_S
        self._logged = 0

    @property
    def connected(self) -> bool:
        return self._stream is not None

    # Called by requests.

    def ask(self, ask: Ask, asked: Asked) -> None:
        """Asks for engines for an attempt. `asked` is called later, never in this call."""
        pending = self._pending[ask.id] = _Pending(ask, asked, self._loop.time())
        self._send(ask)
        self._await_acknowledgement(pending, ACKNOWLEDGED_S if self.connected else 0.0)

    def answering(self, request_id: str, address: str, refused: tuple[str, ...], tokens: Callable[[], int]) -> None:
        """Notes that an engine answers the newest attempt of a request.

        Args:
            refused: engines that were tried before.
            tokens: returns the completion tokens of the whole answer so far.
        """
        running = self._running.get(request_id)
        if running is not None:
            running.address, running.tokens = address, tokens
            self._send(Answering(request_id, running.ask.attempt, address, refused))

    def left(self, request_id: str) -> None:
        """Notes that the newest attempt of a request failed."""
        running = self._running.pop(request_id, None)
        if running is not None:
            self._send(Left(request_id, running.ask.attempt))

    def ended(self, report: Finished) -> None:
        """Notes that a request has ended; its report reaches a picker later where none is connected."""
        self._forget(report.request_id)
        self._running.pop(report.request_id, None)
        self._alone.ended(report, self._loop.time())
        self._report(report)

    def refused(self, report: Finished) -> None:
        """Reports a request that was refused by its head, unless there are too many of them."""
        if self._refused_left:
            self._refused_left -= 1
            self._report(report)
        else:
            self.dropped += 1

    # The stream.

    async def run(self) -> None:
        """Connects, again and again, until cancelled."""
        pause = FIRST_PAUSE_S
        tick = self._loop.create_task(self._tick())
        try:
            while True:
                ended: asyncio.Future[None] = self._loop.create_future()
                begun = self._loop.time()
                try:
                    await self._loop.create_unix_connection(partial(_Stream, self, ended), self._path)
                    await ended
                except OSError:
                    pass
                pause = FIRST_PAUSE_S if self._loop.time() - begun > 1.0 else min(LONGEST_PAUSE_S, 2 * pause)
                await asyncio.sleep(pause * random.uniform(0.8, 1.2))
        finally:
            tick.cancel()
            self._flush()
            if self._stream is not None:
                self._stream.close()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_S)
            self._refused_left = MAX_REFUSED_PER_S
            self._progress()
            if self.dropped > self._logged:
                _log.warning("%d reports of requests were not sent so far", self.dropped)
                self._logged = max(self.dropped, 2 * self._logged)

    def _progress(self) -> None:
        changed = []
        for request_id, running in self._running.items():
            tokens = running.tokens()
            if tokens != running.told:
                running.told = tokens
                changed.append((request_id, tokens))
        if changed:
            self._send(Progress(tuple(changed)))

    def opened(self, stream: _Stream) -> None:
        """Takes a new stream into use. Called by it."""
        self._stream = stream
        self._mirror.begin()
        running = tuple((one.ask, one.address) for one in self._running.values())
        self._send(Hello(self._name, running))
        while self._reports:
            self._send(Ended(self._reports.popleft()))
        now = self._loop.time()
        for pending in self._pending.values():
            self._send(msgspec.structs.replace(pending.ask, age_s=pending.ask.age_s + now - pending.since))
            self._await_acknowledgement(pending, ACKNOWLEDGED_S)

    def lost(self, stream: _Stream) -> None:
        """Goes on without the stream. Called by it."""
        if self._stream is not stream:
            return
        self._stream = None
        unsent, self._outbox = self._outbox, []
        for message in unsent:
            if isinstance(message, Ended):
                self._report(message.report)
        for pending in self._pending.values():
            self._await_acknowledgement(pending, ACKNOWLEDGED_S)

    def take(self, messages: list[FromPicker]) -> None:
        """Applies messages of the picker. Called by the stream."""
        self._heard_at = self._loop.time()
        for message in messages:
            match message:
                case Go() | Refuse():
                    pending = self._pending.get(message.id)
                    if pending is not None and pending.ask.attempt == message.attempt:
                        self._answer(pending, message)
                case Held():
                    pending = self._pending.get(message.id)
                    if pending is not None and pending.ask.attempt == message.attempt:
                        self._stop_timer(pending)
                case Known():
                    self._mirror.take(message)
                case Keys():
                    self._keys(message)
                case Pods():
                    self._alone.relays = max(1, message.pods * message.relays)

    def flush(self) -> None:
        """Sends what waited for the picker to read. Called by the stream."""
        self._flush()

    # Asks.

    def _await_acknowledgement(self, pending: _Pending, seconds: float) -> None:
        self._stop_timer(pending)
        pending.sent = self._loop.time()
        pending.timer = self._loop.call_later(seconds, self._overdue, pending)

    def _overdue(self, pending: _Pending) -> None:
        """Picks alone, unless the picker is busy with others."""
        now = self._loop.time()
        silent_at = self._heard_at + ACKNOWLEDGED_S
        if self.connected and now < silent_at and now < pending.sent + LONGEST_ACKNOWLEDGEMENT_S:
            pending.timer = self._loop.call_at(silent_at, self._overdue, pending)
        else:
            self._pick_alone(pending)

    def _pick_alone(self, pending: _Pending) -> None:
        """Picks without the picker. If it got the `Ask`, it hears of the engine when that answers; if it picks one in
        the meantime, nothing happens."""
        pending.timer = None
        answer = self._alone.pick(pending.ask, self._loop.time())
        if isinstance(answer, Refuse):
            self._send(Left(answer.id, answer.attempt))  # the picker may hold it still
        self._answer(pending, answer)

    def _answer(self, pending: _Pending, answer: Go | Refuse) -> None:
        self._forget(answer.id)
        if isinstance(answer, Refuse):
            pending.asked.refused(answer)
            return
        ask = msgspec.structs.replace(pending.ask, body=msgspec.structs.replace(pending.ask.body, blocks=b""))
        self._running[answer.id] = _Running(ask, answer.endpoints[0], _none)
        pending.asked.go(answer)

    def _forget(self, request_id: str) -> None:
        pending = self._pending.pop(request_id, None)
        if pending is not None:
            self._stop_timer(pending)

    @staticmethod
    def _stop_timer(pending: _Pending) -> None:
        if pending.timer is not None:
            pending.timer.cancel()
            pending.timer = None

    # Messages.

    def _report(self, report: Finished) -> None:
        if self.connected:
            self._send(Ended(report))
            return
        self._reports.append(report)
        if len(self._reports) > MAX_REPORTS:
            self._reports.popleft()
            self.dropped += 1

    def _send(self, message: FromRelay) -> None:
        """Sends a message with the others of this turn of the loop; without a stream, drops it."""
        if self._stream is None:
            return
        self._outbox.append(message)
        if not self._flushes:
            self._flushes = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushes = False
        stream = self._stream
        if stream is None:
            return
        if stream.full:
            if len(self._outbox) > MAX_OUTBOX:
                _log.warning("the picker does not read: its stream is broken off")
                stream.abort()
            return
        outbox, self._outbox = self._outbox, []
        for begin in range(0, len(outbox), _MESSAGES_OF_FRAME):
            stream.write(wire.frame(outbox[begin : begin + _MESSAGES_OF_FRAME]))


def _none() -> int:
    return 0


class _Stream(asyncio.Protocol):
    """A connection to the picker. Attributes: full: the picker does not read now."""

    def __init__(self, link: PickerLink, ended: asyncio.Future[None]) -> None:
        self.full = False
        self._link = link
        self._ended = ended
        self._frames = wire.Frames()
        self._transport: asyncio.Transport

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def close(self) -> None:
        """Closes it after what was written."""
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclasses
        self._link.opened(self)

    def data_received(self, data: bytes) -> None:
        try:
            for content in self._frames.feed(data):
                self._link.take(wire.from_picker.decode(content))
        except (ValueError, msgspec.MsgspecError) as error:
            _log.error("a message of the picker cannot be read: %s", error)
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._link.lost(self)
        if not self._ended.done():
            self._ended.set_result(None)

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        self.full = False
        self._link.flush()
