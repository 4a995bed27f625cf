"""Scrapes of the engines of all services, independent of rounds, and their results."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from time import monotonic

from inflight_base.manifest.keys import ServiceKey
from inflight_base.page.page_process import PageProcess
from inflight_base.page.scraper import Engine, Scraper
from inflight_operator.observe.history import History
from inflight_operator.observe.metrics import READER, Sample, read_page
from inflight_operator.observe.window import Window
from inflight_operator.pacing import first_apart

MAX_BACK_OFF = 4
"""Maximum scrape intervals between two scrapes of a pod that fails."""

LARGE_PAGE = 2**18
"""Bytes of a page; one of twice as many and more is read in every other interval: a page of 800 kB takes some 12 ms of
CPU. Only the samples that are read are asked for, so pages of real engines are much smaller."""

_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Target:
    """A pod to scrape.

    Attributes:
        url: of its metrics page, such as `http://IP:PORT/metrics`, an IPv6 address in brackets.
        names: names of samples on its page that differ from those that are read, by those.
    """

    uid: str
    name: str
    url: str
    names: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True, eq=False, kw_only=True)
class _Pod(Engine):
    """A pod and the results of its scrapes.

    Attributes:
        service: the service that it belongs to.
        error: why the last scrape failed; empty after a success.
    """

    service: ServiceKey
    name: str
    history: History | None = None
    error: str = ""

    @property
    def path(self) -> str:
        """The path of its page, for sentences."""
        return "/" + self.url.split("/", 3)[3]


class ScrapePool(Scraper[_Pod]):
    """Scrapes all pods of all services.

    Args:
        interval: seconds between two scrapes of a pod.
        timeout: seconds for one scrape, from connecting to the last byte.
        span: seconds that windows look back; see `Window`.
        concurrency: maximum scrapes in flight.
        stale_after: age in seconds from which a sample is stale.
        stretch: factor of `interval`, `timeout` and `stale_after` now.
        queued: called when the engines of a service have a queue, in one of them at least as many requests as run, and
            each time that it has doubled, until it is less than a quarter.
    """

    def __init__(
        self,
        interval: float,
        timeout: float = 2.0,
        span: float = 30.0,
        concurrency: int = 256,
        stale_after: float = math.inf,
        stretch: Callable[[], float] = lambda: 1.0,
        queued: Callable[[ServiceKey], None] = lambda key: None,
    ) -> None:
        super().__init__(
            "inflight-operator",
            READER.query,
            interval=interval,
            timeout=timeout,
            concurrency=concurrency,
            max_back_off=MAX_BACK_OFF,
            large_page=LARGE_PAGE,
            stale_after=stale_after,
            stretch=stretch,
        )
        self._span = span
        self._queued = queued
        self._process = PageProcess(read_page, Sample)
        self._services: dict[ServiceKey, dict[str, _Pod]] = {}
        self._told: dict[ServiceKey, int] = {}
        """Requests in the engines' queues when `queued` was last called, by service; none where the queue is gone."""

    def keep(self, key: ServiceKey, targets: Collection[Target]) -> None:
        """Sets the pods of the service to scrape; data of other pods is dropped. The first scrapes of many pods are
        spread."""
        pods, new = self._services.setdefault(key, {}), 0
        apart = first_apart(len(targets), self._interval)
        for target in targets:
            pod = pods.get(target.uid)
            if pod is None:
                pods[target.uid] = pod = _Pod(
                    target.uid, target.url, target.names, str(key), service=key, name=target.name
                )
                self.add(pod, new * apart)
                new += 1
            else:
                pod.name, pod.url, pod.names = target.name, target.url, target.names
        for uid in pods.keys() - {target.uid for target in targets}:
            self.drop(pods.pop(uid))

    async def first_results(self, key: ServiceKey, within: float) -> None:
        """Returns when all pods of the service have been scraped, or after `within` seconds."""
        pods, until = self._services.get(key, {}), monotonic() + within
        while True:
            if monotonic() >= until or all(pod.history is not None or pod.error for pod in pods.values()):
                return
            await asyncio.sleep(_POLL_SECONDS)

    def forget(self, key: ServiceKey) -> None:
        """Stops scraping the service."""
        self._told.pop(key, None)
        for pod in self._services.pop(key, {}).values():
            self.drop(pod)

    def close(self) -> None:
        """Stops scraping all services."""
        for key in list(self._services):
            self.forget(key)
        self._process.close()
        super().close()

    def window(self, key: ServiceKey) -> Window:
        """Returns the samples of the service's pods, without pods that had no sample for `span` seconds."""
        pods, oldest = self._services.get(key, {}), monotonic() - self._span
        known = {uid: pod.history for uid, pod in pods.items() if pod.history is not None}
        return Window(self._span, {uid: history for uid, history in known.items() if history.newest.time >= oldest})

    def errors(self, key: ServiceKey) -> Mapping[str, str]:
        """Returns the errors of pods whose last scrape failed, by uid."""
        return {uid: pod.error for uid, pod in self._services.get(key, {}).items() if pod.error}

    def scraped(self, engine: _Pod, body: bytes, began: float) -> None:
        self._take_sample(engine, read_page(body, began))

    async def scraped_large(self, engine: _Pod, body: bytes, began: float) -> None:
        limit = self._timeout * self._stretch()
        self._take_sample(engine, await self._process.read(body, engine.names, [began], limit))

    def _take_sample(self, engine: _Pod, sample: Sample) -> None:
        known = engine.history
        engine.history = History.of(sample) if known is None else known.with_sample(sample, self._span)
        engine.error = ""
        if known is not None:
            self._note_queue(engine.service, known.newest.waiting, sample)

    def _note_queue(self, key: ServiceKey, before: int, sample: Sample) -> None:
        """Calls `queued` if it is due. Args: before: requests in this engine's queue until now."""
        told, grown = self._told.get(key, 0), sample.waiting > before
        if grown and sample.waiting >= max(1, sample.running):
            if (queue := self.queue(key)) >= 2 * told:
                self._told[key] = queue
                self._queued(key)
        elif told and not grown and 4 * self.queue(key) < told:
            del self._told[key]

    def queue(self, key: ServiceKey) -> int:
        """Returns the requests in the queues of a service's engines."""
        pods = self._services.get(key, {}).values()
        return sum(pod.history.newest.waiting for pod in pods if pod.history is not None)

    async def failed(self, engine: _Pod, error: Exception, reason: str) -> None:
        if isinstance(error, TimeoutError):
            engine.error = f"{engine.name} did not answer {engine.path} within {self._timeout:g} s"
        else:
            for ours, theirs in engine.names.items():
                reason = reason.replace(ours, theirs)
            engine.error = f"{engine.name}: {engine.path}: {reason}"
