"""Whatever the order of events, every request ends, and ledger, shares, holds, accounts and counters return to zero."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from inflight_gateway.link.wire import Go, Refuse
from inflight_gateway.requests.record import Phase
from inflight_gateway.requests.registry import RETURNS_S
from inflight_gateway.types import RateLimits
from tests.gateway.requests.world import CONFIG, KEY, World

NAMES, RELAYS = ("a", "b", "c", "d"), ("r0", "r1")
LIMITED = replace(CONFIG, default_limits=RateLimits(concurrent_requests=3, tokens_per_minute=2000))
CONFIGS = st.sampled_from([LIMITED, replace(LIMITED, apart="Fixed")])

name, relay, attempt = st.sampled_from(NAMES), st.sampled_from(RELAYS), st.integers(1, 4)
address = st.integers(0, 3).map(lambda number: f"10.0.0.{number}:80")
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("ask"), name, attempt, relay, st.sampled_from(["", "t0", "t1"]), st.sampled_from([None, 0, 9])
        ),
        st.tuples(st.just("answering"), name, attempt, address),
        st.tuples(st.just("progress"), name, st.integers(0, 50)),
        st.tuples(st.just("left"), name, attempt),
        st.tuples(st.just("ended"), name, st.sampled_from([0, 200, 401, 503])),
        st.tuples(st.just("guest"), name, st.sampled_from([(), ("10.0.0.1:80",)])),
        st.tuples(st.just("end"), name),
        st.tuples(st.just("lost"), relay),
        st.tuples(st.just("hello"), relay),
        st.tuples(st.just("running"), name, attempt, relay, address, st.integers(0, 50)),
        st.tuples(st.just("released"), relay),
        st.tuples(st.just("moved"), name),
        st.tuples(st.just("endpoints"), st.integers(0, 3)),
        st.tuples(st.just("deleted")),
        st.tuples(st.just("wait"), st.integers(1, 12)),
    ),
    max_size=40,
)


def play(world, steps):
    for step, *values in steps:
        match step:
            case "ask":
                fields = {} if values[4] is None else {"admitted": True, "waited_s": values[4]}
                world.ask(values[0], values[1], relay=values[2], tenant=values[3], prompt_tokens=100, **fields)
            case "answering":
                world.requests.answering(*values)
            case "progress":
                world.requests.progress([tuple(values)])
            case "left":
                world.requests.left(*values)
            case "ended":
                world.end(values[0], values[1], completion_tokens=7)
            case "guest":
                world.ask(values[0], relay=object(), allowed=values[1])
            case "end":
                world.requests.end(values[0])
            case "lost":
                world.requests.lost(values[0])
            case "hello":
                world.requests.hello(f"name of {values[0]}", values[0])
            case "running":
                world.runs(values[0], values[1], relay=values[2], tenant="t0", address=values[3], tokens=values[4])
            case "released":
                world.requests.released(KEY, values[0])
                assert values[0] not in [one.relay for one in world.requests._requests.values()]
            case "moved":
                world.requests.moved(values[0])
                assert values[0] not in world.requests._requests
            case "endpoints":
                world.endpoints(values[0])
            case "deleted":
                world.catalog.update(services={KEY: None})
                world.catalog.update(services={KEY: world.config})
            case "wait":
                world.now += values[0]
                world.requests.expire()
                world.requests.release()
        check(world)


def check(world):
    requests = list(world.requests._requests.values())
    sent = [one for one in requests if one.phase in (Phase.SENT, Phase.ANSWERING)]
    held = [one for one in requests if one.phase is Phase.HELD]
    assert Phase.OVER not in {one.phase for one in requests}
    assert len(world.holds) == len(held)
    assert requests == [one for each in world.requests._of_service.values() for one in each.values()]
    assert sum(world.in_flight().values()) <= len(sent)
    assert sum(count.in_flight for each in world.gate.usage._services.values() for count in each.values()) == sum(
        one.admitted is not None and one.admitted.in_flight for one in requests
    )


@given(CONFIGS, STEPS)
def test_every_request_ends_and_nothing_leaks(config, steps):
    world = World(config, endpoints=2)
    play(world, steps)
    for one in NAMES:
        world.end(one)
    world.assert_empty()


@given(CONFIGS, STEPS)
def test_the_end_of_a_stream_ends_all_its_requests(config, steps):
    world = World(config, endpoints=2)
    play(world, steps)
    for stream in {one.relay for one in world.requests._requests.values()}:
        world.requests.lost(stream)
    world.assert_empty()
    world.now += RETURNS_S
    world.requests.expire()
    assert world.requests._lost == {}


@given(CONFIGS, STEPS)
def test_each_attempt_is_sent_or_refused_at_most_once(config, steps):
    world = World(config, endpoints=2)
    # A request that ends, or moves, and is asked for again is another one.
    again = ("ended", "end", "lost", "running", "released", "moved", "guest")
    play(world, [one for one in steps if one[0] not in again])
    decided = [(one.id, one.attempt) for one in world.said if isinstance(one, Go | Refuse)]
    asked = [one for one in steps if one[0] == "ask"]
    if len({(one[1], one[3]) for one in asked}) == len({one[1] for one in asked}):
        assert len(decided) == len(set(decided))


@given(STEPS)
def test_a_request_that_was_admitted_elsewhere_is_refused_only_after_the_longest_wait(steps):
    world = World(LIMITED, endpoints=2)
    play(world, [one for one in steps if one[0] != "deleted"])
    for one in NAMES:
        world.end(one)
    world.said.clear()
    for number in range(20):
        world.ask(f"moved {number}", tenant="t0", prompt_tokens=1000, admitted=True)
    assert not any(isinstance(one, Refuse) for one in world.said)
    world.now += world.config.hold.max_wait_s
    world.requests.expire()
    assert len(world.holds) == 0
