"""Prefill and decode apart: which answers leave the engine that computed their prompt."""

from dataclasses import replace

import pytest

from inflight_gateway.pick.apart import Way, _delay, _moved, handed_over, pays
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


def leaves(there, here, asked=None, config=AUTO):
    asked = asked or request(prompt_tokens=2000)
    return pays(asked, config, way(asked, there), way(asked, here))


BUSY, FREE = engine("prefill", share=0.8), engine("answers")


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
    assert not pays(asked, AUTO, way(asked, there), way(asked, here))


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


def test_only_engines_of_the_prefill_set_begin_a_request_that_is_handed_over():
    mixed = way(request(), engine("a"))
    ends = (Endpoint("a", "a", prefill=True), Endpoint("b", "b"), Endpoint("c", "c", prefill=True))
    begun = handed_over(mixed._replace(pick=replace(mixed.pick, endpoints=ends))).pick
    assert ([one.address for one in begun.endpoints], begun.prefill, begun.reason) == (["a", "c"], True, "prefill")
