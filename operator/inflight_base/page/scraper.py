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

from inflight_base.http.engine_pool import EngineConnection, EnginePool, Loss
from inflight_base.http.heads import Headers, find
from inflight_base.page.names import renamed
from inflight_base.page.places import Places, Turns
from inflight_base.page.reader import PageError

logger = logging.getLogger(__name__)

MAX_BODY = 2**20
"""Most bytes of a metrics page. A whole page of vLLM has 50 to 100 kB for each of its engines."""

MAX_ERROR = 200
"""Most characters of an error that are kept; an engine may have written them."""

_SMALL_PAGE, _LARGE_AT_ONCE, _PLACE_SECONDS = 2**17, 64, 0.25
"""Bytes of a page from which it is read on only together with so many others, and the seconds after which one of these
gives way to another, sooner if many services wait: hostile engines must not fill the memory, nor keep the pages of
others from being read."""

_RETRIES = 2
"""Failures in a row after which a scrape is tried again soon."""


class LostError(Exception):
    """There was no response, or none of HTTP; the message says why."""

    def __init__(self, loss: Loss, why: str) -> None:
        super().__init__(why)
        self.loss = loss


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

    @abstractmethod
    def scraped(self, engine: E, body: bytes, began: float) -> None:
        """Takes a page whose scrape began at `began` on the monotonic clock.

        Raises:
            ValueError: it is not an engine's page; `failed` is called with it.
        """

    async def scraped_large(self, engine: E, body: bytes, began: float) -> None:
        """Takes a page of more than `_SMALL_PAGE` bytes, with the engine's own names, as `scraped` does. Few are taken
        at a time."""
        self.scraped(engine, renamed(body, engine.names), began)

    @abstractmethod
    async def failed(self, engine: E, error: Exception, reason: str) -> None:
        """Takes the failure of a scrape. `reason`: the error in words, at most about `MAX_ERROR` characters."""

    def add(self, engine: E, delay: float = 0.0) -> None:
        """Scrapes the engine after `delay` seconds and in each interval."""
        self._num_engines += 1
        if delay > 0:
            engine.pending = asyncio.get_running_loop().call_later(delay, self._fall_due, engine)
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
        self._pool.close()

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
                engine.pending = task = asyncio.create_task(self._scrape(engine), name=f"scrape {engine.key}")
                task.add_done_callback(partial(self._ended, failing))

    def _ended(self, failing: bool, task: asyncio.Task[None]) -> None:
        self._num_running -= 1
        self._num_failing -= failing
        self._start()

    def _fall_due(self, engine: E) -> None:
        engine.pending = None
        (self._failing if engine.failures else self._due).add(engine.group, engine)
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

    async def _scrape(self, engine: E) -> None:
        began = monotonic()
        try:
            # A late event loop takes answers late that came in time.
            async with asyncio.timeout(self._timeout * self._stretch()) as limit:
                await self._take(engine, began, limit)
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
        if isinstance(error, (LostError, PageError, UnicodeDecodeError)):
            return str(error)[:MAX_ERROR] or type(error).__name__
        # A bug of this program with one engine must not end its scrapes.
        logger.error("scraping %s failed", engine.url, exc_info=error)
        return f"{type(error).__name__}: {str(error)[:MAX_ERROR]}"

    async def _take(self, engine: E, began: float, limit: asyncio.Timeout) -> None:
        """Takes the body of a plain 200; of any other response, as little as possible is read.

        Args:
            limit: of the time until the last byte.

        Raises:
            PageError: another status, an encoding, or more than `MAX_BODY` bytes.
            LostError: no response, or none of HTTP.
        """
        _, _, address, path = engine.url.split("/", 3)
        # A server with other names would leave them out of its page.
        query = b"" if engine.names else self._query
        request = b"".join((b"GET /", path.encode(), query, self._headers, address.encode(), b"\r\n\r\n"))
        page = _Page(engine, self._pool, address, request)
        try:
            if await page.read():
                self.scraped(engine, renamed(bytes(page.body), engine.names), began)
            else:
                async with self._large.held(engine.group, page.give_way):
                    await page.read()
                    limit.reschedule(None)
                    await self.scraped_large(engine, bytes(page.body), began)
        finally:
            page.cancel()


class _Page:
    """Reader of the response with a page. Attributes: body: what was read of the page."""

    __slots__ = ("_address", "_call", "_engine", "_error", "_large", "_news", "_pool", "_request", "body")

    def __init__(self, engine: Engine, pool: EnginePool, address: str, request: bytes) -> None:
        self.body: bytes | bytearray = b""
        self._engine = engine
        self._pool = pool
        self._address = address
        self._request = request
        self._large = False
        self._error: Exception | None = None
        self._news: asyncio.Future[None] | None = None
        self._call: EngineConnection | None = None
        self._send(fresh=False)

    async def read(self) -> bool:
        """Reads the page; returns False once in between, if it is large.

        Raises:
            PageError, LostError: see `Scraper`.
        """
        if self._call is not None:
            if self._large:
                self._call.resume()
            self._news = asyncio.get_running_loop().create_future()
            await self._news
        if self._error is not None:
            raise self._error
        return self._call is None

    def cancel(self) -> None:
        """Ends the call, if it has not ended, with its connection: the rest of the body is not read."""
        call, self._call = self._call, None
        if call is not None:
            call.cancel()

    def give_way(self) -> None:
        """Ends the call: others wait for the place of this page."""
        self._fail(PageError(f"{len(self.body)} bytes came before it was another's turn"))

    def _send(self, *, fresh: bool) -> None:
        self._call = call = self._pool.call(self._address, self, fresh=fresh)
        call.write(self._request)
        call.sent = True

    def _fail(self, error: Exception) -> None:
        self._error = error
        self.cancel()
        self._wake()

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    # Called by the connection.

    def head(self, status: int, headers: Headers) -> None:
        encoding, length = find(headers, b"content-encoding"), int(find(headers, b"content-length") or 0)
        if status != 200:
            self._fail(PageError(f"HTTP {status}"))
        elif encoding is not None and encoding.lower() != b"identity":
            self._fail(PageError(f"Content-Encoding {encoding.decode('latin-1')[:40]!r} was not asked for"))
        elif length > MAX_BODY:
            self._fail(PageError(f"{length} bytes, more than {MAX_BODY}"))

    def data(self, data: bytes) -> None:
        if not self.body:
            self.body = data
        else:
            if isinstance(self.body, bytes):
                self.body = bytearray(self.body)
            self.body += data
        self._engine.page_bytes = size = len(self.body)
        if size > MAX_BODY:
            self._fail(PageError(f"more than {MAX_BODY} bytes"))
        elif size > _SMALL_PAGE and not self._large and self._call is not None:
            self._large = True
            self._call.pause()
            self._wake()

    def ended(self) -> None:
        self._call = None
        self._wake()

    def lost(self, loss: Loss) -> None:
        call, self._call = self._call, None
        if loss is Loss.STALE:
            self._send(fresh=True)
        else:
            self._fail(LostError(loss, "" if call is None else call.why))

    def engine_writable(self, *, now: bool) -> None:
        pass
