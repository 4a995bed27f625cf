"""Scraper of engines' metrics pages: each engine at its own offset in the interval, so that a slow or hostile one
delays no other."""

from __future__ import annotations

import asyncio
import logging
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from time import monotonic
from typing import Generic, TypeVar
from weakref import WeakValueDictionary
from zlib import crc32

import aiohttp
from yarl import URL

from inflight_base.page.names import renamed
from inflight_base.page.reader import PageError

logger = logging.getLogger(__name__)

MAX_BODY = 2**20
"""Most bytes of a metrics page. A whole page of vLLM has 50 to 100 kB for each of its engines."""

MAX_ERROR = 200
"""Most characters of an error that are kept; an engine may have written them."""

_SMALL_PAGE, _LARGE_AT_ONCE, _LARGE_OF_GROUP = 2**17, 64, 16
"""Bytes of a page from which it is read on only together with so many others, and with so many of its group: a number
of hostile engines must not fill the memory, nor those of one service keep the pages of others from being read. A place
is held for the timeout of a scrape at most."""

_RETRIES = 2
"""Failures in a row after which a scrape is tried again soon."""

_NO_TIMEOUT = aiohttp.ClientTimeout()
"""`Scraper` limits the time of a scrape as a whole, so aiohttp's own limits are off."""


@dataclass(slots=True, eq=False)
class Engine:
    """An engine that is scraped.

    Attributes:
        key: key from which its offset in the interval is derived.
        url: of its metrics page, such as `http://IP:PORT/metrics`, an IPv6 address in brackets.
        names: names of samples on its page that differ from those that are read, by those.
        group: what engines of one owner have in common, such as their service.
        failures: consecutive failures. page_bytes: bytes of the last page that were read.
        pending: the timer until the next scrape, or the scrape in flight; None while the scrape is queued.
        kept: False once it is no longer scraped.
    """

    key: str
    url: str
    names: Mapping[str, str] = field(default_factory=dict)
    group: str = ""
    failures: int = 0
    page_bytes: int = 0
    pending: asyncio.TimerHandle | asyncio.Task[None] | None = None
    kept: bool = True


@dataclass(slots=True)
class ScrapeCounts:
    """Scrapes since the start, by result."""

    done: int = 0
    failed: int = 0


E = TypeVar("E", bound=Engine)


def metrics_session(interval: float) -> aiohttp.ClientSession:
    """A session for `Scraper`: a connection is kept for each engine from scrape to scrape, no cookies are stored.

    Args:
        interval: seconds between two scrapes of an engine.
    """
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=3 * interval)
    return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())


class Scraper(ABC, Generic[E]):
    """GETs the metrics pages of engines, each once in `interval`. Subclasses read the pages and keep the results.

    An engine is scraped when it is added, then at its own offset in each interval. After consecutive failures it is
    scraped less often, at least once in `max_back_off` intervals. Single-threaded: everything happens in the event
    loop.

    Args:
        http: see `metrics_session`; closed by the caller.
        agent: `User-Agent` of the requests.
        query: query of the URL, see `PageReader.query`.
        interval: minimum seconds between two scrapes of an engine.
        timeout: seconds for one scrape, from connecting to the last byte.
        concurrency: maximum scrapes in flight.
        max_per_second: most scrapes of all engines together; above it each engine is scraped less often.
        large_page: bytes; an engine with a larger page is scraped less often, by as much as it is larger: a hostile
            one takes no larger part of the time for reading pages.
        retry: seconds after the first two failures until the next scrape; None: as after a success.
        stretch: factor of `interval` and `timeout` now.
    """

    def __init__(
        self,
        http: aiohttp.ClientSession,
        agent: str,
        query: str,
        *,
        interval: float,
        timeout: float,
        concurrency: int,
        max_per_second: float = math.inf,
        max_back_off: int = 1,
        large_page: float = math.inf,
        retry: float | None = None,
        stretch: Callable[[], float] = lambda: 1.0,
    ) -> None:
        self.counts = ScrapeCounts()
        self._http = http
        self._headers = {
            "Accept": "text/plain; version=0.0.4",
            "Accept-Encoding": "identity",
            "User-Agent": agent,
        }
        self._query = query
        self._interval = interval
        self._timeout = timeout
        self._concurrency = concurrency
        self._max_per_second = max_per_second
        self._max_back_off = max_back_off
        self._large_page = large_page
        self._retry = retry
        self._stretch = stretch
        self._num_engines = 0
        self._num_running = 0
        self._due: deque[E] = deque()
        self._large = asyncio.Semaphore(_LARGE_AT_ONCE)
        self._large_of: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @abstractmethod
    def scraped(self, engine: E, body: bytes, began: float) -> None:
        """Takes a page whose scrape began at `began` on the monotonic clock.

        Raises:
            ValueError: it is not an engine's page; `failed` is called with it.
        """

    @abstractmethod
    async def failed(self, engine: E, error: Exception, reason: str) -> None:
        """Takes the failure of a scrape. `reason`: the error in words, at most about `MAX_ERROR` characters."""

    def add(self, engine: E, delay: float = 0.0) -> None:
        """Scrapes the engine after `delay` seconds and in each interval."""
        self._num_engines += 1
        if delay > 0:
            engine.pending = asyncio.get_running_loop().call_later(delay, self._fall_due, engine)
        else:
            self._due.append(engine)
            self._start()

    def drop(self, engine: E) -> None:
        """Stops scraping the engine; a scrape in flight has no result."""
        self._num_engines -= 1
        engine.kept = False
        if engine.pending is not None:
            engine.pending.cancel()

    def _start(self) -> None:
        while self._due and self._num_running < self._concurrency:
            engine = self._due.popleft()
            if engine.kept:
                self._num_running += 1
                engine.pending = task = asyncio.create_task(self._scrape(engine), name=f"scrape {engine.key}")
                task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._num_running -= 1
        self._start()

    def _fall_due(self, engine: E) -> None:
        engine.pending = None
        self._due.append(engine)
        self._start()

    def _wait(self, engine: E, now: float) -> float:
        """Seconds until the engine's next scrape: until its offset nearest to one interval from now, or to its
        back-off."""
        if self._retry is not None and 0 < engine.failures <= _RETRIES:
            return self._retry
        interval = max(self._interval * self._stretch(), self._num_engines / self._max_per_second)
        interval *= max(1.0, engine.page_bytes / self._large_page)
        intervals = 1 if engine.failures < 2 else min(2 ** min(engine.failures - 1, 10), self._max_back_off)
        moment = crc32(engine.key.encode()) / 2**32 * interval
        earliest = now + (intervals - 0.5) * interval
        return moment + math.ceil((earliest - moment) / interval) * interval - now

    async def _scrape(self, engine: E) -> None:
        began = monotonic()
        try:
            # A late event loop takes answers late that came in time.
            async with asyncio.timeout(self._timeout * self._stretch()):
                body = renamed(await self._page(engine), engine.names)
            self.scraped(engine, body, began)
            self.counts.done += 1
            engine.failures = 0
        except Exception as error:
            self.counts.failed += 1
            engine.failures += 1
            await self.failed(engine, error, self._reason(engine, error))
        finally:
            if engine.kept:
                loop = asyncio.get_running_loop()
                engine.pending = loop.call_later(self._wait(engine, loop.time()), self._fall_due, engine)

    def _reason(self, engine: E, error: Exception) -> str:
        if isinstance(error, TimeoutError):
            return f"no answer within {self._timeout:g} s"
        if isinstance(error, (aiohttp.ClientError, PageError, UnicodeDecodeError)):
            return str(error)[:MAX_ERROR] or type(error).__name__
        # A bug of this program with one engine must not end its scrapes.
        logger.error("scraping %s failed", engine.url, exc_info=error)
        return f"{type(error).__name__}: {str(error)[:MAX_ERROR]}"

    async def _page(self, engine: E) -> bytes:
        """Returns the body of a plain 200; of any other response, as little as possible is read.

        Raises:
            PageError: another status, an encoding, or more than `MAX_BODY` bytes.
            aiohttp.ClientError: no response, or none of HTTP.
        """
        async with self._http.get(
            # A server with other names would leave them out of its page.
            URL(engine.url if engine.names else f"{engine.url}?{self._query}", encoded=True),
            headers=self._headers,
            allow_redirects=False,
            auto_decompress=False,
            timeout=_NO_TIMEOUT,
        ) as response:
            places = AsyncExitStack()
            large = False
            try:
                if response.status != 200:
                    raise PageError(f"HTTP {response.status}")
                encoding = response.headers.get("Content-Encoding", "identity")
                if encoding.lower() != "identity":
                    raise PageError(f"Content-Encoding {encoding[:40]!r} was not asked for")
                body = bytearray()
                async for chunk in response.content.iter_any():
                    body += chunk
                    engine.page_bytes = len(body)
                    if len(body) > MAX_BODY:
                        raise PageError(f"more than {MAX_BODY} bytes")
                    if len(body) > _SMALL_PAGE and not large:
                        large = True
                        await places.enter_async_context(self._places_of(engine.group))
                        await places.enter_async_context(self._large)
            except BaseException:
                response.close()  # not released: the rest of the body must not be read
                raise
            finally:
                await places.aclose()
        return bytes(body)

    def _places_of(self, group: str) -> asyncio.Semaphore:
        """Returns the places of a group, which exist while one of its pages is being read."""
        places = self._large_of.get(group)
        if places is None:
            self._large_of[group] = places = asyncio.Semaphore(_LARGE_OF_GROUP)
        return places
