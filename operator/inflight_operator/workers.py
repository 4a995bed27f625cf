"""Who works when: every service at each resync, sooner when an event asks, later when its rounds fail."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from time import monotonic

from inflight_operator.apply import ChildConflictError
from inflight_operator.apply.kube import KubeApiError
from inflight_operator.metrics import OperatorMetrics
from inflight_operator.observe.cache import ServiceKey
from inflight_operator.workqueue import WorkQueue

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Attributes:
    interval: seconds between two resyncs.
    concurrency: services worked on at once.
    longest_backoff: seconds that a service rests at most, whose rounds fail again and again.
    """

    interval: float = 3.0
    concurrency: int = 64
    longest_backoff: float = 30.0


@dataclass(frozen=True, slots=True)
class _Rest:
    """Rounds that failed in a row, and when a resync may try again."""

    failures: int
    until: float


class Workers:
    """Gives each service its rounds. Run it while this process is the leader.

    Args:
        round_for: one round for one service; what it raises counts against that service alone.
        services: all that need a round at each resync.
    """

    def __init__(
        self,
        round_for: Callable[[ServiceKey], Awaitable[None]],
        services: Callable[[], Collection[ServiceKey]],
        metrics: OperatorMetrics,
        settings: WorkerSettings,
    ) -> None:
        self._round_for = round_for
        self._services = services
        self._metrics = metrics
        self._settings = settings
        self._queue: WorkQueue[ServiceKey] = WorkQueue()
        self._resting: dict[ServiceKey, _Rest] = {}

    async def look_at(self, key: ServiceKey) -> None:
        """Asks for a round for this service soon, also while it rests: something about it has changed."""
        await self._queue.add(key)

    async def run(self) -> None:
        """Works until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._resync())
            for _ in range(self._settings.concurrency):
                tasks.create_task(self._work())

    async def _resync(self) -> None:
        while True:
            services = self._services()
            self._metrics.services.set(len(services))
            self._resting = {key: rest for key, rest in self._resting.items() if key in services}
            for key in services:
                rest = self._resting.get(key)
                if rest is None or rest.until <= monotonic():
                    await self._queue.add(key)
            await asyncio.sleep(self._settings.interval)

    async def _work(self) -> None:
        while True:
            key = await self._queue.take()
            started = monotonic()
            try:
                await self._round_for(key)
                self._metrics.reconciles.labels("done").inc()
                self._resting.pop(key, None)
            except Exception as error:  # whatever one service does, the others go on
                self._metrics.reconciles.labels("failed").inc()
                self._rest(key, error)
            finally:
                self._metrics.reconcile_seconds.observe(monotonic() - started)
                await self._queue.done(key)

    def _rest(self, key: ServiceKey, error: Exception) -> None:
        before = self._resting.get(key)
        failures = 1 if before is None else before.failures + 1
        pause = min(self._settings.interval * 2.0 ** min(failures, 20), self._settings.longest_backoff)
        self._resting[key] = _Rest(failures, monotonic() + pause)
        expected = isinstance(error, KubeApiError | ChildConflictError)
        logger.warning("%s rests for %.0f s: %s", key, pause, error, exc_info=None if expected else error)
