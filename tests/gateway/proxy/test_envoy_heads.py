"""Real Envoy, relay and picker: requests whose body the relay has read are picked for by their heads alone."""

from __future__ import annotations

import asyncio
import json
import signal

import aiohttp
import pytest

from inflight_gateway.request.headers import BODY
from tests.gateway.client import ask, service
from tests.gateway.fake_engine import headers_of
from tests.gateway.gateway_stack import GatewayStack, until

LARGE = json.dumps({"model": "m", "prompt": "x" * (8 << 20)}).encode()
LONG_PROMPT = "all " * 60_000
"""Prompt whose header is longer than the 8,190 bytes that an engine takes in one field."""


@pytest.fixture
async def relayed(tmp_path):
    stack = GatewayStack(tmp_path, relays=1)
    yield stack
    stack.stop_all()


async def messages(stack):
    """Sent to the picker so far, and received from it."""
    connector = aiohttp.UnixConnector(str(stack.run_dir / "admin.sock"))
    async with (
        aiohttp.ClientSession(connector=connector) as http,
        http.get("http://envoy/stats?filter=ext_proc.stream_msgs&format=json") as answer,
    ):
        stats = (await answer.json())["stats"]
        found = {each["name"].rpartition("stream_msgs_")[2]: each["value"] for each in stats if "name" in each}
        return found["sent"], found["received"]


def test_the_long_header_is_long():
    from inflight_gateway.request.body import parse, to_header

    assert len(to_header(parse(json.dumps({"prompt": LONG_PROMPT}).encode()))) > 8190


async def test_a_generation_takes_one_message_each_way_and_others_with_a_body_two(relayed, engines, http):
    engine, other = await engines("engine"), await engines("other")
    relayed.services(service("a", engine, model="m"), service("b", other, model="n"))
    await relayed.start_all()
    for _ in range(3):
        assert (await ask(http, relayed))[:2] == (200, {"engine": "engine"})
    assert await messages(relayed) == (3, 3)
    async with http.get(f"{relayed.url}/v1/models", headers={"Host": "b"}) as answer:
        assert await answer.json() == {"engine": "other"}
    assert await messages(relayed) == (4, 4)
    assert (await ask(http, relayed, "n", path="/tokenize"))[:2] == (200, {"engine": "other"})
    assert await messages(relayed) == (6, 6)


async def test_bodies_that_no_relay_reads_reach_the_service_of_their_model(relayed, engines, http):
    engine, other = await engines("engine"), await engines("other")
    relayed.services(service("a", engine, model="m"), service("b", other, model="n"))
    await relayed.start_all()

    async def parts():
        for part in (b'{"model": ', b'"n", "prompt": "', b"x" * 300_000, b'"}'):
            yield part
            await asyncio.sleep(0.02)

    body = json.dumps({"model": "n", "prompt": "x" * 2_000_000}).encode()
    for data in (body, b'{"model": "n"}', parts()):
        assert (await ask(http, relayed, path="/tokenize", data=data))[:2] == (200, {"engine": "other"})
    assert [len(each.body) for each in other.requests] == [len(body), 14, 300_028]
    status, answer, _ = await ask(http, relayed, path="/tokenize", data=b'{"model": "unknown"}')
    assert (status, answer["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("picker", ["running", "dead"])
async def test_the_header_does_not_reach_engines(relayed, engines, http, picker):
    engine = await engines("engine")
    relayed.services(service("a", engine, model="m"))
    await relayed.start_all()
    if picker == "dead":
        relayed.signal("picker", signal.SIGKILL)
        relayed.processes["picker"].wait()
    forged = {"x-inflight-avoid": "forged", BODY: "forged"}
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
    assert (await ask(http, relayed, host="a", headers=headers, **fields))[0] == 200
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
    asked = {"prompt": LONG_PROMPT, "messages": [], "stream": True, "seed": 7, "max_tokens": 20}
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
    assert all(BODY not in headers_of(one) for one in [*sent, *busy.requests])


@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize"])
async def test_a_request_is_in_flight_until_its_response_ends(relayed, engines, http, path):
    """Envoy closes streams to the picker early where nothing more may be said."""
    engine = await engines("engine", "stream")
    relayed.services(service("a", engine, model="m"))
    await relayed.start_all()

    async def in_flight():
        return (await relayed.state())["services"][0]["in_flight"]

    async with http.post(relayed.url + path, data=b'{"model": "m", "stream": true}') as answer:
        await answer.content.readline()
        await asyncio.sleep(0.3)
        assert await in_flight() == 1
        assert (await answer.content.read()).endswith(b"data: [DONE]\n\n")

    async def ended():
        return await in_flight() == 0

    await until(ended, "no request is in flight", 2)
