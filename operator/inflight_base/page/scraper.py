"""Scraping of engines, independent of rounds: each pod has its own offset in the interval, so that a slow or hostile
pod delays no other."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from time import monotonic
from zlib import crc32

import aiohttp
from yarl import URL

from inflight_base.manifest.keys import ServiceKey
from inflight_base.page.reader import PageError
from inflight_operator.observe.history import History
from inflight_operator.observe.metrics import WANTED, Sample, parse_metrics
from inflight_operator.observe.window import Window

logger = logging.getLogger(__name__)

MAX_BODY = 2**20
"""Most bytes of a metrics page. A whole page of vLLM has 50 to 100 kB for each of its engines."""

MAX_ERROR = 200
"""Most characters of an error that are shown; a pod may have written them."""

MAX_BACK_OFF = 4
"""Most scrape intervals between two scrapes of a pod that fails."""

_QUERY = "&".join(f"name%5B%5D={name}" for name in WANTED)
"""Asks for the needed samples alone. prometheus_client's servers know it; others ignore it and send all they have."""

_HEADERS = {
    "Accept": "text/plain; version=0.0.4",
    "Accept-Encoding": "identity",
    "User-Agent": "inflight-operator",
}
_NO_TIMEOUT = aiohttp.ClientTimeout()
"""`ScrapePool` limits the time of a scrape as a whole, so aiohttp's own limits are off."""


@dataclass(frozen=True, slots=True)
class Target:
    """One pod to scrape.

    Attributes:
        url: `http://IP:PORT/metrics`, an IPv6 address in brackets.
    """

    uid: str
    name: str
    url: str


@dataclass(slots=True)
class ScrapeCounts:
    """Scrapes since the start, by result."""

    done: int = 0
    failed: int = 0


@dataclass(slots=True, eq=False)
class _Pod:
    """A target and the results of its scrapes.

    Attributes:
        failures: consecutive failures.
        error: why the last scrape failed; empty after a success.
        timer: until the next scrape; None while the scrape is queued or in flight.
        kept: False once the service no longer has this pod.
    """

    target: Target
    history: History | None = None
    failures: int = 0
    error: str = ""
    timer: asyncio.TimerHandle | None = None
    kept: bool = True


def metrics_session(interval: float) -> aiohttp.ClientSession:
    """A session for `ScrapePool`: a connection is kept for each pod from scrape to scrape, no cookies are stored.

    Args:
        interval: seconds between two scrapes of a pod.
    """
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=3 * interval)
    return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())


class ScrapePool:
    """GETs the metrics pages of all pods of all services, each once in `interval`, and keeps the results.

    A pod is scraped when it is added, then at its own offset in each interval, which is derived from its uid. After
    consecutive failures it is scraped less often, at least once in `MAX_BACK_OFF` intervals. Single-threaded:
    everything happens in the event loop.

    Args:
        http: see `metrics_session`.
        interval: seconds between two scrapes of a pod.
        timeout: seconds for one scrape, from connecting to the last byte.
        span: seconds that windows look back; see `Window`.
        concurrency: maximum scrapes in flight.
    """

    def __init__(
        self,
        http: aiohttp.ClientSession,
        interval: float,
        timeout: float = 2.0,
        span: float = 30.0,
        concurrency: int = 256,
    ) -> None:
        self.counts = ScrapeCounts()
        self._http = http
        self._interval = interval
        self._timeout = timeout
        self._span = span
        self._concurrency = concurrency
        self._services: dict[ServiceKey, dict[str, _Pod]] = {}
        self._due: asyncio.Queue[_Pod] = asyncio.Queue()

    async def run(self) -> None:
        """Scrapes until cancelled."""
        try:
            async with asyncio.TaskGroup() as workers:
                for _ in range(self._concurrency):
                    workers.create_task(self._work())
        finally:
            for key in list(self._services):
                self.forget(key)

    def keep(self, key: ServiceKey, targets: Collection[Target]) -> None:
        """Sets the pods of the service to scrape; data of other pods is dropped."""
        pods = self._services.setdefault(key, {})
        for target in targets:
            pod = pods.get(target.uid)
            if pod is None:
                pod = pods[target.uid] = _Pod(target)
                self._due.put_nowait(pod)
            elif pod.target != target:
                pod.target = target
        for uid in pods.keys() - {target.uid for target in targets}:
            _drop(pods.pop(uid))

    def forget(self, key: ServiceKey) -> None:
        """Stops scraping the service."""
        for pod in self._services.pop(key, {}).values():
            _drop(pod)

    def window(self, key: ServiceKey) -> Window:
        """Samples of the service's pods, without pods that had no sample for `span` seconds."""
        pods, oldest = self._services.get(key, {}), monotonic() - self._span
        known = {uid: pod.history for uid, pod in pods.items() if pod.history is not None}
        return Window(self._span, {uid: history for uid, history in known.items() if history.newest.time >= oldest})

    def errors(self, key: ServiceKey) -> Mapping[str, str]:
        """By uid, why the last scrape of a pod failed."""
        return {uid: pod.error for uid, pod in self._services.get(key, {}).items() if pod.error}

    async def _work(self) -> None:
        while True:
            pod = await self._due.get()
            if not pod.kept:
                continue
            sample, error = await self._scrape(pod.target)
            if not pod.kept:
                continue
            pod.error = error
            if sample is None:
                self.counts.failed += 1
                pod.failures += 1
            else:
                self.counts.done += 1
                pod.failures = 0
                known = pod.history
                pod.history = History.of(sample) if known is None else known.with_sample(sample, self._span)
            loop = asyncio.get_running_loop()
            pod.timer = loop.call_later(self._wait(pod, loop.time()), self._fall_due, pod)

    def _fall_due(self, pod: _Pod) -> None:
        pod.timer = None
        self._due.put_nowait(pod)

    def _wait(self, pod: _Pod, now: float) -> float:
        """Seconds until the pod's next scrape: until its offset nearest to one interval from now, or to its
        back-off."""
        intervals = 1 if pod.failures < 2 else min(2 ** (pod.failures - 1), MAX_BACK_OFF)
        moment = crc32(pod.target.uid.encode()) / 2**32 * self._interval
        earliest = now + (intervals - 0.5) * self._interval
        return moment + math.ceil((earliest - moment) / self._interval) * self._interval - now

    async def _scrape(self, target: Target) -> tuple[Sample | None, str]:
        """A sample, or the reason why there is none."""
        try:
            async with asyncio.timeout(self._timeout):
                page = await self._page(target.url)
            return parse_metrics(page.decode(), monotonic()), ""
        except TimeoutError:
            return None, f"{target.name} did not answer /metrics within {self._timeout:g} s"
        except (aiohttp.ClientError, PageError, UnicodeDecodeError) as error:
            return None, f"{target.name}: /metrics: {str(error)[:MAX_ERROR] or type(error).__name__}"
        except Exception as error:
            # Data of one pod must not affect the others: an operator bug is reported as this pod's error, and logged.
            logger.exception("scraping %s failed", target.name)
            return None, f"{target.name}: /metrics: {type(error).__name__}: {str(error)[:MAX_ERROR]}"

    async def _page(self, url: str) -> bytes:
        """The body of a plain 200; of any other response, as little as possible is read.

        Raises:
            PageError: another status, an encoding, or more than `MAX_BODY` bytes.
            aiohttp.ClientError: no response, or none of HTTP.
        """
        async with self._http.get(
            URL(f"{url}?{_QUERY}", encoded=True),
            headers=_HEADERS,
            allow_redirects=False,
            auto_decompress=False,
            timeout=_NO_TIMEOUT,
        ) as response:
            try:
                if response.status != 200:
                    raise PageError(f"HTTP {response.status}")
                encoding = response.headers.get("Content-Encoding", "identity")
                if encoding.lower() != "identity":
                    raise PageError(f"Content-Encoding {encoding[:40]!r} was not asked for")
                body = bytearray()
                async for chunk in response.content.iter_any():
                    body += chunk
                    if len(body) > MAX_BODY:
                        raise PageError(f"more than {MAX_BODY} bytes")
            except BaseException:
                response.close()  # not released: the rest of the body must not be read
                raise
        return bytes(body)


def _drop(pod: _Pod) -> None:
    """Stops scraping a pod; the result of a scrape in flight is discarded."""
    pod.kept = False
    if pod.timer is not None:
        pod.timer.cancel()
