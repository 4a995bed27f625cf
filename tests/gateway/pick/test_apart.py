"""Prefill and decode apart: which answers leave the engine that computed their prompt."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_gateway.pick.apart import (
    LEAST_SAVED,
    Traffic,
    Way,
    _answer,
    _delay,
    _missed_as_one,
    _moved,
    handed_over,
    in_time,
    pays,
    saves,
)
from inflight_gateway.pick.picker import Picker
from inflight_gateway.types import Endpoint
from tests.gateway.pick.loads import CONFIG, COST, NOW, load, request

AUTO = replace(CONFIG, apart="Auto", ttft_s=0.5, tpot_s=0.05)
COPIED = replace(COST, copied_token_s=2.6e-6)


def engine(address, *, share=0.0, answer_tokens=300.0, cost=COPIED, **fields):
    """Returns a load, and the share of its time for prompts."""
    return load(address, cost=cost, **fields)._replace(answer_tokens=answer_tokens), share


def way(asked, one, config=AUTO):
    known, share = one
    return Way(Picker().pick(asked, config, [known], NOW), known, share)


PROMPTS_FOLLOW = Traffic(2.0, 26_000.0, 2, 1)


def leaves(there, here, asked=None, config=AUTO, traffic=PROMPTS_FOLLOW):
    asked = asked or request(prompt_tokens=2000)
    return pays(asked, config, way(asked, there), way(asked, here), traffic)


BUSY, IDLE, FREE = engine("prefill", share=0.8), engine("prefill"), engine("answers")


def test_an_answer_leaves_an_engine_that_is_busy_with_prompts_for_one_that_is_not():
    assert leaves(BUSY, FREE)


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_an_answer_stays_where_few_prompts_follow(share):
    assert not leaves(engine("prefill", share=share), FREE)


def test_an_answer_stays_where_the_other_engine_is_as_busy():
    assert not leaves(BUSY, engine("answers", share=0.8))
    assert not leaves(BUSY, engine("answers", share=0.7))


def test_an_answer_stays_where_it_would_slow_down_many_others():
    assert leaves(BUSY, engine("answers", in_flight=5, running=5))
    assert not leaves(BUSY, engine("answers", in_flight=200, running=200, kv_utilization=0.5))


def test_a_short_answer_stays():
    assert not leaves(engine("prefill", share=0.8, answer_tokens=3.0), engine("answers", answer_tokens=3.0))


def test_an_answer_stays_where_its_keys_and_values_would_come_too_slowly():
    assert not leaves(BUSY, engine("answers", peer_slowness=1e4), request(prompt_tokens=50_000))


def test_with_a_tighter_target_between_tokens_an_answer_leaves_earlier():
    half = engine("prefill", share=0.5)
    assert not leaves(half, FREE, config=replace(AUTO, tpot_s=0.2))
    assert leaves(half, FREE, config=replace(AUTO, tpot_s=0.01))


@pytest.mark.parametrize("unknown", ["there", "here"])
def test_nothing_leaves_before_costs_are_known(unknown):
    there, here = BUSY, FREE
    asked = request(prompt_tokens=2000)
    if unknown == "there":
        there = engine("prefill", share=0.8, cost=None)
    else:
        here = engine("answers", cost=None)
    assert not pays(asked, AUTO, way(asked, there), way(asked, here), PROMPTS_FOLLOW)
    assert saves(asked, AUTO, way(asked, there), way(asked, here), PROMPTS_FOLLOW) == 0.0


def test_what_takes_longer_to_read_than_to_compute_costs_the_prompt_once_more():
    asked = request(prompt_tokens=8000)
    slow, slower = (
        way(asked, engine("answers", in_flight=40, running=40, peer_slowness=slowness)) for slowness in (1e4, 1e6)
    )
    assert _moved(asked, slow) == _moved(asked, slower) == 41 * slow.pick.prefill_s


def test_delays_grow_with_prompts_to_come_and_with_answers_beside():
    asked = request()
    alone = _delay(asked, way(asked, engine("e")))
    assert alone == 0.0
    shares = [_delay(asked, way(asked, engine("e", share=share))) for share in (0.2, 0.5, 0.9, 1.0)]
    assert alone < shares[0] < shares[1] < shares[2] == shares[3]
    one, ten = (_delay(asked, way(asked, engine("e", in_flight=count))) for count in (1, 10))
    assert ten == pytest.approx(10 * one)


def saved(asked=None, *, tpot_s=8e-3, a_second=8.0, there=IDLE, here=FREE, engines=9, answering=7, ttft_s=0.5):
    """Returns the share of answers that keep the TPOT target apart only, for many requests like the one."""
    asked = asked or request(prompt_tokens=4000)
    config = replace(AUTO, tpot_s=tpot_s, ttft_s=ttft_s)
    traffic = Traffic(a_second, a_second * asked.prompt_tokens, engines, answering)
    return saves(asked, config, way(asked, there, config), way(asked, here, config), traffic)


def test_answers_leave_where_prompts_beside_them_take_what_the_target_leaves():
    assert saved() > LEAST_SAVED
    assert leaves(IDLE, FREE, request(prompt_tokens=4000), replace(AUTO, tpot_s=8e-3), Traffic(8.0, 32_000.0, 9, 7))


def test_a_delay_within_the_target_costs_no_answer():
    assert saved(tpot_s=0.05) < LEAST_SAVED
    assert not leaves(IDLE, FREE, request(prompt_tokens=4000), traffic=Traffic(8.0, 32_000.0, 9, 7))


def test_limits_that_keep_the_target_in_each_step_keep_it_for_all_answers():
    small = engine("prefill", max_num_seqs=8, max_num_batched_tokens=32)
    assert saved(there=small, here=engine("answers", max_num_seqs=8, max_num_batched_tokens=32)) <= 0.0


def test_nothing_is_handed_over_to_engines_without_free_slots():
    assert saved(here=engine("answers", max_num_seqs=3)) <= 0.0


def test_a_prefill_set_that_all_prompts_would_overload_does_not_compute_them():
    assert saved(answering=8, a_second=8.0) <= 0.0
    assert saved(answering=7, a_second=8.0) > 0.0


def test_a_target_that_an_answer_alone_misses_is_no_reason_to_leave():
    assert saved(tpot_s=5e-3) == 0.0


def test_a_first_token_is_in_time_by_its_deadline_or_by_the_target_of_the_service():
    asked = way(request(), FREE)
    needs_s = asked.pick.predicted_ttft_s
    assert in_time(request(), AUTO, asked, NOW + 0.5 - needs_s - 1e-6)
    assert not in_time(request(), AUTO, asked, NOW + 0.5 - needs_s + 1e-6)
    late = request(deadline=NOW + needs_s / 2)
    assert not in_time(late, AUTO, asked, NOW)


SHARES = st.floats(0.0, 1.0)
COUNTS = st.integers(0, 40)
TARGETS = st.sampled_from([4e-3, 6e-3, 7e-3, 8e-3, 10e-3, 20e-3, 50e-3])
LOADS = st.builds(
    lambda name, share, count, tokens, slots: engine(
        name, share=share, answer_tokens=tokens, in_flight=count, running=count, max_num_seqs=slots
    ),
    st.sampled_from(["prefill", "answers"]),
    *(SHARES, COUNTS, st.sampled_from([1.0, 20.0, 100.0, 1000.0]), st.sampled_from([64, 256])),
)
TRAFFIC = st.builds(
    lambda a_second, tokens, prefill, answering: Traffic(a_second, a_second * tokens, prefill + answering, answering),
    *(st.floats(0.0, 100.0), st.sampled_from([100, 1000, 4000]), st.integers(1, 8), st.integers(1, 8)),
)
PROMPTS = st.integers(1, 50_000)


def by_delay(there, here, asked):
    """The rule of delays, written once more."""
    weight = AUTO.ttft_s / AUTO.tpot_s / max(1.0, here.load.answer_tokens)
    return weight * _delay(asked, there) > 2.0 * (0.02 + weight * (_moved(asked, here) + _delay(asked, here)))


@given(LOADS, LOADS, TRAFFIC, PROMPTS)
def test_without_targets_the_sum_of_delays_decides(there, here, traffic, prompt_tokens):
    asked, config = request(prompt_tokens=prompt_tokens), replace(AUTO, ttft_s=None)
    first, then = way(asked, there, config), way(asked, here, config)
    assert pays(asked, config, first, then, traffic) == by_delay(first, then, asked)


@given(LOADS, LOADS, TRAFFIC, PROMPTS, TARGETS)
def test_the_way_with_more_missed_targets_is_never_chosen_and_one_that_saves_none_only_by_less_delay(
    there, here, traffic, prompt_tokens, tpot_s
):
    asked, config = request(prompt_tokens=prompt_tokens), replace(AUTO, tpot_s=tpot_s)
    first, then = way(asked, there, config), way(asked, here, config)
    share = saves(asked, config, first, then, traffic)
    assert -1.0 <= share <= 1.0
    if pays(asked, config, first, then, traffic):
        assert share >= 0.0
        assert share > LEAST_SAVED or _delay(asked, first) > _delay(asked, then) + _moved(asked, then)


@given(LOADS, TRAFFIC, PROMPTS, TARGETS, st.floats(1.0, 3.0))
def test_more_prompts_or_longer_ones_never_let_more_answers_keep_the_target_as_one_set(
    one, traffic, prompt_tokens, tpot_s, factor
):
    more = traffic._replace(prompt_tokens=traffic.prompt_tokens * factor)
    both = traffic._replace(prompt_tokens=traffic.prompt_tokens * factor, requests=traffic.requests * factor)
    missed = [_missed(prompt_tokens, one, tpot_s, each) for each in (traffic, more, both)]
    assert missed[0] <= missed[1] <= missed[2]
    longer = round(prompt_tokens * factor)
    each_longer = traffic._replace(prompt_tokens=traffic.prompt_tokens * longer / prompt_tokens)
    assert missed[0] <= _missed(longer, one, tpot_s, each_longer) + 1e-9


def _missed(prompt_tokens, one, tpot_s, traffic):
    asked, config = request(prompt_tokens=prompt_tokens), replace(AUTO, tpot_s=tpot_s)
    return _missed_as_one(tpot_s, _answer(asked, way(asked, one, config)), traffic)


def test_only_engines_of_the_prefill_set_begin_a_request_that_is_handed_over():
    mixed = way(request(), engine("a"))
    ends = (Endpoint("a", "a", prefill=True), Endpoint("b", "b"), Endpoint("c", "c", prefill=True))
    begun = handed_over(mixed._replace(pick=replace(mixed.pick, endpoints=ends))).pick
    assert ([one.address for one in begun.endpoints], begun.prefill, begun.reason) == (["a", "c"], True, "prefill")
