"""Scheduling of rounds: every service once in each interval, sooner after an event."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Hashable
from dataclasses import dataclass
from time import monotonic
from typing import Generic, TypeVar
from zlib import crc32

from inflight_base import logs
from inflight_base.manifest.keys import ServiceKey
from inflight_operator.telemetry.metrics import OperatorMetrics

logger = logging.getLogger(__name__)

TICKS = 20
"""Number of parts of an interval; the services of a part have their rounds together."""

Key = TypeVar("Key", bound=Hashable)


class WorkQueue(Generic[Key]):
    """The client-go work queue's contract: a key added while it is processed is returned again afterwards, a waiting
    key is not added twice."""

    def __init__(self) -> None:
        self._order: asyncio.Queue[Key] = asyncio.Queue()
        self._waiting: set[Key] = set()
        self._working: set[Key] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, key: Key) -> None:
        if key in self._waiting:
            return
        self._waiting.add(key)
        if key not in self._working:
            self._order.put_nowait(key)

    async def take(self) -> Key:
        """Returns the key that has waited longest; `done` must follow."""
        key = await self._order.get()
        self._waiting.discard(key)
        self._working.add(key)
        return key

    def done(self, key: Key) -> None:
        self._working.discard(key)
        if key in self._waiting:
            self._order.put_nowait(key)


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
    """

    def __init__(
        self,
        reconcile: Callable[[ServiceKey], Awaitable[bool]],
        services: Callable[[], Collection[ServiceKey]],
        round_done: Callable[[], None],
        metrics: OperatorMetrics,
        settings: WorkerSettings,
    ) -> None:
        self._reconcile = reconcile
        self._services = services
        self._round_done = round_done
        self._metrics = metrics
        self._settings = settings
        self._queue: WorkQueue[ServiceKey] = WorkQueue()

    def enqueue(self, key: ServiceKey) -> None:
        """Requests a round for this service soon, after a change."""
        self._queue.add(key)

    async def run(self) -> None:
        """Runs until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._resync())
            for _ in range(self._settings.concurrency):
                tasks.create_task(self._work())

    async def _resync(self) -> None:
        """Enqueues all services at once, then each at its own offset in the interval, to spread the rounds."""
        for key in self._services():
            self._queue.add(key)
        tick, began = 0, monotonic()
        while True:
            tick += 1
            await asyncio.sleep(max(0.0, began + tick * self._settings.interval / TICKS - monotonic()))
            services = self._services()
            self._metrics.services.set(len(services))
            for key in services:
                if crc32(f"{key}".encode()) % TICKS == tick % TICKS:
                    self._queue.add(key)

    async def _work(self) -> None:
        while True:
            key = await self._queue.take()
            started = monotonic()
            try:
                with logs.about(key):
                    done = await self._reconcile(key)
                self._metrics.reconciles.labels("done" if done else "failed").inc()
            except Exception:  # an error in one service must not stop the others; its next round is scheduled
                self._metrics.reconciles.labels("failed").inc()
                with logs.about(key):
                    logger.exception("the round of %s failed", key)
            finally:
                self._metrics.reconcile_seconds.observe(monotonic() - started)
                self._round_done()
                self._queue.done(key)
