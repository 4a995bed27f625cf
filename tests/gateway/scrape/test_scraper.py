"""Scraping engines over real sockets. The engines are fake: small servers with one behaviour each."""

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from inflight_base.http.engine_pool import Loss
from inflight_base.manifest.engines import EngineType
from inflight_base.manifest.keys import ServiceKey
from inflight_base.page.response import MAX_BODY
from inflight_gateway.pick import load as load_module
from inflight_gateway.pick.load import EndpointLoad, is_fresh
from inflight_gateway.scrape import samples as samples_module
from inflight_gateway.scrape import scraper as scraper_module
from inflight_gateway.scrape.page import read_page
from inflight_gateway.scrape.samples import Samples
from inflight_gateway.scrape.scraper import EndpointScraper
from inflight_gateway.types import Endpoint, ServiceConfig
from tests.base.virtual_time import in_virtual_time
from tests.gateway.waiting import until

PAGE = b"vllm:num_requests_running 3\n"
CONFIG = ServiceConfig(ServiceKey("ns", "svc"), "uid", "m")


def of_one_service(addresses, config=CONFIG):
    return {Endpoint(address, f"pod-{address}"): config for address in addresses}


def answer(body=PAGE, status="200 OK", **headers):
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


class FakeEngine:
    """Answers each request with `behaviour(writer)`. Attributes: heads: of requests. connections: accepted."""

    def __init__(self, behaviour):
        self.behaviour, self.heads, self.connections, self.writers = behaviour, [], 0, set()

    async def serve(self, reader, writer):
        self.connections += 1
        self.writers.add(writer)
        try:
            while True:
                self.heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
                await self.behaviour(writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def start(self, port=0):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", port)
        self.address = f"127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        return self

    async def stop(self):
        self.server.close()
        for writer in self.writers:
            writer.transport.abort()
        await self.server.wait_closed()


async def well(writer):
    writer.write(answer())


async def hang(writer):
    await asyncio.sleep(60)


async def no_metrics(writer):
    writer.write(answer(b"Not Found", "404 Not Found"))


async def endless(writer):
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
        await writer.drain()


async def zipped(writer):
    writer.write(answer(b"\x1f\x8b", Content_Encoding="gzip"))


async def elsewhere(writer):
    writer.write(answer(b"", "302 Found", Location="http://127.0.0.1:1/metrics"))


async def rubbish(writer):
    writer.write(b"220 this is not HTTP\r\n\r\n")


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    monkeypatch.setattr(scraper_module, "TIMEOUT_SECONDS", 0.2)
    monkeypatch.setattr(samples_module, "UNREACHABLE_AFTER_SECONDS", 0.3)


@asynccontextmanager
async def scraping(*behaviours, interval=0.05):
    engines = [await FakeEngine(behaviour).start() for behaviour in behaviours]
    samples = Samples()
    scraper = EndpointScraper(samples, interval)
    scraper.keep(of_one_service(engine.address for engine in engines))
    yield samples, scraper, engines
    scraper.close()
    for engine in engines:
        await engine.stop()


async def test_an_engine_is_scraped_again_and_again_over_one_connection_and_asked_for_few_names():
    async with scraping(well) as (samples, _, [engine]):
        await until(lambda: len(engine.heads) >= 4)
        assert samples.get(engine.address).running == 3
        assert samples.error(engine.address) == ""
        assert engine.connections == 1
        assert "name%5B%5D=vllm:num_requests_running&" in engine.heads[0]


@pytest.mark.parametrize(
    ("behaviour", "why"),
    [
        (no_metrics, "HTTP 404"),
        (endless, f"more than {MAX_BODY} bytes"),
        (zipped, "Content-Encoding 'gzip' was not asked for"),
        (elsewhere, "HTTP 302"),
        (rubbish, ""),
        (hang, "no answer within 0.2 s"),
    ],
)
async def test_an_engine_that_answers_badly_or_hangs_has_an_error_and_stays_reachable(behaviour, why):
    async with scraping(behaviour, well) as (samples, _, [bad, good]):
        await until(lambda: samples.error(bad.address))
        assert why in samples.error(bad.address)
        await asyncio.sleep(0.6)
        assert samples.reachable(bad.address)
        assert samples.get(bad.address) is None
        assert samples.get(good.address).running == 3


async def test_an_engine_that_is_gone_becomes_unreachable_keeps_its_sample_and_comes_back():
    async with scraping(well) as (samples, _, [engine]):
        await until(lambda: samples.get(engine.address) is not None)
        await engine.stop()
        await until(lambda: not samples.reachable(engine.address))
        assert samples.get(engine.address).running == 3
        again = await FakeEngine(well).start(int(engine.address.rpartition(":")[2]))
        await until(lambda: samples.reachable(engine.address))
        await again.stop()


async def test_engines_that_left_the_list_are_scraped_no_more():
    async with scraping(well, well) as (samples, scraper, [stays, leaves]):
        await until(lambda: samples.get(leaves.address) is not None)
        scraper.keep(of_one_service([stays.address]))
        await asyncio.sleep(0.05)
        before = len(leaves.heads), len(stays.heads)
        await until(lambda: len(stays.heads) >= before[1] + 3)
        assert len(leaves.heads) == before[0]
        assert samples.get(leaves.address) is None


LLAMA_CPP = {"vllm:num_requests_running": "llamacpp:requests_processing", "vllm:kv_cache_usage_perc": "kv"}


async def test_an_engine_with_other_names_is_read_by_those_of_its_service():
    async def other(writer):
        writer.write(answer(b'# HELP llamacpp:requests_processing x\nllamacpp:requests_processing 2\nkv{a="b"} 0.5\n'))

    engine = await FakeEngine(other).start()
    config = replace(CONFIG, engine=EngineType("custom", metrics_path="/stats", metrics=LLAMA_CPP), max_num_seqs=4)
    async with scraping() as (samples, scraper, _):
        scraper.keep(of_one_service([engine.address], config))
        await until(lambda: samples.get(engine.address) is not None)
    sample = samples.get(engine.address)
    assert (sample.running, sample.kv_utilization, sample.limits.max_num_seqs) == (2, 0.5, 4)
    assert engine.heads[0].startswith("GET /stats HTTP")
    await engine.stop()


@pytest.mark.parametrize(
    ("pod", "then", "pages"),
    [
        ("chat-old", "chat-old", ["/metrics"]),
        ("chat-old", "chat-new", ["/metrics", "/stats"]),
        ("", "", ["/metrics", "/stats"]),
    ],
    ids=["the same pod", "another pod with its address", "a file's endpoint without a pod"],
)
async def test_after_a_change_of_type_a_pod_keeps_the_page_of_the_type_that_it_came_with(pod, then, pages):
    async with scraping() as (_, scraper, _):
        engine = await FakeEngine(well).start()
        scraper.keep({Endpoint(engine.address, pod): CONFIG})
        await until(lambda: engine.heads)
        custom = replace(CONFIG, engine=EngineType("custom", metrics_path="/stats"))
        scraper.keep({Endpoint(engine.address, then): custom})
        before = len(engine.heads)
        await until(lambda: len(engine.heads) >= before + 3)
        read = [head.split("?")[0].removeprefix("GET ").split()[0] for head in engine.heads]
        assert list(dict.fromkeys(read)) == pages
        assert read[-1] == pages[-1]
        await engine.stop()


async def test_an_engine_whose_metrics_port_is_closed_stays_reachable():
    engine = await FakeEngine(well).start()
    async with scraping() as (samples, scraper, _):
        closed = replace(CONFIG, engine=EngineType("custom", metrics_port=1))
        scraper.keep(of_one_service([engine.address], closed))
        await until(lambda: samples.error(engine.address))
        await asyncio.sleep(0.5)
        assert samples.reachable(engine.address)
    await engine.stop()


async def test_large_pages_are_read_in_another_process_than_the_event_loops(monkeypatch):
    monkeypatch.setattr(scraper_module, "TIMEOUT_SECONDS", 60.0)
    here, samples, real = [], Samples(), EndpointScraper.scraped

    def scraped(scraper, engine, body, began):
        here.append(body)
        real(scraper, engine, body, began)

    monkeypatch.setattr(EndpointScraper, "scraped", scraped)
    large = PAGE + b'inflight_step_cost_seconds{term="base"} 0.01\n' + (b"# " + b"x" * 1000 + b"\n") * 200

    async def sends(writer):
        writer.write(answer(large))

    async def wrong(writer):
        writer.write(answer(large.replace(b"num_requests_running", b"other")))

    engines = [await FakeEngine(one).start() for one in (well, sends, wrong)]
    scraper = EndpointScraper(samples, interval=60.0)
    try:
        scraper.keep(of_one_service(one.address for one in engines))
        small, big, bad = (one.address for one in engines)
        await until(lambda: samples.get(small) and samples.get(big) and samples.error(bad))
        assert samples.get(big) == read_page(large, samples.get(big).at)
        assert samples.error(bad).startswith("vllm:num_requests_running is missing")
        assert here == [PAGE]
    finally:
        scraper.close()
        for one in engines:
            await one.stop()


class Pages(EndpointScraper):
    """A scraper of engines without sockets. Attributes: lost: addresses whose next scrape gets no answer. read: pages,
    by address. page: of all engines."""

    def __init__(self, samples, interval, **settings):
        super().__init__(samples, interval, **settings)
        self._pool = Answers(self)
        self.lost, self.read, self.page = set(), Counter(), PAGE

    async def scraped_large(self, engine, body, began):
        """Another process has no virtual time."""
        self.scraped(engine, body, began)


class Answers:
    """Stands in for the connections of `Pages`."""

    def __init__(self, pages):
        self.pages = pages

    def call(self, address, reader, *, fresh=False):
        return Answer(self.pages, address, reader)

    def close(self):
        pass


class Answer:
    """The answer to one request, whose end waits while it is paused."""

    why = "refused"

    def __init__(self, pages, address, reader):
        self.pages, self.address, self.reader, self.paused = pages, address, reader, False

    def write(self, request):
        asyncio.get_running_loop().call_soon(self.answer)

    def answer(self):
        if self.address in self.pages.lost:
            self.pages.lost.discard(self.address)
            self.reader.lost(Loss.REFUSED)
        elif self.reader is not None:
            self.pages.read[self.address] += 1
            self.reader.head(200, [])
            self.reader.data(self.pages.page)
            if not self.paused:
                self.reader.ended()

    def pause(self):
        self.paused = True

    def resume(self):
        self.reader.ended()

    def cancel(self):
        self.reader = None


@pytest.fixture
def clock(monkeypatch):
    """The clock of scrapers in virtual time."""

    def now():
        return asyncio.get_running_loop().time()

    for module in ("inflight_base.page.scraper", "inflight_gateway.scrape.scraper"):
        monkeypatch.setattr(f"{module}.monotonic", now)
    return now


@in_virtual_time
async def test_many_engines_are_scraped_less_often_each(monkeypatch, clock):
    monkeypatch.setattr(scraper_module, "MAX_PER_SECOND", 20)
    scraper = Pages(Samples(), 0.01)
    scraper.keep(of_one_service(f"10.0.0.{number}:8000" for number in range(10)))
    await until(lambda: len(scraper.read) == 10)
    before = scraper.read.total()
    await asyncio.sleep(2.0)
    assert 20 <= scraper.read.total() - before <= 60, "at 100 a second for each of ten engines there would be 2,000"
    scraper.close()


@in_virtual_time
async def test_with_3000_engines_samples_stay_fresh_and_one_lost_scrape_leaves_an_engine_reachable(monkeypatch, clock):
    """A tenth of the engines, at ten times the speed."""
    faster = 10
    for module, name in ((samples_module, "UNREACHABLE_AFTER_SECONDS"), (load_module, "STALE_S")):
        monkeypatch.setattr(module, name, {"STALE_S": 15.0}.get(name, 1.5) / faster)
    samples, addresses = Samples(), [f"10.0.0.{number}:8000" for number in range(3000 // faster)]
    scraper = Pages(samples, 1.0 / faster)
    unreachable = []
    samples.subscribe(lambda address, moved: unreachable.append(address) if moved else None)
    scraper.keep(of_one_service(addresses))
    await until(lambda: len(scraper.read) == len(addresses))
    for number in range(30):
        if number == 5:
            scraper.lost = set(addresses[::7])
        await asyncio.sleep(0.05)
        assert all(is_fresh(EndpointLoad(None, samples.get(each)), clock()) for each in addresses)
    assert unreachable == []
    scraper.close()


@in_virtual_time
async def test_engines_with_large_pages_are_scraped_less_often_by_as_much(monkeypatch, clock):
    monkeypatch.setattr(scraper_module, "LARGE_PAGE", 1000)
    samples = Samples()
    scraper = Pages(samples, 0.02)
    scraper.page = PAGE + b"x" * 10_000
    scraper.keep(of_one_service([A := "10.0.0.1:8000"]))
    await asyncio.sleep(1.0)
    assert 2 <= scraper.read[A] <= 8, "a small one would be scraped 50 times"
    scraper.close()


@pytest.mark.parametrize("size", [10**5, 4 * 10**5, MAX_BODY])
@pytest.mark.parametrize("engines", [1, 2000])
@in_virtual_time
async def test_samples_of_large_pages_are_never_stale(monkeypatch, clock, size, engines):
    samples, addresses = Samples(), [f"10.0.{number // 200}.{number % 200}:8000" for number in range(engines)]
    scraper = Pages(samples, 1.0, stale_after=load_module.STALE_S)
    scraper.page = PAGE + b"x" * (size - len(PAGE))
    scraper.keep(of_one_service(addresses))
    await until(lambda: len(scraper.read) == engines)
    for _ in range(40):
        await asyncio.sleep(1.0)
        assert all(is_fresh(EndpointLoad(None, samples.get(each)), clock()) for each in addresses[:20])
    scraper.close()


@in_virtual_time
async def test_engines_that_come_at_once_are_scraped_one_after_another(monkeypatch, clock):
    monkeypatch.setattr(scraper_module, "MAX_PER_SECOND", 200)
    scraper = Pages(Samples(), 1.0)
    scraper.keep(of_one_service(f"10.0.0.{number}:8000" for number in range(100)))
    await asyncio.sleep(0.1)
    assert 5 <= len(scraper.read) <= 50
    await until(lambda: len(scraper.read) == 100)
    scraper.close()
