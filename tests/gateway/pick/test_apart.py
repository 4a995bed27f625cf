"""Prefill and decode apart: which prompts are handed over."""

from dataclasses import replace

import pytest

from inflight_gateway.pick.apart import Way, _moved, choose
from inflight_gateway.pick.picker import Picker
from tests.gateway.pick.loads import CONFIG, COST, NOW, load, request

AUTO, FIXED = replace(CONFIG, apart="Auto"), replace(CONFIG, apart="Fixed")
COPIED = replace(COST, copied_token_s=1e-7)


def way(asked, engine, config=AUTO):
    return Way(Picker().pick(asked, config, [engine], NOW), engine)


def chosen(asked, answering, prefill, config=AUTO):
    """Returns where the prompt is computed, and whether the answer goes on elsewhere."""
    found = choose(asked, config, way(asked, answering), way(asked, prefill))
    assert (found.pick.reason == "prefill") == found.pick.prefill
    assert found.pick.endpoints[0] == found.load.endpoint
    return found.load.endpoint.address, found.pick.prefill


def engine(address, *, share=0.0, answer_tokens=300.0, **fields):
    return load(address, **fields)._replace(prefill_share=share, answer_tokens=answer_tokens)


def answers(*, share=0.2, **fields):
    """An engine with forty answers under way."""
    return engine("answers", share=share, **{"in_flight": 40, "running": 40, "kv_utilization": 0.1, **fields})


IDLE = load("prefill")
HERE, THERE, APART = ("answers", False), ("prefill", False), ("prefill", True)
PROMPTS = engine("prefill", share=0.7)
LONG = request(prompt_tokens=8000)


def test_a_prompt_that_others_would_wait_for_is_computed_apart_and_its_answer_leaves_the_prompts_that_follow():
    assert chosen(LONG, answers(), PROMPTS) == APART


def test_an_answer_stays_where_few_prompts_follow():
    assert chosen(LONG, answers(), engine("prefill", share=0.2)) == THERE


def test_a_prompt_that_nobody_would_wait_for_is_computed_where_it_is_answered():
    assert chosen(LONG, engine("answers"), PROMPTS) == HERE


def test_a_short_answer_stays_where_its_prompt_is_computed():
    assert chosen(LONG, answers(answer_tokens=2.0), engine("prefill", share=0.7, answer_tokens=2.0)) == THERE


def test_a_short_prompt_is_computed_where_it_is_answered():
    assert chosen(request(prompt_tokens=100), answers(), PROMPTS) == HERE


def test_a_cached_prompt_is_computed_where_its_prefix_is():
    assert chosen(LONG, answers(cached_tokens=7990), PROMPTS) == HERE


def test_a_prompt_is_not_computed_by_an_engine_with_a_long_backlog():
    asked = request(prompt_tokens=2000)
    late = Way(replace(way(asked, PROMPTS).pick, predicted_ttft_s=40.0), PROMPTS)
    assert choose(asked, AUTO, way(asked, answers()), late).load.endpoint.address == "answers"


def test_an_answer_does_not_leave_where_its_keys_and_values_take_longer_than_prompts_would():
    assert chosen(LONG, answers(peer_slowness=20.0, cost=COPIED), PROMPTS) == APART
    assert chosen(LONG, answers(peer_slowness=1e5, cost=COPIED), PROMPTS) != APART


def test_where_reading_takes_longer_than_computing_a_hand_over_costs_the_prompt_once_more():
    asked = request(prompt_tokens=8000)
    slow = way(asked, answers(peer_slowness=1e5, cost=COPIED))
    slower = way(asked, answers(peer_slowness=1e9, cost=COPIED))
    assert _moved(asked, slow, slow.load.sample, COPIED, 0.5) == 41 * 0.5
    assert _moved(asked, slower, slower.load.sample, COPIED, 0.5) == 41 * 0.5


def test_nothing_is_computed_apart_before_costs_are_known():
    assert chosen(LONG, answers(cost=None), engine("prefill", cost=None)) == HERE


@pytest.mark.parametrize("config", [AUTO, FIXED])
def test_a_request_goes_to_the_prefill_set_where_no_engine_that_answers_can_start_it(config):
    asked = request(prompt_tokens=10)
    assert choose(asked, config, None, way(asked, IDLE)).pick.prefill


def test_with_a_full_prefill_set_a_prompt_is_computed_where_it_is_answered_unless_the_mode_is_fixed():
    answering = way(LONG, answers())
    assert choose(LONG, AUTO, answering, None) is answering
    assert choose(LONG, FIXED, answering, None) is None
    assert choose(LONG, AUTO, None, None) is None


def test_fixed_hands_over_every_prompt():
    assert chosen(request(prompt_tokens=10), engine("answers"), IDLE, FIXED) == APART
