"""Requests that count as demand for replicas, and those that were sent to them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from inflight_gateway.state.demand import ClassDemand
from inflight_gateway.types import HoldBounds, RateLimits, ServiceClass
from tests.gateway.requests.world import CONFIG, KEY, World


def demand(world, name="default"):
    return world.demand.of(KEY).get(name, ClassDemand())


def test_a_request_that_starts_at_once_has_arrived_and_was_sent():
    world = World(endpoints=1)
    world.ask("a", prompt_tokens=30, max_tokens=8, choices=2)
    assert demand(world) == ClassDemand(1, 30, 900, 16, 0, 1, 30, 16)


def test_requests_count_by_class():
    world = World(replace(CONFIG, classes=(ServiceClass("chat"), ServiceClass("batch"))))
    world.ask("a", prompt_tokens=30)
    world.ask("b", prompt_tokens=500, service_class="batch")
    assert (demand(world, "chat").prompt_tokens, demand(world, "batch").prompt_tokens) == (30, 500)


def test_a_held_request_is_demand_before_any_engine_gets_it():
    world = World()
    world.ask("a", prompt_tokens=30)
    assert (demand(world).arrived, demand(world).sent) == (1, 0)
    world.endpoints(1)
    assert (demand(world).arrived, demand(world).sent) == (1, 1)


def test_a_request_that_the_bounds_of_the_queue_refuse_is_demand():
    world = World(replace(CONFIG, hold=HoldBounds(max_requests=1, max_wait_s=10.0)))
    world.ask("a", prompt_tokens=30)
    (refusal,) = world.ask("b", prompt_tokens=50)
    assert refusal.code == "queue_full"
    assert (demand(world).arrived, demand(world).refused, demand(world).prompt_tokens) == (2, 1, 80)


def test_a_request_that_waited_too_long_is_demand():
    world = World()
    world.ask("a")
    world.now += 11
    world.requests.expire()
    assert (demand(world).arrived, demand(world).refused, demand(world).sent) == (1, 1, 0)


def test_a_request_above_its_tenants_limit_asks_for_no_replica():
    world = World(replace(CONFIG, default_limits=RateLimits(requests_per_minute=1)), endpoints=1)
    world.ask("a", tenant="t")
    (refusal,) = world.ask("b", tenant="t")
    assert refusal.status == 429
    assert (demand(world).arrived, demand(world).refused) == (1, 0)


def test_a_second_attempt_is_no_second_request_but_engines_see_it():
    world = World(endpoints=2)
    world.ask("a")
    world.ask("a", 2)
    assert (demand(world).arrived, demand(world).sent) == (1, 2)


def test_a_prompt_that_is_computed_apart_was_sent_when_its_answer_goes_on_elsewhere():
    world = World(replace(CONFIG, apart="Fixed"), endpoints=2)
    (go,) = world.ask("a")
    assert (go.prefill, demand(world).arrived, demand(world).sent) == (True, 1, 0)
    (go,) = world.ask("a", 2)
    assert (go.prefill, demand(world).arrived, demand(world).sent) == (False, 1, 1)


def test_a_request_that_the_prefill_set_answers_is_no_demand_for_the_engines_that_answer():
    world = World(replace(CONFIG, apart="Auto"), endpoints=2)
    goes = [world.ask(name)[0] for name in ("a", "b")]
    assert {one.endpoints[0] for one in goes} == {"10.0.0.0:80", "10.0.0.1:80"}
    assert not any(one.prefill for one in goes)
    assert (demand(world).arrived, demand(world).sent) == (1, 1)


def test_a_request_that_its_relay_started_alone_was_sent():
    world = World()
    world.ask("a", prompt_tokens=30)
    world.requests.answering("a", 1, "10.0.0.0:80")
    assert (demand(world).arrived, demand(world).sent, demand(world).sent_prompt_tokens) == (1, 1, 30)


def test_the_expected_output_of_a_request_is_the_same_when_it_arrives_and_when_it_is_sent():
    world = World()
    world.ask("a", max_tokens=400)
    world.ask("b", max_tokens=400)
    before = demand(world).output_tokens
    world.endpoints(1)
    assert demand(world).sent_output_tokens == before == 800


def test_counters_of_a_deleted_service_go():
    world = World(endpoints=1)
    world.ask("a")
    world.catalog.update(services={KEY: None})
    assert world.demand.of(KEY) == {}


@given(st.lists(st.sampled_from(("ask", "again", "expire", "endpoint", "end", "lost")), max_size=40))
def test_whatever_happens_no_more_is_sent_or_refused_than_arrived_and_asked_again(steps):
    async def run():
        world, names, attempts = World(), [], {}
        for number, step in enumerate(steps):
            if step == "ask":
                names.append(f"r{number}")
                attempts[names[-1]] = 1
                world.ask(names[-1], prompt_tokens=7)
            elif step == "again" and names:
                attempts[names[-1]] += 1
                world.ask(names[-1], attempts[names[-1]], prompt_tokens=7)
            elif step == "expire":
                world.now += 11
                world.requests.expire()
            elif step == "endpoint":
                world.endpoints(2)
            elif step == "end" and names:
                world.end(names.pop())
            elif step == "lost":
                world.requests.lost("r0")
                names.clear()
            one = demand(world)
            assert one.arrived == len(attempts)
            assert one.sent + one.refused <= sum(attempts.values())
            assert one.prompt_tokens == 7 * one.arrived
            assert one.prompt_squares == 49 * one.arrived
            assert one.sent_prompt_tokens == 7 * one.sent

    asyncio.run(run())
