"""Prefill and decode apart: which prompts are handed over."""

from dataclasses import replace

import pytest

from inflight_gateway.pick.apart import MOVE_S, Way, choose
from inflight_gateway.pick.picker import Picker
from tests.gateway.pick.loads import CONFIG, COST, NOW, load, request

AUTO, FIXED = replace(CONFIG, apart="Auto"), replace(CONFIG, apart="Fixed")
COPIED = replace(COST, copied_token_s=1e-7)


def way(asked, engine, config=AUTO):
    return Way(Picker().pick(asked, config, [engine], NOW), engine)


def handed_over(asked, answering, prefill, config=AUTO):
    chosen = choose(asked, config, way(asked, answering), way(asked, prefill))
    assert chosen.load is (prefill if chosen.pick.prefill else answering)
    assert (chosen.pick.reason == "prefill") == chosen.pick.prefill
    return chosen.pick.prefill


def busy(**fields):
    return load("answers", in_flight=40, running=40, kv_utilization=0.1, **fields)


IDLE = load("prefill")


def test_a_long_prompt_is_handed_over_where_others_would_wait_for_it():
    assert handed_over(request(prompt_tokens=8000), busy(), IDLE)


def test_a_prompt_that_nobody_would_wait_for_is_computed_where_it_is_answered():
    assert not handed_over(request(prompt_tokens=8000), load("answers"), IDLE)


def test_a_prompt_that_takes_less_than_the_move_is_computed_where_it_is_answered():
    tokens = int(MOVE_S / COST.prefill_token_s / 60)
    assert not handed_over(request(prompt_tokens=tokens), busy(), IDLE)


def test_a_cached_prompt_is_computed_where_its_prefix_is():
    assert not handed_over(request(prompt_tokens=8000), busy(cached_tokens=7990), IDLE)


def test_a_prompt_is_not_handed_over_to_an_engine_with_a_long_backlog():
    waits = load("prefill", waiting=100, waiting_prompt_tokens=1_000_000)
    asked = request(prompt_tokens=2000)
    late = Way(replace(way(asked, IDLE).pick, predicted_ttft_s=40.0), waits)
    assert not choose(asked, AUTO, way(asked, busy()), late).pick.prefill


def test_a_prompt_is_not_handed_over_where_reading_it_takes_longer_than_others_would_wait():
    slow = busy(peer_slowness=1e5, cost=COPIED)
    assert not handed_over(request(prompt_tokens=8000), slow, IDLE)
    assert handed_over(request(prompt_tokens=8000), busy(peer_slowness=20.0, cost=COPIED), IDLE)


def test_nothing_is_handed_over_before_costs_are_known():
    unknown = load("answers", in_flight=40, running=40, cost=None)
    assert not handed_over(request(prompt_tokens=8000), unknown, load("prefill", cost=None))


@pytest.mark.parametrize("config", [AUTO, FIXED])
def test_a_request_goes_to_the_prefill_set_alone_where_no_engine_that_answers_can_start_it(config):
    asked = request(prompt_tokens=10)
    assert choose(asked, config, None, way(asked, IDLE)).pick.prefill


def test_with_a_full_prefill_set_a_prompt_is_computed_where_it_is_answered_unless_the_mode_is_fixed():
    asked = request(prompt_tokens=8000)
    answering = way(asked, busy())
    assert choose(asked, AUTO, answering, None) is answering
    assert choose(asked, FIXED, answering, None) is None
    assert choose(asked, AUTO, None, None) is None


def test_fixed_hands_over_every_prompt():
    asked = request(prompt_tokens=10)
    assert choose(asked, FIXED, way(asked, load("answers")), way(asked, IDLE)).pick.prefill
