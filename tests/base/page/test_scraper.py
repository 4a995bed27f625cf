"""Shares of scrapes where many engines hang or stall, in virtual time and without sockets."""

import asyncio
from collections import Counter

import pytest

from inflight_base.page import scraper as scraper_module
from inflight_base.page.scraper import Engine, Scraper
from tests.base.virtual_time import in_virtual_time

PART = b"#" * 200_000


class Call:
    """A request to an engine that hangs, stalls after a part of a large page, or answers with a small or large one."""

    def __init__(self, engine, reader):
        self.engine, self.reader, self.sent, self.why, self.over = engine, reader, False, "", False

    def write(self, request):
        if self.engine != "hangs":
            asyncio.get_running_loop().call_soon(self.answer)

    def answer(self):
        if not self.over:
            self.reader.head(200, [])
            self.reader.data(b"small" if self.engine == "small" else PART)
            if self.engine == "small":
                self.end()

    def pause(self):
        pass

    def resume(self):
        if self.engine == "large":
            asyncio.get_running_loop().call_soon(self.end)

    def end(self):
        if not self.over:
            self.over = True
            self.reader.ended()

    def cancel(self):
        self.over = True


class Calls:
    """In place of the connections to engines, whose addresses are what they do."""

    def call(self, address, reader, *, fresh=False):
        return Call(address, reader)


class Ages(Scraper):
    """Attributes: longest: seconds between two samples of an engine, and until now, by key. failures: by address."""

    def __init__(self, **settings):
        super().__init__("test", "", **settings)
        self._pool = Calls()
        self.last, self.longest, self.lost, self.engines = {}, Counter(), Counter(), []

    def scraped(self, engine, body, began):
        now = asyncio.get_running_loop().time()
        self.longest[engine.key] = max(self.longest[engine.key], now - self.last.get(engine.key, now))
        self.last[engine.key] = now

    async def scraped_large(self, engine, body, began):
        self.scraped(engine, body, began)

    async def failed(self, engine, error, reason):
        self.lost[engine.url.split("/")[2]] += 1

    def fleet(self, services, pods, does):
        for service in range(services):
            for pod in range(pods):
                group = f"{does}-{service}"
                self.engines.append(Engine(f"{group}-{pod}", f"http://{does}/metrics", group=group))
                self.add(self.engines[-1])

    async def stop(self):
        for engine in self.engines:
            self.drop(engine)
        await asyncio.sleep(1.0)


@in_virtual_time
async def test_pods_that_hang_take_half_of_the_scrapes_at_most_however_many_they_are():
    scraper = Ages(interval=5.0, timeout=2.0, concurrency=16, max_back_off=4)
    scraper.fleet(400, 1, "hangs")
    scraper.fleet(1, 40, "small")
    await asyncio.sleep(120.0)
    scraper.longest.clear()
    await asyncio.sleep(120.0)
    assert len(scraper.longest) == 40
    assert max(scraper.longest.values()) <= 7.6, "one and a half intervals"
    assert scraper.lost["hangs"] > 400, "those that hang are tried again"
    await scraper.stop()


@pytest.mark.parametrize(("seconds", "concurrency"), [(2.0, 256), (1.0, 1000)], ids=["operator", "gateway"])
@in_virtual_time
async def test_large_pages_are_read_beside_those_of_a_thousand_services_that_stall(monkeypatch, seconds, concurrency):
    monkeypatch.setattr(scraper_module, "_LARGE_AT_ONCE", 16)
    scraper = Ages(interval=5.0, timeout=seconds, concurrency=concurrency)
    scraper.fleet(1000, 1, "stalls")
    scraper.fleet(1, 3, "large")
    await asyncio.sleep(60.0)
    scraper.longest.clear()
    scraper.lost.clear()
    await asyncio.sleep(60.0)
    assert scraper.lost["large"] == 0
    assert len(scraper.longest) == 3
    assert max(scraper.longest.values()) <= 10.0
    assert scraper.lost["stalls"] > 1000
    await scraper.stop()
