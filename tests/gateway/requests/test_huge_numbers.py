"""Numbers of any size in a body reach neither the messages between relay and picker, nor the picker's loop, nor what
others read of it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import generate_latest

from inflight_gateway.link.wire import Ask, encode, from_relay
from inflight_gateway.request.body import parse
from inflight_gateway.request.paths import GENERATING, api_of
from inflight_gateway.state.load import GatewayLoads, line
from inflight_gateway.types import RateLimits
from tests.gateway.requests.world import CONFIG, KEY, World

LIMITED = replace(CONFIG, default_limits=RateLimits(10**6, 10**6, 10**6), max_num_seqs=10**6)
FIELDS = (
    *(
        "max_tokens",
        "max_completion_tokens",
        "max_output_tokens",
        "n",
        "best_of",
        "priority",
        "seed",
        "stream",
        "class",
    ),
    *("model", "service_tier", "prompt", "input", "query", "documents", "text_1", "text_2", "messages", "thinking"),
    *("cache_salt", "dimensions", "top_n", "truncate_prompt_tokens", "tools", "instructions", "system"),
)
HUGE = st.sampled_from(
    [10**30, -(10**30), 2**31 - 1, 2**31, 2**63, 2**64, -(2**63) - 1, 10**4000, 1e308, 0, -1, 1.5, True]
)
VALUES = st.one_of(
    HUGE,
    st.lists(HUGE, max_size=3),
    st.lists(st.lists(HUGE, max_size=3), max_size=3),
    st.dictionaries(st.sampled_from(["budget_tokens", "type", "content", "text"]), HUGE, max_size=3),
    st.lists(st.text(max_size=3), max_size=40),
)
BODIES = st.lists(st.tuples(st.sampled_from(sorted(GENERATING)), st.dictionaries(st.sampled_from(FIELDS), VALUES)))


def said_by(world: World) -> bytes:
    """The line of the state stream for the operator."""
    loads = GatewayLoads(world.catalog, world.holds, world.ledger, world.demand, lambda: world.now)
    return line("gw", loads.service_loads(), full=True)


@settings(max_examples=150, deadline=None)
@given(bodies=BODIES, lengths=st.lists(st.sampled_from([0, 1, 2**32]), min_size=1))
def test_no_number_of_a_body_stops_the_picker(bodies, lengths):
    world = World(LIMITED, endpoints=2)
    for number, (path, fields) in enumerate(bodies):
        body = parse(json.dumps(fields).encode(), api_of(path))
        if body is None:
            continue
        name, length = f"r{number}", lengths[number % len(lengths)]
        (asked,) = from_relay.decode(encode([Ask(name, 1, KEY, tenant="t", path=path, body=body, body_bytes=99)]))
        world.requests.ask(asked, "r0", world.said.append)
        assert world.heard(name)
        world.end(name, tenant="t", path=path, prompt_tokens=length, completion_tokens=length)
        world.now += 1
    assert json.loads(said_by(world))["services"][0]["name"] == KEY.name
    assert b"tenant_tokens_total" in generate_latest(world.metrics.registry)


def test_an_engine_that_counts_absurd_answers_does_not_make_the_demand_unreadable():
    """All services share a line: the operator would wake and scale none of them."""
    world = World(replace(CONFIG, max_num_seqs=10**6), endpoints=2)
    for number in range(1000):
        world.ask(f"r{number}", choices=1 if number < 64 else 2**16)
        world.end(f"r{number}", 200 if number < 64 else 400, path="/v1/completions", completion_tokens=2**32)
        world.now += 0.1
    assert 0 < output_tokens(world) < 2**53


def test_clients_that_ask_for_absurd_answers_do_not_make_the_demand_unreadable():
    """Engines refuse them, so that no answer tells how long they really are. 400 such requests passed 64 bits."""
    body = parse(json.dumps({"n": 128, "max_tokens": 2**31 - 1, "prompt": [""] * 200_000}).encode())
    assert body is not None
    world = World(LIMITED, endpoints=2)
    for number in range(400):
        ask = Ask(f"r{number}", 1, KEY, path="/v1/completions", body=body)
        world.requests.ask(ask, "r0", world.said.append)
        world.end(f"r{number}", 400, path="/v1/completions")
    assert 0 < output_tokens(world) < 2**53


def output_tokens(world: World) -> int:
    (service,) = json.loads(said_by(world))["services"]
    return service["demand"]["default"]["output_tokens"]


@pytest.mark.parametrize("path", sorted(GENERATING))
def test_answers_are_counted_up_to_more_than_an_engine_queues(path):
    fields = {"n": 128, "prompt": [""] * 20_000, "input": [""] * 200_000, "documents": [""] * 200_000}
    body = parse(json.dumps(fields).encode(), api_of(path))
    assert body is not None
    assert body.choices <= 2**16
