"""Scheduling of rounds: every service once in each interval, sooner after an event."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Generator, Hashable
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, Generic, TypeVar
from zlib import crc32

from inflight_base import logs
from inflight_base.manifest.keys import ServiceKey
from inflight_operator.pacing import Stretch, first_apart, rest
from inflight_operator.telemetry.metrics import OperatorMetrics

logger = logging.getLogger(__name__)

TICKS = 20
"""Number of parts of an interval; the services of a part have their rounds together."""

Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")


class WorkQueue(Generic[Key]):
    """The client-go work queue's contract: a key added while it is processed is returned again afterwards, a waiting
    key is not added twice. After it was processed a key rests."""

    def __init__(self) -> None:
        self._order: asyncio.Queue[Key] = asyncio.Queue()
        self._waiting: set[Key] = set()
        self._working: set[Key] = set()
        self._urgent: set[Key] = set()
        self._resting: dict[Key, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, key: Key, *, urgent: bool = False) -> None:
        """Adds a key. `urgent`: it is returned without the rest after the last time."""
        new = key not in self._waiting
        self._waiting.add(key)
        if key in self._working:
            if urgent:
                self._urgent.add(key)
        elif key in self._resting:
            if urgent:
                self._resting[key].cancel()
                self._rested(key)
        elif new:
            self._order.put_nowait(key)

    async def take(self) -> Key:
        """Returns the key that has waited longest; `done` must follow."""
        key = await self._order.get()
        self._waiting.discard(key)
        self._working.add(key)
        return key

    def done(self, key: Key, rest: float = 0.0) -> None:
        """Ends the work on a key. `rest`: seconds until it is returned again."""
        self._working.discard(key)
        if key in self._urgent:
            self._urgent.discard(key)
            rest = 0.0
        self._resting[key] = asyncio.get_running_loop().call_later(rest, self._rested, key)

    def _rested(self, key: Key) -> None:
        del self._resting[key]
        if key in self._waiting:
            self._order.put_nowait(key)


class Busy(Generic[Result]):
    """Awaits a coroutine and counts the seconds for which it keeps the event loop busy, not those in which it waits."""

    def __init__(self, work: Coroutine[Any, Any, Result]) -> None:
        self.seconds = 0.0
        self._work = work

    def __await__(self) -> Generator[Any, Any, Result]:
        step: Callable[[], Any] = partial(self._work.send, None)
        while True:
            began = monotonic()
            try:
                waits_for = step()
            except StopIteration as end:
                result: Result = end.value
                return result
            finally:
                self.seconds += monotonic() - began
            try:
                step = partial(self._work.send, (yield waits_for))
            except BaseException as error:  # such as a cancellation
                step = partial(self._work.throw, error)


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Attributes:
    interval: seconds between two rounds of a service.
    concurrency: services worked on at once.
    """

    interval: float = 3.0
    concurrency: int = 64


class Workers:
    """Gives each service its rounds. Run it while this process is the leader.

    Args:
        reconcile: runs one round for one service, and returns whether all its writes were accepted; an exception
            affects that service alone.
        services: services that need a round in each interval.
        round_done: called after each round, including failed ones.
        stretch: told how late the event loop is.
    """

    def __init__(
        self,
        reconcile: Callable[[ServiceKey], Coroutine[Any, Any, bool]],
        services: Callable[[], Collection[ServiceKey]],
        round_done: Callable[[], None],
        metrics: OperatorMetrics,
        settings: WorkerSettings,
        stretch: Stretch | None = None,
    ) -> None:
        self._reconcile = reconcile
        self._services = services
        self._round_done = round_done
        self._metrics = metrics
        self._settings = settings
        self._stretch = stretch or Stretch()
        self._queue: WorkQueue[ServiceKey] = WorkQueue()
        self._begun = False

    def enqueue(self, key: ServiceKey, *, urgent: bool = False) -> None:
        """Requests a round for this service soon, after a change. Before `run` there is no need: it begins with a round
        for each service.

        Args:
            urgent: at once, even if a round has just ended.
        """
        if self._begun:
            self._queue.add(key, urgent=urgent)

    async def run(self) -> None:
        """Runs until cancelled."""
        self._begun = True
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._first())
            tasks.create_task(self._resync())
            for _ in range(self._settings.concurrency):
                tasks.create_task(self._work())

    async def _first(self) -> None:
        """Enqueues all services, spread over at most one interval."""
        services = self._services()
        apart = first_apart(len(services), self._settings.interval)
        for key in services:
            self._queue.add(key)
            await asyncio.sleep(apart)

    async def _resync(self) -> None:
        """Enqueues each service at its own offset in the interval, to spread the rounds."""
        tick, due = 0, monotonic()
        while True:
            tick += 1
            due += self._settings.interval * self._stretch.factor / TICKS
            await asyncio.sleep(due - monotonic())
            lag = monotonic() - due
            self._stretch.note(lag)
            due += lag  # what was missed is not made up for
            services = self._services()
            self._metrics.services.set(len(services))
            for key in services:
                if crc32(f"{key}".encode()) % TICKS == tick % TICKS:
                    self._queue.add(key)

    async def _work(self) -> None:
        while True:
            key = await self._queue.take()
            started, busy = monotonic(), Busy(self._reconcile(key))
            try:
                with logs.about(key):
                    done = await busy
                self._metrics.reconciles.labels("done" if done else "failed").inc()
            except Exception:  # an error in one service must not stop the others; its next round is scheduled
                self._metrics.reconciles.labels("failed").inc()
                with logs.about(key):
                    logger.exception("the round of %s failed", key)
            finally:
                self._metrics.reconcile_seconds.observe(monotonic() - started)
                self._round_done()
                self._queue.done(key, rest(busy.seconds))
