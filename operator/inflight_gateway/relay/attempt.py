"""An attempt of a generation request: finds an engine that takes it, reads its response and enforces timeouts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from inflight_base.http.engine_pool import EngineConnection, Loss
from inflight_base.http.heads import Headers, find
from inflight_base.manifest.engines import CUSTOM, INFLIGHT, VLLM
from inflight_gateway.link.wire import Go
from inflight_gateway.relay.answers.frames import Frame, FrameParser, FrameTooLong
from inflight_gateway.relay.answers.kept import AnswerBytes
from inflight_gateway.relay.channels import CHANNEL, Beside, Lane
from inflight_gateway.relay.decide import Failure
from inflight_gateway.relay.shared import Shared
from inflight_gateway.request import headers as names
from inflight_gateway.types import ServiceConfig

GRACE_S = 0.1
"""Seconds between the moment when a byte is overdue and the end of the attempt: if this process itself was blocked,
the bytes that arrived meanwhile are read first."""

_MIN_PAUSE_S, _MAX_PAUSE_S = 0.025, 0.25
"""Bounds of the pause after an engine has refused the request."""

_IDLE_FRAMES, _IDLE_FRAMES_PER_S = 20, 2.0
"""Most frames without data and tokens, such as heartbeats: at once, and for each second of the attempt."""

_HEARTBEATS = 3
"""Heartbeats that an engine may miss, of those whose interval it chose."""

_JOINED_BYTES = 64 * 2**10
"""Longest body that is copied behind its head: two writes are two system calls."""

_PROGRESS = names.PROGRESS.encode()


class Owner(Protocol):
    """Receiver of an attempt. Gets `accepted` and `frames`, or `plain`, `plain_data` and `plain_ended`; `failed` at
    most once, and then nothing more.

    Attributes:
        kept_bytes: what it keeps of the answer; it sends all it can before it returns from `frames`.
        most_frame_bytes: most bytes of the next frame of a stream.
    """

    @property
    def kept_bytes(self) -> int: ...

    @property
    def most_frame_bytes(self) -> int: ...

    def accepted(self, headers: Headers, *, framed: bool) -> None:
        """The engine answers with a stream of known form. Args: framed: with progress frames."""

    def token(self, data: bytes, now: float) -> bool:
        """Takes a whole frame of one token, the usual data; returns False for any other data, which `frames` gets."""

    def frames(self, frames: Sequence[Frame], now: float) -> None: ...

    def long(self, begun: Frame) -> bool:
        """Takes the begin of a frame that is not to be kept until it is complete; returns False where it is no whole
        answer. Else `plain_data` gets the rest, then `plain_ended` is called.

        Raises:
            ValueError: its notes violate the protocol.
        """

    def plain(self, status: int, headers: Headers) -> None:
        """The engine sends no progress frames, or rejected the request: a plain response."""

    def plain_data(self, data: bytes) -> None: ...

    def plain_ended(self) -> None: ...

    def failed(self, failure: Failure) -> None: ...


class Attempt:
    """An attempt.

    Args:
        request: head and body.
        go: its engines, at least one.
        config: of its service.
        stream: the answer is a stream. continues: it has tokens already.
        reader: parser of a stream of vLLM; None: of another answer without progress frames, nothing is known.
        blocked: the client does not read now.

    Attributes:
        endpoint: engine that has the request, or had it when it failed; empty: none, it was refused.
        refused: engines that refused it before, by their connection or with 503.
        first_token_within_s: see `Go`.
    """

    def __init__(
        self,
        shared: Shared,
        owner: Owner,
        request: tuple[bytes, bytes],
        go: Go,
        kept: AnswerBytes,
        config: ServiceConfig,
        *,
        stream: bool,
        continues: bool,
        blocked: bool,
        reader: FrameParser | None = None,
    ) -> None:
        self.endpoint = ""
        self.refused: list[str] = []
        self._shared = shared
        self._owner = owner
        # Kept until the response begins, for another engine or another connection.
        self._request: tuple[bytes, bytes] | None = request
        self._endpoints = list(reversed(go.endpoints))
        self.first_token_within_s = go.first_token_within_s
        self._kept = kept
        self._config = config
        self._stream = stream
        self._continues = continues
        self._reader = reader
        self._blocked = blocked
        self._loop = asyncio.get_running_loop()
        self._parser: FrameParser | None = None
        self._passes = False
        """The rest of a whole answer passes as it comes."""
        self._call: EngineConnection | None = None
        self._lane: Lane | None = None
        """The way of its events, beside its connection."""
        self._timer: asyncio.TimerHandle | None = None
        self._silence_s = shared.tuning.head_s
        self._heard_at = self._begun_at = 0.0
        self._idle_frames = 0
        self._first_token_by: float | None = None
        self._resent = self._over = False
        self._next()

    def _next(self) -> None:
        self.endpoint = self._endpoints.pop()
        self._send(fresh=False)

    def _send(self, *, fresh: bool) -> None:
        assert self._request is not None
        self._resent = fresh
        head, body = self._request
        self._lane = lane = self._shared.channels.lane(self.endpoint, self._config.key, self) if self._stream else None
        if lane is None:
            self._call = self._shared.pool.call(self.endpoint, self, fresh=fresh)
        else:
            self._call = self._shared.pool.call(self.endpoint, Beside(self), fresh=fresh)
            head = b"%b%b: %b\r\n\r\n" % (head[:-2], CHANNEL, lane.name)
        if len(body) <= _JOINED_BYTES:
            self._call.write(head + body)
        else:
            self._call.write(head)
            self._call.write(body)
        self._call.sent = True
        self._heard_at = self._loop.time()
        kind = self._shared.type_of(self.endpoint, self._config)
        # A stream of vLLM begins when the request is queued, as ours do; any other answer may begin when it is whole.
        if self._config.continuation and (kind == INFLIGHT or (kind == VLLM and self._stream)):
            self._watch(self._heard_at + self._silence_s)

    def first_token(self) -> None:
        """Notes that the first token has arrived."""
        self._first_token_by = None
        if self._reader is not None:
            self._silent_after(min(self._silence_s, self._shared.tuning.mute_s))

    def cancel(self) -> None:
        """Close the connection, so that the engine stops."""
        self._finish()
        if self._call is not None:
            self._call.cancel()

    def read_rest(self) -> None:
        """Discards the rest of the response, which is complete."""
        beside = self._lane is not None
        self._finish()
        if self._call is not None:
            self._call.read_rest(awaited=beside)

    def client_writable(self, *, now: bool) -> None:
        self._blocked = not now
        if now:
            self._heard_at = self._loop.time()
            if self._first_token_by is not None:
                self._first_token_by = max(self._first_token_by, self._heard_at + self._silence_s)
        reads = self._lane or self._call
        if reads is not None and self._request is None:
            if now:
                reads.resume()
            else:
                reads.pause()

    # Called by the connection to the engine.

    def head(self, status: int, headers: Headers) -> None:
        assert self._call is not None
        if status == 503 and self._endpoints:
            self._call.read_rest()
            self._refused()
            return
        self._request = None
        number = find(headers, CHANNEL)
        if self._lane is not None and number != b"%d" % self._lane.number:
            self._end_lane()
        if self._blocked and self._lane is None:
            self._call.pause()
        events = self._reader is not None and (find(headers, b"content-type") or b"").startswith(b"text/event-stream")
        framed = find(headers, _PROGRESS) is not None
        if framed and not self._continues:  # a pod of another type than its service
            self._reader = None
        if status == 200:
            kind = self._shared.type_of(self.endpoint, self._config)
            self._shared.answered(self.endpoint, INFLIGHT if framed else CUSTOM if kind == INFLIGHT else kind)
        if status != 200 or not (events or framed):
            self._stop_timer()
            self._end_lane()
            self._owner.plain(status, headers)
            return
        if number is not None and self._lane is None and self._stream:
            sign = self._shared.admission.engine_headers.to_set
            self._shared.channels.offered(self.endpoint, self._config.key, partial(sign, self._config, ""))
        tuning = self._shared.tuning
        if self._reader is None:
            self._parser = FrameParser()
            self._silence_s = tuning.silence_s
        else:
            self._parser = self._reader
            self._silence_s = max(tuning.mute_s, self.first_token_within_s)
        self._heard_at = self._begun_at = self._loop.time()
        self._first_token_by = self._heard_at + self.first_token_within_s
        self._watch(self._overdue_at())
        self._owner.accepted(headers, framed=framed)
        if self._lane is not None:
            self._lane.begin(reads=not self._blocked)

    @property
    def in_channel(self) -> bool:
        """True if its events come in a channel."""
        return self._lane is not None

    def connection_ended(self) -> None:
        """Forgets its connection, which may have another request; its events come in the channel."""
        self._call = None

    def data(self, data: bytes) -> None:
        parser = self._parser
        if parser is None:
            self._pass(data)
            size = self._owner.kept_bytes
        else:
            before, now = self._heard_at, self._loop.time()
            self._heard_at = now
            if not parser.size and self._owner.token(data, now):
                return
            try:
                frames = parser.feed(data)
            except FrameTooLong:
                self._too_much()
                return
            except ValueError:
                self._fail(Failure.GARBLED)
                return
            if len(frames) != 1 or not frames[0].data:
                idle = sum(map(_is_idle, frames))
                if idle and self._reader is not None:  # heartbeats, as often as the engine was asked for
                    self._silent_after(max(self._shared.tuning.silence_s, _HEARTBEATS * (now - before)))
                self._idle_frames += idle
                if self._idle_frames > _IDLE_FRAMES + _IDLE_FRAMES_PER_S * (now - self._begun_at):
                    self._fail(Failure.EXCESS)
                    return
            if frames:
                self._owner.frames(frames, now)
            size = parser.size + self._owner.kept_bytes
        if self._over:
            return
        if parser is not None and self._stream and parser.size > self._owner.most_frame_bytes:
            self._fail(Failure.EXCESS)
        elif not self._kept.fits(size):
            self._too_much()

    def _too_much(self) -> None:
        """Keeps no more of the answer: a whole one passes from now on, without another attempt, any other fails."""
        begun = None if self._parser is None or self._stream else self._parser.begun()
        try:
            if begun is None or not self._owner.long(begun):
                self._fail(Failure.EXCESS)
                return
        except ValueError:
            self._fail(Failure.GARBLED)
            return
        self._parser, self._passes, self._first_token_by = None, True, None
        self._kept.fits(self._owner.kept_bytes)

    def _pass(self, data: bytes) -> None:
        if not self._passes:
            self._owner.plain_data(data)
            return
        self._heard_at = self._loop.time()
        data, end, _ = data.partition(b"\n")
        if data:
            self._owner.plain_data(data)
        if end:
            self.read_rest()
            self._owner.plain_ended()

    def ended(self) -> None:
        if self._parser is None and not self._passes:
            self._over = True
            self._owner.plain_ended()
        else:
            self._fail(Failure.CUT)

    def lost(self, loss: Loss) -> None:
        if loss is Loss.STALE:
            self._end_lane()
            self._send(fresh=True)
        elif loss is Loss.REFUSED and not self._resent:
            self._refused()
        else:
            # Also an engine that closed an idle connection at the request and then takes no other: it may have died
            # with the request.
            self._fail(Failure.GARBLED if loss is Loss.GARBLED else Failure.CUT)

    def engine_writable(self, *, now: bool) -> None:
        """Ignores it: the body is written at once, as it is in memory anyway."""

    def _refused(self) -> None:
        """Tries the next engine after a pause, with jitter, so that requests that were refused together spread."""
        self._stop_timer()
        self._end_lane()
        self._call = None
        self.refused.append(self.endpoint)
        self.endpoint = ""
        if self._endpoints:
            longest = min(_MAX_PAUSE_S, _MIN_PAUSE_S * 4 ** len(self.refused))
            self._timer = self._loop.call_later(random.uniform(_MIN_PAUSE_S, longest), self._next)
        else:
            self._fail(Failure.UNREACHABLE)

    # Timeouts.

    def _silent_after(self, seconds: float) -> None:
        if seconds < self._silence_s:
            self._silence_s = seconds
            self._watch(self._overdue_at())

    def _overdue_at(self) -> float:
        silent_at = self._heard_at + self._silence_s
        return silent_at if self._first_token_by is None else min(silent_at, self._first_token_by)

    def _watch(self, when: float) -> None:
        self._stop_timer()
        self._timer = self._loop.call_at(when, self._check_overdue)

    def _check_overdue(self, *, again: bool = False) -> None:
        """Fails the attempt if a byte or the first token is overdue, else sets the timer again."""
        now = self._loop.time()
        overdue_at = self._overdue_at()
        if self._blocked and self._request is None:  # nothing is read, so nothing is overdue
            self._watch(now + self._silence_s)
        elif now < overdue_at:
            self._watch(overdue_at)
        elif not again:
            self._timer = self._loop.call_later(GRACE_S, lambda: self._check_overdue(again=True))
        else:
            silent = now >= self._heard_at + self._silence_s
            self._fail(Failure.SILENT if silent else Failure.LATE)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end_lane(self) -> None:
        lane, self._lane = self._lane, None
        if lane is not None:
            lane.end()

    def _finish(self) -> None:
        self._stop_timer()
        self._end_lane()
        self._over = True

    def _fail(self, failure: Failure) -> None:
        self.cancel()
        self._owner.failed(failure)


def _is_idle(frame: Frame) -> bool:
    return not frame.data and not any(note.startswith((b"t ", b"f ", b"s ")) for note in frame.notes)
