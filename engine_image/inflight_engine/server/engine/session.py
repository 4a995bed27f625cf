"""The engine process as the API process sees it: phase, connection, restarts, stalls and the configuration in force."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from msgspec import structs

from inflight_contract.errors import ApiError
from inflight_engine.messages import (
    SHORT_STEP_SECONDS,
    AddRequest,
    BlocksChanged,
    BlocksRead,
    Configured,
    EngineFailed,
    EngineReady,
    FromEngine,
    Loading,
    LongStep,
    RecordFlushed,
    Shutdown,
    Slept,
    Starting,
    StepReport,
    StepStats,
    ToEngine,
)
from inflight_engine.server.engine.calls import EngineCalls
from inflight_engine.server.engine.link import EngineLink
from inflight_engine.server.engine.phase import Phase, no_engine, shutting_down
from inflight_engine.server.engine.runtime_config import RuntimeConfig
from inflight_engine.server.engine.sleeping import Sleeping
from inflight_settings.engine import EngineConfig
from inflight_settings.limits import LimitsInForce

if TYPE_CHECKING:
    from inflight_engine.server.kv_events.publisher import KVEventPublisher  # imports ZeroMQ

NO_STATS = StepStats(0, 0, 0, 0.0, 0, 0, 0, 0, 0, 0, 0.0, 0.0)
"""Stats before the first step of an engine process."""

MOST_RESTARTS = 3
WINDOW_SECONDS = 600.0
"""A process that dies more often needs intervention, or a new container; the exit of the server triggers both."""

log = logging.getLogger(__name__)


class EngineListener(Protocol):
    """Receives the events of a session."""

    def __len__(self) -> int:
        """Number of requests that the engine has."""

    def received(self, message: StepReport | Starting, now: float) -> None:
        """The engine sent a message about requests or steps at `now`, in seconds on the monotonic clock."""

    def engine_lost(self, stats: StepStats) -> None:
        """The engine process is gone, and another one is started. `stats`: its last ones."""

    def engine_ready(self, ready: EngineReady, *, restarted: bool) -> None:
        """An engine process has loaded the model, and has the configuration in force. `restarted`: not the first."""


class EngineSession:
    """Engine processes of the server, one after the other. All methods run in the event loop.

    Attributes:
        failure: once set, why the engine cannot continue.
        failed_while: the phase before that.
        first_ready: the first engine process has loaded the model.
        started: set when requests are taken for the first time, or never will be: after a failure, or a signal to end.
        ready: report of the latest engine process after loading.
        loading: what the engine process has read of the weights; None before it begins, or if it does not say so.
        lost: set when a new engine process has to be started.
        lost_at: when the latest engine process was lost, seconds on the monotonic clock.
        taken_over: the process that loads the model was a spare one. If it is killed, another one is started.
        stats: state of the engine process after its latest step.
        record: file of the scheduling record; None: no recording.
        kv_events: publishes what the engine processes report of their prefix cache; None: they report nothing.
        listener: set by the registry of requests before the engine connects.
    """

    listener: EngineListener

    def __init__(self, config: EngineConfig) -> None:
        loop = asyncio.get_running_loop()
        self.phase = Phase.LOADING
        self.failure: asyncio.Future[str] = loop.create_future()
        self.failed_while = Phase.LOADING
        self.first_ready: asyncio.Future[EngineReady] = loop.create_future()
        self.started = asyncio.Event()
        self.ready: EngineReady | None = None
        self.loading: Loading | None = None
        self.lost = asyncio.Event()
        self.lost_at = 0.0
        self.taken_over = False
        self.stats = NO_STATS
        self.record = None if config.record is None else Path(config.record)
        self.progress = Progress(time.monotonic())
        self.link = EngineLink(self.receive, self.lose)
        self.calls = EngineCalls(self.send)
        self.runtime = RuntimeConfig(config.classes, self.calls)
        self.sleeping = Sleeping(config.sleep_after, self.calls)
        self.kv_events: KVEventPublisher | None = None
        self._restarts = Restarts()
        self._shut_down = False

    @property
    def stalled(self) -> bool:
        """The engine has work, and its step is overdue."""
        return self._overdue > 0

    @property
    def hung(self) -> bool:
        """The engine has stalled for so long that it should be killed."""
        return self._overdue > KILL_GRACE_SECONDS

    @property
    def _overdue(self) -> float:
        """Seconds."""
        if self.phase is not Phase.READY or not self._busy:
            return 0.0
        return self.progress.overdue(time.monotonic())

    @property
    def _busy(self) -> bool:
        return len(self.listener) > 0 or self.calls.waiting

    def not_ready(self) -> ApiError:
        """The error while no engine is running."""
        return no_engine(self.phase)

    async def open(self, limits: LimitsInForce) -> None:
        """The model is loaded in both processes: the engine takes requests, with these limits."""
        await self.runtime.start(limits, self.first_ready.result().capacity)
        self.phase = Phase.READY
        self.started.set()
        self.sleeping.used(time.monotonic())

    def send(self, *messages: ToEngine) -> None:
        """Queue messages; dropped while no engine is connected. All or (when one cannot be encoded) none."""
        if not self._busy:
            self.progress.made(time.monotonic())
        if any(isinstance(message, AddRequest) for message in messages):
            self.sleeping.used(time.monotonic())
        self.link.send(*messages)

    def sleep_if_due(self, now: float) -> None:
        """Let the engine sleep if it has had no requests for long enough (`now`: seconds, monotonic)."""
        if self.phase is Phase.READY and not self._busy and self.sleeping.due(now):
            self.sleeping.begin()

    def shut_down(self) -> None:
        """Ask the engine process to exit, after a drain; the end of its connection is no failure then."""
        self._shut_down = True
        self.send(Shutdown())
        self.calls.fail(shutting_down())

    def receive(self, message: FromEngine) -> None:
        """Take in one message of the engine."""
        now = time.monotonic()
        match message:
            case StepReport():
                self.stats = message.stats
                self.sleeping.used(now)
                self.progress.reported(message.step, now)
                self.listener.received(message, now)
            case Loading():
                self.loading = message
            case LongStep():
                self.progress.announced(message, now)
            case Starting():
                self.listener.received(message, now)
            case Configured():
                self.progress.made(now)
                self.runtime.applied(message)
                self.calls.answered(message)
            case RecordFlushed() | BlocksRead():
                self.progress.made(now)
                self.calls.answered(message)
            case Slept():
                self.progress.made(now)
                if message.stats is not None:
                    self.stats = message.stats
                self.sleeping.answered(message, now)
                self.calls.answered(message)
            case BlocksChanged():
                if self.kv_events is not None:
                    self.kv_events.publish(message.events)
            case EngineReady():
                self._loaded(message)
            case EngineFailed():
                self.lose(message.message)

    def lose(self, why: str | None) -> None:
        """The engine process died, or has to be killed; `why`: a sentence, None if only the exit status is known.

        A new one is started, if this one was loaded and there were not too many restarts recently.
        """
        if self._shut_down:
            return
        self.link.cut()
        self.loading = None
        now = time.monotonic()
        if self.phase is Phase.RESTARTING and self.taken_over and why is None:
            log.error("the spare engine process is gone while it took over; another one is started")
            self.lost_at = now
            self.lost.set()
            return
        if self.phase is not Phase.READY or not self._restarts.begin(now):
            self.fail(why or "")
            return
        log.error("%s; another one is started", why or "the engine process is gone")
        self.phase, self.lost_at = Phase.RESTARTING, now
        self.calls.fail(self.not_ready())
        self.sleeping.used(now)
        stats, self.stats = self.stats, NO_STATS
        self.listener.engine_lost(stats)
        self.lost.set()

    def fail(self, why: str) -> None:
        """The engine cannot continue; `why` is a sentence, or empty if only the exit status is known."""
        if not self.failure.done():
            self.failed_while, self.phase = self.phase, Phase.FAILED
            self.failure.set_result(why)
            self.started.set()
            self.calls.fail(self.not_ready())

    def _loaded(self, ready: EngineReady) -> None:
        if self.ready is not None and ready.runner.digest != self.ready.runner.digest:
            self.fail("the model's files have changed since this server first read them: start it again")
            return
        self.ready = ready
        if self.loading is not None:
            self.loading = structs.replace(self.loading, read_bytes=self.loading.total_bytes)
        self.progress = Progress(time.monotonic())
        self.link.open = True
        if self.kv_events is not None:
            self.kv_events.started(ready.runner.block_size)
        restarted = self.phase is Phase.RESTARTING
        if restarted:
            self.calls.resume()
            self.runtime.restore()
        self.listener.engine_ready(ready, restarted=restarted)
        if restarted:
            self.phase = Phase.READY
            self.sleeping.used(time.monotonic())
        elif not self.first_ready.done():
            self.first_ready.set_result(ready)


class Restarts:
    """Counts restarts within the window."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=MOST_RESTARTS)

    def begin(self, now: float) -> bool:
        """Count one at `now` (seconds, monotonic). False, and not counted: too many within the window."""
        if len(self._times) == MOST_RESTARTS and now - self._times[0] < WINDOW_SECONDS:
            return False
        self._times.append(now)
        return True


KILL_GRACE_SECONDS = 5.0
"""Time from when a step is overdue, and new requests should go elsewhere, until the engine process is killed."""


class Progress:
    """Deadline of the step that an engine process computes. All times are seconds on the monotonic clock."""

    def __init__(self, now: float) -> None:
        self._deadline = now + SHORT_STEP_SECONDS
        self._open: list[LongStep] = []
        """Steps that are announced and not reported: where steps overlap, one may be computed while the next one waits
        for it."""

    def made(self, now: float) -> None:
        """The engine sent a message, or an idle engine got work."""
        self._deadline = max(self._deadline, now + SHORT_STEP_SECONDS)

    def announced(self, step: LongStep, now: float) -> None:
        """A step starts that may take long."""
        self._open.append(step)
        self._deadline = max(self._deadline, now + step.seconds)

    def reported(self, step: int, now: float) -> None:
        """A step ended; -1: a report outside a step."""
        self._deadline = now + SHORT_STEP_SECONDS
        if self._open:
            self._open = [each for each in self._open if each.step > step]
            self._deadline = max([self._deadline, *(now + each.seconds for each in self._open)])

    def excuse(self, seconds: float) -> None:
        """This process was suspended for that time, so messages of the engine were not read."""
        self._deadline += seconds

    def overdue(self, now: float) -> float:
        """Seconds by which the current step is overdue; negative: not overdue."""
        return now - self._deadline
