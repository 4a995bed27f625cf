"""Scraper of engines' metrics pages: each engine at its own offset in the interval, so that a slow or hostile one
delays no other."""

from __future__ import annotations

import asyncio
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Generic, TypeVar
from zlib import crc32

from inflight_base.http.engine_pool import EnginePool
from inflight_base.page.names import renamed
from inflight_base.page.places import Places, Turns
from inflight_base.page.reader import PageError
from inflight_base.page.response import LostError, PageResponse
from inflight_base.page.timetable import Timetable

logger = logging.getLogger(__name__)

MAX_ERROR = 200
"""Most characters of an error that are kept; an engine may have written them."""

_LARGE_AT_ONCE, _PLACE_SECONDS = 64, 0.25
"""Number of large pages that are read together, and the seconds after which one of these gives way to another, sooner
if many services wait: hostile engines must not fill the memory, nor keep the pages of others from being read."""

_LOOK_SECONDS = 0.1
"""Longest time between two looks for scrapes that take too long, which end late by so much."""

_RETRIES = 2
"""Failures in a row after which a scrape is tried again soon."""


@dataclass(slots=True, eq=False)
class Engine:
    """An engine that is scraped.

    Attributes:
        key: key from which its offset in the interval is derived.
        url: of its metrics page, such as `http://IP:PORT/metrics`, an IPv6 address in brackets.
        names: names of samples on its page that differ from those that are read, by those.
        group: what engines of one owner have in common, such as their service.
        failures: consecutive failures. page_bytes: bytes of the last page that were read.
        pending: the scrape in flight, or the report of its failure; None in between.
        kept: False once it is no longer scraped.
    """

    key: str
    url: str
    names: Mapping[str, str] = field(default_factory=dict)
    group: str = ""
    failures: int = 0
    page_bytes: int = 0
    pending: PageResponse | asyncio.Task[None] | None = None
    kept: bool = True


@dataclass(slots=True)
class ScrapeCounts:
    """Scrapes since the start, by result."""

    done: int = 0
    failed: int = 0


E = TypeVar("E", bound=Engine)


class Scraper(ABC, Generic[E]):
    """GETs the metrics pages of engines, each once in `interval`. Subclasses read the pages and keep the results.

    An engine is scraped when it is added, then at its own offset in each interval. After consecutive failures it is
    scraped less often, at least once in `max_back_off` intervals. A connection to each is kept from scrape to scrape.
    Where scrapes wait for others to end, the groups of their engines take turns, and engines whose last scrape failed
    have half of the places at most. Single-threaded: everything happens in the event loop.

    Args:
        agent: `User-Agent` of the requests.
        query: query of the URL, see `PageReader.query`.
        interval: minimum seconds between two scrapes of an engine.
        timeout: seconds for one scrape, from connecting to the last byte.
        concurrency: maximum scrapes in flight.
        max_per_second: most scrapes of all engines together; above it each engine is scraped less often.
        large_page: bytes; an engine whose page is n times as large is scraped once in n intervals: a hostile one takes
            no larger part of the time for reading pages.
        stale_after: seconds after which a sample is of no use: large pages are scraped before if intervals are shorter.
        retry: seconds after the first two failures until the next scrape; None: as after a success.
        stretch: factor of `interval`, `timeout` and `stale_after` now.
    """

    def __init__(
        self,
        agent: str,
        query: str,
        *,
        interval: float,
        timeout: float,
        concurrency: int,
        max_per_second: float = math.inf,
        max_back_off: int = 1,
        large_page: float = math.inf,
        stale_after: float = math.inf,
        retry: float | None = None,
        stretch: Callable[[], float] = lambda: 1.0,
    ) -> None:
        self.counts = ScrapeCounts()
        # The time of a scrape is limited as a whole. What an engine sends is told by its error.
        self._pool = EnginePool(connect_s=None, max_idle=math.inf, warn=False)
        accept = "Accept: text/plain; version=0.0.4\r\nAccept-Encoding: identity"
        self._headers = f" HTTP/1.1\r\n{accept}\r\nUser-Agent: {agent}\r\nHost: ".encode()
        self._query = f"?{query}".encode()
        self._interval = interval
        self._timeout = timeout
        self._concurrency = concurrency
        self._max_per_second = max_per_second
        self._max_back_off = max_back_off
        self._large_page = large_page
        self._stale_after = stale_after
        self._retry = retry
        self._stretch = stretch
        self._num_engines = 0
        self._num_running = 0
        self._due: Turns[E] = Turns()
        self._failing: Turns[E] = Turns()
        self._num_failing = 0
        self._large = Places(_LARGE_AT_ONCE, _PLACE_SECONDS, timeout / 2)
        self._later: Timetable[E] = Timetable(self._fall_due)
        self._reading: set[PageResponse] = set()
        self._look: asyncio.TimerHandle | None = None

    @abstractmethod
    def scraped(self, engine: E, body: bytes, began: float) -> None:
        """Takes a page whose scrape began at `began` on the monotonic clock.

        Raises:
            ValueError: it is not an engine's page; `failed` is called with it.
        """

    @abstractmethod
    async def scraped_large(self, engine: E, body: bytes, began: float) -> None:
        """Takes a page of more than `SMALL_PAGE` bytes, with the engine's own names, as `scraped` does. Few are taken
        at a time."""

    @abstractmethod
    async def failed(self, engine: E, error: Exception, reason: str) -> None:
        """Takes the failure of a scrape. `reason`: the error in words, at most about `MAX_ERROR` characters."""

    def add(self, engine: E, delay: float = 0.0) -> None:
        """Scrapes the engine after `delay` seconds and in each interval."""
        self._num_engines += 1
        if delay > 0:
            self._later.add(delay, engine)
        else:
            self._fall_due(engine)

    def drop(self, engine: E) -> None:
        """Stops scraping the engine; a scrape in flight has no result."""
        self._num_engines -= 1
        engine.kept = False
        if engine.pending is not None:
            engine.pending.cancel()

    def close(self) -> None:
        """Closes the connections; no engine is scraped any more."""
        self._later.clear()
        if self._look is not None:
            self._look.cancel()
        self._pool.close()

    def _fall_due(self, engine: E) -> None:
        if engine.kept:
            (self._failing if engine.failures else self._due).add(engine.group, engine)
            self._start()

    def _start(self) -> None:
        while self._num_running < self._concurrency:
            failing = len(self._failing) > 0 and self._num_failing < (self._concurrency + 1) // 2
            due = self._failing if failing else self._due
            if not due:
                return
            engine = due.next()
            if engine.kept:
                self._num_running += 1
                self._num_failing += failing
                self._scrape(engine, failing=failing)

    def _scrape(self, engine: E, *, failing: bool) -> None:
        # A late event loop takes answers late that came in time.
        deadline = asyncio.get_running_loop().time() + self._timeout * self._stretch()
        response = PageResponse(
            self._pool,
            monotonic(),
            deadline,
            partial(self._over, engine, failing),
            partial(self._hold, engine, failing),
        )
        engine.pending = response
        self._reading.add(response)
        if self._look is None:
            self._look_later()
        try:
            _, _, address, path = engine.url.split("/", 3)
            # A server with other names would leave them out of its page.
            query = b"" if engine.names else self._query
            request = b"".join((b"GET /", path.encode(), query, self._headers, address.encode(), b"\r\n\r\n"))
            response.send(address, request)
        except Exception as error:
            response.fail(error)

    def _look_later(self) -> None:
        self._look = asyncio.get_running_loop().call_later(min(_LOOK_SECONDS, self._timeout / 4), self._end_late)

    def _end_late(self) -> None:
        """Ends the scrapes that take too long."""
        self._look, now = None, asyncio.get_running_loop().time()
        for response in [one for one in self._reading if one.deadline <= now]:
            response.fail(TimeoutError())
        if self._reading:
            self._look_later()

    def _hold(self, engine: E, failing: bool, response: PageResponse) -> None:
        """Reads the rest of a large page, and takes the page, once it has a place."""
        response.whole = asyncio.Event()
        held = self._held(engine, failing, response, response.whole)
        response.place = asyncio.create_task(held, name=f"scrape {engine.key}")

    async def _held(self, engine: E, failing: bool, response: PageResponse, whole: asyncio.Event) -> None:
        error: Exception | None = None
        async with self._large.held(engine.group, response.give_way):
            response.resume()
            await whole.wait()  # another end of the response cancels this
            try:
                await self.scraped_large(engine, bytes(response.body), response.began)
            except Exception as problem:
                error = problem
        self._taken(engine, error, failing)

    def _over(self, engine: E, failing: bool, response: PageResponse) -> None:
        """Takes the end of a response."""
        self._reading.discard(response)
        if response.size:
            engine.page_bytes = response.size
        error, place = response.error, response.place
        if place is not None and response.whole is not None:
            if error is None and engine.kept:
                engine.pending = place
                place.add_done_callback(lambda task: self._finish(engine, failing) if task.cancelled() else None)
                response.whole.set()
                return
            place.cancel()
        if error is None and engine.kept:
            try:
                self.scraped(engine, renamed(bytes(response.body), engine.names), response.began)
            except Exception as problem:
                error = problem
        self._taken(engine, error, failing)

    def _taken(self, engine: E, error: Exception | None, failing: bool) -> None:
        """Notes the result of a scrape. Args: error: why it has none."""
        if not engine.kept:
            self._finish(engine, failing)
        elif error is not None:
            self._report(engine, error, failing)
        else:
            self.counts.done += 1
            engine.failures = 0
            self._finish(engine, failing)

    def _report(self, engine: E, error: Exception, failing: bool) -> None:
        self.counts.failed += 1
        engine.failures += 1
        engine.pending = task = asyncio.create_task(self.failed(engine, error, self._reason(engine, error)))
        task.add_done_callback(lambda _: self._finish(engine, failing))

    def _finish(self, engine: E, failing: bool) -> None:
        engine.pending = None
        if engine.kept:
            self._later.add(self._wait(engine, asyncio.get_running_loop().time()), engine)
        self._num_running -= 1
        self._num_failing -= failing
        self._start()

    def _wait(self, engine: E, now: float) -> float:
        """Seconds until the engine's next scrape: until its offset nearest to one interval from now, or to its
        back-off."""
        if self._retry is not None and 0 < engine.failures <= _RETRIES:
            return self._retry
        interval = max(self._interval * self._stretch(), self._num_engines / self._max_per_second)
        intervals = 1 if engine.failures < 2 else min(2 ** min(engine.failures - 1, 10), self._max_back_off)
        if engine.page_bytes > self._large_page:
            # The offset may be half an interval later, and the page takes its time.
            fresh = (self._stale_after - self._timeout) * self._stretch() / interval - 0.5
            intervals *= max(1, math.floor(min(engine.page_bytes / self._large_page, fresh)))
        moment = crc32(engine.key.encode()) / 2**32 * interval
        earliest = now + (intervals - 0.5) * interval
        return moment + math.ceil((earliest - moment) / interval) * interval - now

    def _reason(self, engine: E, error: Exception) -> str:
        if isinstance(error, TimeoutError):
            return f"no answer within {self._timeout:g} s"
        if isinstance(error, (LostError, PageError, UnicodeDecodeError)):
            return str(error)[:MAX_ERROR] or type(error).__name__
        # A bug of this program with one engine must not end its scrapes.
        logger.error("scraping %s failed", engine.url, exc_info=error)
        return f"{type(error).__name__}: {str(error)[:MAX_ERROR]}"
