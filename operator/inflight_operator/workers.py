"""Scheduling of rounds: every service once in each interval, sooner after an event.

A round keeps the event loop for milliseconds, so no two begin in the same turn of the loop: answers of engines and of
the API server are taken in between.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator, Hashable
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from time import monotonic
from typing import Any, Generic, NamedTuple, TypeVar
from zlib import crc32

from inflight_base import logs
from inflight_base.manifest.keys import ServiceKey
from inflight_operator.pacing import MOST_STRETCH, Stretch, first_apart, rest
from inflight_operator.telemetry.metrics import OperatorMetrics

logger = logging.getLogger(__name__)

TICKS = 20
"""Number of parts of an interval; the rounds of the services of a part are spread over it."""

Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")


class _Due(NamedTuple, Generic[Key]):
    """When a key is due, in seconds of the steady clock. Attributes: number: of its addition, unlike any other."""

    at: float
    number: int
    key: Key


class WorkQueue(Generic[Key]):
    """The client-go work queue's contract: a key added while it is processed is returned again afterwards, a waiting
    key is not added twice. After it was processed a key rests. The key that is due first is returned first, so that
    keys with time do not delay those without, and none waits for ever."""

    def __init__(self) -> None:
        self._order: list[_Due[Key]] = []
        """A heap. Of a key only the entry in `_waiting` counts."""
        self._ready = asyncio.Semaphore(0)
        self._waiting: dict[Key, _Due[Key]] = {}
        self._working: set[Key] = set()
        self._urgent: set[Key] = set()
        self._resting: dict[Key, asyncio.TimerHandle] = {}
        self._added = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, key: Key, *, within: float = 0.0, urgent: bool = False) -> None:
        """Adds a key.

        Args:
            within: seconds for which it may wait while others have less time.
            urgent: it is returned without the rest after the last time.
        """
        self._added += 1
        before, due = self._waiting.get(key), _Due(monotonic() + within, self._added, key)
        earlier = before is None or due < before
        if earlier:
            self._waiting[key] = due
        if key in self._working:
            if urgent:
                self._urgent.add(key)
        elif key in self._resting:
            if urgent:
                self._resting[key].cancel()
                self._rested(key)
        elif earlier:
            heappush(self._order, due)
            if before is None:
                self._ready.release()

    async def take(self) -> Key:
        """Returns the key that is due first; `done` must follow."""
        await self._ready.acquire()
        while True:
            due = heappop(self._order)
            if self._waiting.get(due.key) is due:
                break
        del self._waiting[due.key]
        self._working.add(due.key)
        return due.key

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
            heappush(self._order, self._waiting[key])
            self._ready.release()


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
    concurrency: int = 128


class Workers:
    """Gives each service its rounds. Run it while this process is the leader.

    Args:
        reconcile: runs one round for one service, and returns whether all its writes were accepted; an exception
            affects that service alone.
        services: services that need a round in each interval.
        round_done: called after each round, including failed ones.
        stretch: told how late the event loop is.
        look: called for each service before its first round, and returns whether that is urgent.
    """

    def __init__(
        self,
        reconcile: Callable[[ServiceKey], Coroutine[Any, Any, bool]],
        services: Callable[[], Collection[ServiceKey]],
        round_done: Callable[[], None],
        metrics: OperatorMetrics,
        settings: WorkerSettings,
        stretch: Stretch | None = None,
        look: Callable[[ServiceKey], Awaitable[bool]] | None = None,
    ) -> None:
        self._look = look or _not_urgent
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
            tasks.create_task(self._enqueue_all())
            free = asyncio.Semaphore(self._settings.concurrency)
            while True:
                await free.acquire()
                key = await self._queue.take()
                tasks.create_task(self._round(key)).add_done_callback(lambda _: free.release())
                await asyncio.sleep(0)

    async def _enqueue_all(self) -> None:
        await self._first()
        await self._resync()

    async def _first(self) -> None:
        """Looks at all services, spread over at most one interval, and enqueues each after that: scrapes take a
        fraction of a round's time, so those with a queue need not wait for rounds of the others."""
        services, began = self._services(), monotonic()
        apart = first_apart(len(services), self._settings.interval)
        async with asyncio.TaskGroup() as looks:
            for number, key in enumerate(services):
                if (wait := began + number * apart - monotonic()) > 0:
                    await asyncio.sleep(wait)
                looks.create_task(self._look_at(key))

    async def _look_at(self, key: ServiceKey) -> None:
        urgent = False
        try:
            urgent = await self._look(key)
        except Exception:  # as in a round
            with logs.about(key):
                logger.exception("the first look at %s failed", key)
        self._queue.add(key, within=0.0 if urgent else self._settings.interval)

    async def _resync(self) -> None:
        """Enqueues each service at its own offset in the interval, to spread the rounds."""
        tick, due = 0, monotonic()
        while True:
            tick, late = tick + 1, 0.0
            services = self._services()
            self._metrics.services.set(len(services))
            keys = [key for key in services if crc32(f"{key}".encode()) % TICKS == tick % TICKS]
            apart = self._settings.interval * self._stretch.factor / TICKS / (len(keys) + 1)
            for key in (*keys, None):
                due += apart
                await asyncio.sleep(due - monotonic())
                lag = monotonic() - due
                due += lag  # what was missed is not made up for
                late = max(late, lag)
                if key is not None:
                    self._queue.add(key, within=self._settings.interval * MOST_STRETCH)
            self._stretch.note(late)

    async def _round(self, key: ServiceKey) -> None:
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


async def _not_urgent(key: ServiceKey) -> bool:
    return False
