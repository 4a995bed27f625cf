"""Scrapes of the metrics pages of all endpoints, once a second."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic

from inflight_base.http.engine_pool import Loss
from inflight_base.manifest.engines import EngineType
from inflight_base.page.page_process import PageProcess
from inflight_base.page.response import LostError
from inflight_base.page.scraper import Engine, Scraper
from inflight_gateway.scrape.page import READER, read_page
from inflight_gateway.scrape.samples import Samples
from inflight_gateway.types import Endpoint, EngineSample, ServiceConfig
from inflight_settings.limits import DEFAULT_LIMITS

INTERVAL_SECONDS = 1.0

MAX_PER_SECOND = 500
"""Most scrapes of all engines together in a second: a scrape takes 0.4 to 0.6 ms of the picker's one core. With more
engines, each is scraped less often: 5,000 engines every 10 s, within `pick.load.STALE_S` if one scrape is lost."""

RETRY_SECONDS = 1.0
"""Seconds until a lost scrape is repeated, however rarely an engine is scraped."""

LARGE_PAGE = 2**16
"""Bytes of a page; an engine with one of twice as many and more is scraped less often. A page of vLLM has 50 to 100 kB,
one of ours 2 kB; reading a hostile one of 1 MiB takes some 20 ms, from 128 KiB on in a process of its own."""

MAX_AT_ONCE = 2 * MAX_PER_SECOND
"""Most scrapes in flight: a hanging engine takes `TIMEOUT_SECONDS` and `CONNECT_SECONDS`, and so delays no other."""

TIMEOUT_SECONDS = 1.0
"""Longest time for a page, from connecting to the last byte."""

CONNECT_SECONDS = 0.5
"""Longest time for a TCP connection to an engine that does not answer the scrape."""


@dataclass(slots=True, eq=False)
class _Scraped(Engine):
    """An endpoint. Attributes: pod: name; empty: unknown. max_num_seqs: its slots where its page does not have them."""

    pod: str = ""
    max_num_seqs: int = DEFAULT_LIMITS.max_num_seqs


class EndpointScraper(Scraper[_Scraped]):
    """Keeps `samples` fresh for the current endpoints. Runs in the event loop.

    Args:
        interval: seconds between two scrapes of an engine, at least. Each engine has its own offset in it.
        stale_after: seconds after which a sample is of no use.
    """

    def __init__(self, samples: Samples, interval: float = INTERVAL_SECONDS, *, stale_after: float = math.inf) -> None:
        super().__init__(
            "inflight-gateway",
            READER.query,
            interval=interval,
            timeout=TIMEOUT_SECONDS,
            concurrency=MAX_AT_ONCE,
            max_per_second=MAX_PER_SECOND,
            large_page=LARGE_PAGE,
            stale_after=stale_after,
            retry=RETRY_SECONDS * interval / INTERVAL_SECONDS,
        )
        self._samples = samples
        self._process = PageProcess(read_page, EngineSample)
        self._engines: dict[str, _Scraped] = {}

    def keep(self, services: Mapping[Endpoint, ServiceConfig]) -> None:
        """Sets the endpoints to scrape; new ones are scraped at once, many of them one after another.

        A pod keeps the page of the engine type that its service has when the pod comes: another type replaces pods.

        Args:
            services: configuration of the service of each endpoint.
        """
        addresses = {endpoint.address for endpoint in services}
        self._samples.keep(addresses)
        for gone in self._engines.keys() - addresses:
            self.drop(self._engines.pop(gone))
        new = 0
        for endpoint, config in services.items():
            address, url = endpoint.address, _page_url(endpoint.address, config.engine)
            known = self._engines.get(address)
            engine = known or _Scraped(address, url, group=str(config.key))
            if not endpoint.pod or engine.pod != endpoint.pod:
                engine.url, engine.names, engine.pod = url, config.engine.metrics, endpoint.pod
            engine.max_num_seqs = config.max_num_seqs
            if known is None:
                self._engines[address] = engine
                self.add(engine, delay=new / MAX_PER_SECOND)
                new += 1

    def close(self) -> None:
        """Stops scraping; samples stay."""
        for engine in self._engines.values():
            self.drop(engine)
        self._engines.clear()
        self._process.close()
        super().close()

    def scraped(self, engine: _Scraped, body: bytes, began: float) -> None:
        self._samples.scraped(engine.key, read_page(body, began, engine.max_num_seqs), monotonic())

    async def scraped_large(self, engine: _Scraped, body: bytes, began: float) -> None:
        more = began, engine.max_num_seqs
        sample = await self._process.read(body, engine.names, more, TIMEOUT_SECONDS)
        self._samples.scraped(engine.key, sample, monotonic())

    async def failed(self, engine: _Scraped, error: Exception, reason: str) -> None:
        connected = not isinstance(error, LostError) or error.loss is not Loss.REFUSED
        if isinstance(error, TimeoutError) or not engine.url.startswith(f"http://{engine.key}/"):
            connected = await _takes_connections(engine.key)
        self._samples.failed(engine.key, reason, connected=connected, now=monotonic())


def _page_url(address: str, engine: EngineType) -> str:
    if engine.metrics_port is not None:
        address = f"{address.rpartition(':')[0]}:{engine.metrics_port}"
    return f"http://{address}{engine.metrics_path}"


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
