"""Real Envoy, relay and picker: what retries tell the picker, and requests that engines die with."""

from __future__ import annotations

import asyncio
import signal

import pytest

from tests.gateway.client import ask, service
from tests.gateway.gateway_stack import GatewayStack, until


@pytest.fixture
async def relayed(tmp_path):
    stack = GatewayStack(tmp_path, relays=1)
    yield stack
    stack.stop_all()


async def test_a_request_counts_at_the_engine_that_took_it(relayed, engines, http):
    """That the refusing endpoint is avoided is shown in `test_refusals.py`."""
    busy, good = await engines("busy", "busy"), await engines("good", "progress")
    good.tick = 1.5  # answers outlast the test's waits
    relayed.services(service("a", busy, good, model="m"))
    await relayed.start_all()
    begun = []

    async def one(number):
        begun.append(number)
        return await ask(http, relayed, stream=True, max_tokens=8, seed=1)

    requests = [asyncio.create_task(one(0))]
    # Until one was sent to the busy engine first; equal engines are picked by the request's id.
    while not busy.requests:
        await asyncio.sleep(0.1)
        requests.append(asyncio.create_task(one(1)))

    async def moved():
        return {one["address"]: one["in_flight"] for one in (await relayed.state())["endpoints"]}

    def counted(endpoints):
        return endpoints.get(busy.address) == 0 and endpoints.get(good.address) == len(requests)

    async def all_moved():
        return counted(await moved())

    await until(all_moved, "all requests count at the engine that took them", 6)
    for request in requests:
        request.cancel()


async def test_a_request_that_kills_engines_before_their_head_ends_after_two(relayed, engines, http):
    closing = [await engines(f"closing-{number}", "close") for number in range(4)]
    relayed.services(service("a", *closing, model="m", max_attempts=4))
    await relayed.start_all()
    status, body, headers = await ask(http, relayed)
    assert (status, body["error"]["code"]) == (502, "engines_died")
    assert headers["x-should-retry"] == "false"
    assert not [name for name in headers if name.lower().startswith("x-inflight")]
    assert sum(len(engine.requests) for engine in closing) == 2

    async def counted():
        name = 'inflight_gateway_suspect_requests_total{namespace="default",service="a"} 1.0'
        return name in await relayed.metrics()

    await until(counted, "the request is counted", 5)


async def test_without_a_picker_such_a_request_ends_after_two_engines_too(relayed, engines, http):
    closing = [await engines(f"closing-{number}", "close") for number in range(4)]
    relayed.services(service("a", *closing, model="m", max_attempts=4))
    await relayed.start_all()
    relayed.signal("picker", signal.SIGKILL)
    relayed.processes["picker"].wait()
    status, body, _ = await ask(http, relayed, host="a.default")
    assert (status, body["error"]["code"]) == (502, "engines_died")
    assert sum(len(engine.requests) for engine in closing) == 2


async def test_connections_that_are_refused_are_no_deaths(relayed, engines, http):
    good = await engines("good")
    relayed.services(service("a", good, model="m", max_attempts=4, refusing=3))
    await relayed.start_all()
    for _ in range(6):
        assert (await ask(http, relayed))[:2] == (200, {"engine": "good"})
