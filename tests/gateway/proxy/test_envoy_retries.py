"""Real Envoy, relay and picker: what retries tell the picker, and requests that engines die with."""

from __future__ import annotations

import signal

import pytest

from tests.gateway.client import ask, service
from tests.gateway.gateway_stack import GatewayStack, until


@pytest.fixture
async def relayed(tmp_path):
    stack = GatewayStack(tmp_path, relays=1)
    yield stack
    stack.stop_all()


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

    await until(counted, "the request is counted", 60)


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
