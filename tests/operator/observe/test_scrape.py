"""Scraping: each pod on its own."""

import asyncio
from time import monotonic

import httpx

from inflight_operator.observe.pods import pod_view
from inflight_operator.observe.scrape import Scraper, base_url
from tests.operator.fakes import exposition, pod_body
from tests.operator.model_engine import ModelEngine

PAGE = exposition(ModelEngine().sample())


def pods(*ips):
    return [pod_view(pod_body(f"chat-{ip}", ip=ip)) for ip in ips]


async def test_a_slow_pod_delays_nobody_and_is_named():
    async def answer(request):
        if request.url.host == "10.0.0.2":
            await asyncio.sleep(60)
        return httpx.Response(200, text=PAGE)

    scraper = Scraper(httpx.AsyncClient(transport=httpx.MockTransport(answer)), timeout=0.2)
    started = monotonic()
    outcomes = await scraper.scrape(pods("10.0.0.1", "10.0.0.2", "10.0.0.3"), 8000)
    assert monotonic() - started < 2
    assert [outcome.sample is not None for outcome in outcomes] == [True, False, True]
    assert outcomes[1].error == "chat-10.0.0.2 did not answer /metrics within 0.2 s"


async def test_errors_are_told_and_not_raised():
    def answer(request):
        if request.url.host == "10.0.0.1":
            return httpx.Response(500, text="no")
        if request.url.host == "10.0.0.2":
            return httpx.Response(200, text="hello")
        raise httpx.ConnectError("connection refused", request=request)

    scraper = Scraper(httpx.AsyncClient(transport=httpx.MockTransport(answer)))
    outcomes = await scraper.scrape(pods("10.0.0.1", "10.0.0.2", "10.0.0.3"), 8000)
    assert [outcome.sample for outcome in outcomes] == [None, None, None]
    assert "500" in outcomes[0].error
    assert "vllm:num_requests_running is missing" in outcomes[1].error
    assert "connection refused" in outcomes[2].error


async def test_no_more_at_once_than_allowed():
    at_once = most = 0

    async def answer(request):
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.01)
        at_once -= 1
        return httpx.Response(200, text=PAGE)

    scraper = Scraper(httpx.AsyncClient(transport=httpx.MockTransport(answer)), concurrency=3)
    await scraper.scrape(pods(*(f"10.0.0.{number}" for number in range(20))), 8000)
    assert most == 3


def test_addresses_of_both_families():
    first, second = pods("10.0.0.1", "fd00::1")
    assert base_url(first, 8000) == "http://10.0.0.1:8000"
    assert base_url(second, 8000) == "http://[fd00::1]:8000"
