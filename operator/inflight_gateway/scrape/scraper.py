"""Reads the metrics page of every endpoint once a second."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from contextlib import suppress
from time import monotonic
from zlib import crc32

import aiohttp
from yarl import URL

from inflight_base.page.reader import PageError
from inflight_gateway.scrape.page import WANTED, read_page
from inflight_gateway.scrape.samples import Samples

logger = logging.getLogger(__name__)

INTERVAL_SECONDS = 1.0

MOST_PER_SECOND = 250
"""Scrapes of all engines together: one takes about 0.6 ms of the picker's one core. Where there are more engines, each
is scraped less often."""

TIMEOUT_SECONDS = 1.0
"""For one page, from connecting to the last byte."""

CONNECT_SECONDS = 0.5
"""For a TCP connection to an engine that does not answer the scrape."""

MAX_BODY = 2**20
"""Most bytes of a page. A whole page of vLLM has 50 to 100 kB."""

MAX_ERROR = 200
"""Most characters of an error that are kept; an engine may have written them."""

_QUERY = "&".join(f"name%5B%5D={name}" for name in WANTED)
"""Asks for the needed samples alone. prometheus_client's servers know it; others ignore it and send all they have."""

_HEADERS = {
    "Accept": "text/plain; version=0.0.4",
    "Accept-Encoding": "identity",
    "User-Agent": "inflight-gateway",
}
_NO_TIMEOUT = aiohttp.ClientTimeout()
"""`Scraper` limits the time of a scrape as a whole, so aiohttp's own limits are off."""


def metrics_session() -> aiohttp.ClientSession:
    """A session that keeps one connection to each engine from scrape to scrape."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=3 * INTERVAL_SECONDS)
    return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())


class Scraper:
    """Keeps `samples` fresh for the current endpoints. Runs in the event loop.

    Args:
        http: see `metrics_session`; closed by the caller.
        interval: seconds between two scrapes of an engine, at least. Each engine has its own offset in it.
        clock: of `EngineSample.at`.
    """

    def __init__(
        self,
        samples: Samples,
        http: aiohttp.ClientSession,
        interval: float = INTERVAL_SECONDS,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._samples = samples
        self._http = http
        self._interval = interval
        self._clock = clock
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def keep(self, addresses: Collection[str]) -> None:
        """Sets the endpoints to scrape; new ones are scraped at once."""
        self._samples.keep(addresses, self._clock())
        for gone in self._tasks.keys() - set(addresses):
            self._tasks.pop(gone).cancel()
        for address in addresses:
            if address not in self._tasks:
                self._tasks[address] = asyncio.create_task(self._follow(address), name=f"scrape {address}")

    def close(self) -> None:
        """Stops scraping; samples stay."""
        for task in self._tasks.values():
            task.cancel()
        self._tasks.clear()

    async def _follow(self, address: str) -> None:
        loop = asyncio.get_running_loop()
        url = URL(f"http://{address}/metrics?{_QUERY}", encoded=True)
        phase = crc32(address.encode()) / 2**32
        while True:
            try:
                await self._scrape(address, url)
            except Exception:
                # An unexpected page must not end the scrapes of its engine; this is a gateway bug.
                logger.exception("scraping %s failed", address)
            # Its next offset at least half an interval away: timers may fire slightly early.
            interval = max(self._interval, len(self._tasks) / MOST_PER_SECOND)
            earliest = loop.time() + interval / 2
            await asyncio.sleep(interval / 2 + (phase * interval - earliest) % interval)

    async def _scrape(self, address: str, url: URL) -> None:
        at, connected = self._clock(), False
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                page = await self._page(url)
            sample = read_page(page, at)
        except PageError as error:
            connected, reason = True, str(error)
        except TimeoutError:
            reason = f"no answer within {TIMEOUT_SECONDS:g} s"
            connected = await _takes_connections(address)
        except aiohttp.ClientError as error:
            reason = str(error) or type(error).__name__
            connected = not isinstance(error, aiohttp.ClientConnectorError)
        else:
            self._samples.scraped(address, sample, self._clock())
            return
        self._samples.failed(address, reason[:MAX_ERROR], connected=connected, now=self._clock())

    async def _page(self, url: URL) -> bytes:
        """The body of a plain 200; of any other response, as little as possible is read.

        Raises:
            PageError: another status, an encoding, or more than `MAX_BODY` bytes.
            aiohttp.ClientError: no response, or none of HTTP.
        """
        async with self._http.get(
            url,
            headers=_HEADERS,
            allow_redirects=False,
            auto_decompress=False,
            timeout=_NO_TIMEOUT,
        ) as response:
            try:
                if response.status != 200:
                    raise PageError(f"HTTP {response.status}")
                if (encoding := response.headers.get("Content-Encoding", "identity")).lower() != "identity":
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


async def _takes_connections(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except (OSError, TimeoutError):
        return False
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return True
