"""Real Envoy and picker: requests that wait, and how waiting ends."""

from __future__ import annotations

import asyncio

from tests.gateway.client import ask, service
from tests.gateway.gateway_stack import until


async def held(stack):
    return (await stack.state())["services"][0]["held"]


async def test_a_held_request_starts_when_an_endpoint_appears(stack, engines, http):
    engine = await engines("engine")
    stack.services(service("a", model="m"))
    await stack.start_all()
    waiting = [asyncio.create_task(ask(http, stack)) for _ in range(20)]

    async def all_held():
        return await held(stack) == 20

    await until(all_held, "all requests are held")
    assert not any(one.done() for one in waiting)
    stack.services(service("a", engine, model="m"))
    for status, body, _ in await asyncio.gather(*waiting):
        assert (status, body) == (200, {"engine": "engine"})


async def test_a_request_that_waits_too_long_gets_503_with_retry_after(stack, http):
    stack.services(service("a", model="m", hold={"max_wait_s": 0.5}))
    await stack.start_all()
    status, body, headers = await ask(http, stack)
    assert (status, body["error"]["code"]) == (503, "no_replica")
    assert int(headers["retry-after"]) > 0
    assert 'inflight_gateway_refusals_total{code="no_replica"' in await stack.metrics()


async def test_requests_beyond_the_bounds_are_refused_at_once(stack, http):
    stack.services(service("a", model="m", hold={"max_requests": 1}))
    await stack.start_all()
    waiting = asyncio.create_task(ask(http, stack))

    async def one_held():
        return await held(stack) == 1

    await until(one_held, "one request is held")
    status, _, headers = await ask(http, stack)
    assert status in (429, 503)
    assert int(headers["retry-after"]) > 0
    waiting.cancel()


async def test_a_client_that_leaves_waits_no_longer(stack, http):
    stack.services(service("a", model="m"))
    await stack.start_all()
    waiting = asyncio.create_task(ask(http, stack))

    async def one_held():
        return await held(stack) == 1

    async def none_held():
        return await held(stack) == 0

    await until(one_held, "the request is held")
    waiting.cancel()
    await until(none_held, "no request is held", 10)


async def test_requests_for_a_deleted_service_get_404(stack, http):
    stack.services(service("a", model="m"), service("b", model="n"))
    await stack.start_all()
    waiting = asyncio.create_task(ask(http, stack))

    async def one_held():
        return await held(stack) == 1

    await until(one_held, "the request is held")
    stack.services(service("b", model="n"))
    status, body, _ = await waiting
    assert (status, body["error"]["code"]) == (404, "service_not_found")
