"""Real Envoy, relay and picker: long heads and large bodies, also of held requests."""

from __future__ import annotations

import asyncio
import json
import signal

import pytest

from tests.gateway.client import ask, service
from tests.gateway.fake_engine import headers_of
from tests.gateway.gateway_stack import GatewayStack, until

LARGE = json.dumps({"model": "m", "prompt": "x" * (6 << 20)}).encode()
LONG_PROMPT = "all " * 60_000
"""Prompt whose header is longer than the 8,190 bytes that an engine takes in one field."""


@pytest.fixture
async def relayed(tmp_path):
    stack = GatewayStack(tmp_path, relays=1)
    yield stack
    stack.stop_all()


@pytest.mark.parametrize("picker", ["running", "dead"])
async def test_no_header_of_the_gateways_own_names_reaches_engines_but_progress(relayed, engines, http, picker):
    engine = await engines("engine")
    relayed.services(service("a", engine, model="m"))
    await relayed.start_all()
    if picker == "dead":
        relayed.signal("picker", signal.SIGKILL)
        relayed.processes["picker"].wait()
    forged = {"x-inflight-avoid": "forged", "x-inflight-body": "forged"}
    status, body, _ = await ask(http, relayed, host="a.default", prompt=LONG_PROMPT, messages=[], headers=forged)
    assert (status, body) == (200, {"engine": "engine"})
    internal = {name for name in headers_of(engine.requests[0]) if name.startswith("x-inflight")}
    assert internal == {"x-inflight-progress"}


async def test_the_longest_heads_of_clients_pass_with_a_long_prompt(relayed, engines, http):
    """Envoy's own bound of heads; engines refuse most of these heads themselves."""
    engine = await engines("engine")
    relayed.services(service("a", engine, model="m"))
    await relayed.start_all()
    headers = {f"x-{number}": "y" * 8_000 for number in range(7)}
    fields = {"prompt": "x" * 2**20, "messages": [], "class": "\u4e00" * 1000}
    assert (await ask(http, relayed, headers=headers, **fields))[0] == 200
    assert headers_of(engine.requests[0]).items() >= headers.items()


async def test_a_large_body_follows_a_held_head_and_reaches_the_next_endpoint_where_one_refuses(relayed, engines, http):
    busy, closing, good = await engines("busy", "busy"), await engines("closing", "close"), await engines("good")
    relayed.services(service("a", model="m", max_attempts=4))
    await relayed.start_all()
    waiting = [asyncio.create_task(ask(http, relayed, data=LARGE)) for _ in range(4)]

    async def all_held():
        return (await relayed.state())["services"][0]["held"] == len(waiting)

    await until(all_held, "all requests are held")
    relayed.services(service("a", busy, closing, good, model="m", max_attempts=4, refusing=1))
    for status, body, _ in await asyncio.gather(*waiting):
        assert (status, body) == (200, {"engine": "good"})
    assert [each.body == LARGE for each in good.requests] == [True] * len(waiting)
    assert busy.requests or closing.requests


async def test_a_large_body_is_tried_elsewhere_where_a_connection_is_refused(relayed, engines, http):
    """The answer of the picker comes before the whole body, which Envoy needs for retries."""
    good = await engines("good")
    relayed.services(service("a", good, model="m", max_attempts=4, refusing=3))
    await relayed.start_all()
    for _ in range(6):
        assert (await ask(http, relayed, data=LARGE))[:2] == (200, {"engine": "good"})
    assert [each.body == LARGE for each in good.requests] == [True] * 6


async def test_a_refusal_of_a_large_body_is_read_although_the_body_is_still_under_way(relayed, http):
    relayed.services(service("a", model="m", hold={"max_requests": 0}))
    await relayed.start_all()
    for _ in range(20):
        status, body, headers = await ask(http, relayed, data=LARGE)
        assert status in (429, 503)
        assert int(headers["retry-after"]) > 0
        assert body["error"]["code"] != "service_lost"


async def test_a_request_that_was_held_and_refused_is_continued_with_its_long_prompt(relayed, engines, http):
    cuts = []
    busy, first, second = await engines("busy", "busy"), *[await engines(name, "progress") for name in ("1", "2")]
    first.cuts = second.cuts = cuts
    first.tick = second.tick = 0.01
    relayed.services(service("a", model="m", max_attempts=3))
    await relayed.start_all()
    asked = {"prompt": LONG_PROMPT, "messages": [], "stream": True, "seed": 7, "max_tokens": 16}
    waiting = asyncio.create_task(ask(http, relayed, **asked))

    async def is_held():
        load = (await relayed.state())["services"][0]
        return load["held"] == 1 and load["held_prompt_tokens"] == len(LONG_PROMPT) // 4

    await until(is_held, "the request is held with its tokens")
    cuts.append(9)
    relayed.services(service("a", busy, first, second, model="m", max_attempts=3))
    status, answer, _ = await waiting
    assert (status, cuts) == (200, [])
    undisturbed = await ask(http, relayed, **asked)
    assert answer == undisturbed[1]
    sent = [one for engine in (first, second) for one in engine.requests]
    assert sum(b"inflight_continuation" in one.body for one in sent) == 1


async def test_a_request_is_in_flight_until_its_response_ends(relayed, engines, http):
    engine = await engines("engine", "stream")
    relayed.services(service("a", engine, model="m"))
    await relayed.start_all()

    async def in_flight():
        return (await relayed.state())["services"][0]["in_flight"]

    engine.may_end.clear()
    async with http.post(
        relayed.url + "/v1/completions", data=b'{"model": "m", "stream": true}', headers={"Host": "a.default"}
    ) as answer:
        await answer.content.readline()
        assert await in_flight() == 1
        engine.may_end.set()
        assert (await answer.content.read()).endswith(b"data: [DONE]\n\n")

    async def ended():
        return await in_flight() == 0

    await until(ended, "no request is in flight", 20)
