"""The replica of a request, the order of the others, and when the request should wait instead."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_gateway.engines.fleet import MOST_BY_LOAD, MOST_RANKED
from inflight_gateway.pick.growth import Growing, Growth
from inflight_gateway.pick.late_binding import LEAST_STEPS, most_outstanding, slots_worth
from inflight_gateway.pick.load import STALE_S, EndpointLoad, decode_work
from inflight_gateway.pick.picker import (
    LEAST_FIRST_TOKEN_WITHIN_S,
    MOST_FIRST_TOKEN_WITHIN_S,
    Picker,
    first_token_within,
)
from inflight_gateway.types import ScoreWeights
from tests.gateway.pick.loads import CONFIG, NOW, addresses, load, request


def pick(loads, config=CONFIG, **fields):
    return Picker().pick(request(**fields), config, loads, NOW)


def test_the_replica_with_the_fewest_pending_tokens_is_first():
    loads = [load("a", waiting_prompt_tokens=4000, waiting=2), load("b"), load("c", waiting_prompt_tokens=2000)]
    found = pick(loads)
    assert addresses(found) == ["b", "c", "a"]
    assert found.reason == "least-work"


def test_tokens_sent_since_the_scrape_count_like_waiting_ones_and_computed_ones_do_not():
    waiting = load("a", waiting_prompt_tokens=3000, waiting=3)
    sent = load("b", sent_tokens=2000)
    computed = load("c", waiting_prompt_tokens=8000, waiting=3, computed_tokens=7000)
    assert addresses(pick([waiting, sent, computed])) == ["c", "b", "a"]


def test_a_cached_prefix_wins_over_a_queue_that_is_shorter_by_less_than_it_saves():
    holder = load("a", cached_tokens=900, waiting_prompt_tokens=300, waiting=1)
    found = pick([holder, load("b")])
    assert addresses(found)[0] == "a"
    assert (found.reason, found.cached_tokens) == ("prefix", 900)
    behind = load("a", cached_tokens=900, waiting_prompt_tokens=3000, waiting=1)
    found = pick([behind, load("b")])
    assert addresses(found)[0] == "b"
    assert (found.reason, found.cached_tokens) == ("least-work", 0)


def test_running_requests_and_a_full_kv_cache_decide_between_replicas_without_a_queue():
    assert addresses(pick([load("a", running=200, in_flight=200), load("b", running=100, in_flight=100)]))[0] == "b"
    assert addresses(pick([load("a", kv_utilization=0.6), load("b", kv_utilization=0.3)]))[0] == "b"


@pytest.mark.parametrize(
    ("score", "better", "worse"),
    [
        ("pending_tokens", {}, {"waiting_prompt_tokens": 2000, "waiting": 2}),
        ("predicted_ttft", {}, {"waiting_prompt_tokens": 2000, "waiting": 2}),
        ("running", {"running": 3}, {"running": 100}),
        ("kv_cache", {"kv_utilization": 0.1}, {"kv_utilization": 0.9}),
        ("prefix", {"cached_tokens": 900}, {}),
    ],
)
def test_each_score_alone_prefers_the_better_replica_and_weighs_nothing_with_weight_0(score, better, worse):
    off = ScoreWeights(0, 0, 0, 0, 0)
    alone = replace(CONFIG, weights=replace(off, **{score: 1.0}))
    loads = [load("a", **worse), load("b", **better)]
    for name in "xyz":
        assert addresses(pick(loads, alone, name=name))[0] == "b"
    found = pick(loads, replace(CONFIG, weights=off))
    assert set(found.scores.values()) == {0.0}


def test_equal_replicas_share_requests_about_evenly_and_the_same_request_gets_the_same_one():
    loads = [load(address) for address in "abcd"]
    firsts = Counter(addresses(pick(loads, name=f"request {number}"))[0] for number in range(400))
    assert set(firsts) == set("abcd")
    assert min(firsts.values()) > 60
    assert addresses(pick(loads, name="one")) == addresses(pick(loads[::-1], name="one"))


def test_replicas_that_failed_the_request_come_last_and_serve_it_when_there_are_no_others():
    loads = [load("a"), load("b", waiting_prompt_tokens=4000, waiting=2)]
    assert addresses(pick(loads, avoid=frozenset("a"))) == ["b", "a"]
    assert addresses(pick(loads[:1], avoid=frozenset("a"))) == ["a"]


def test_a_request_waits_rather_than_going_back_to_the_replica_that_failed_it():
    full = most_outstanding(256)
    loads = [load("a"), load("b", in_flight=full)]
    assert pick(loads, avoid=frozenset("a")) is None


def test_no_more_replicas_are_named_than_may_be_tried():
    loads = [load(address) for address in "abcdef"]
    assert len(pick(loads).endpoints) == CONFIG.max_attempts
    assert len(pick(loads, replace(CONFIG, max_attempts=1)).endpoints) == 1


def test_a_request_is_held_while_every_replica_has_enough_to_do_and_starts_at_one_that_has_just_come():
    busy = [load(address, waiting_prompt_tokens=60_000, waiting=60, in_flight=90) for address in "abc"]
    assert pick(busy) is None
    fresh = load("d", sample=None)
    assert addresses(pick([*busy, fresh]))[0] == "d"


def test_a_replica_keeps_a_few_steps_of_prefill_queued():
    budget = 2048
    assert pick([load("a", waiting_prompt_tokens=LEAST_STEPS * budget, waiting=9)]) is not None
    assert pick([load("a", waiting_prompt_tokens=6_000, waiting=6)]) is None


def test_no_more_is_queued_than_a_share_of_the_ttft_target_takes_to_compute():
    slow = replace(CONFIG, ttft_s=2.0)
    # Half a second at about 30 us a token and 5 ms a step.
    assert pick([load("a", waiting_prompt_tokens=14_000, waiting=14)], slow) is not None
    assert pick([load("a", waiting_prompt_tokens=20_000, waiting=20)], slow) is None


def test_more_may_be_queued_where_the_prefix_cache_saves_as_much():
    behind = {"waiting_prompt_tokens": 8_000, "waiting": 8}
    assert pick([load("a", **behind)], prompt_tokens=8000) is None
    assert pick([load("a", cached_tokens=7_500, **behind)], prompt_tokens=8000) is not None


def test_a_prompt_of_any_length_starts_at_an_idle_replica():
    assert pick([load("a")], prompt_tokens=390_000) is not None


def test_slots_bound_what_is_outstanding_with_a_small_factor_and_count_what_others_sent():
    most = most_outstanding(256)
    assert 256 < most <= 1.1 * 256
    assert pick([load("a", in_flight=most - 1)]) is not None
    assert pick([load("a", in_flight=most)]) is None
    assert pick([load("a", in_flight=most - 100, others=100)]) is None


def test_without_a_cost_model_the_bound_is_in_steps_and_nothing_is_predicted():
    found = pick([load("a", cost=None)])
    assert found.predicted_ttft_s is None
    assert pick([load("a", cost=None, waiting_prompt_tokens=LEAST_STEPS * 2048 + 1, waiting=9)]) is None


def test_a_replica_without_its_own_cost_is_judged_by_that_of_another():
    assert pick([load("a", cost=None), load("b")]).predicted_ttft_s is not None


def test_without_samples_the_replica_with_the_fewest_requests_in_flight_is_first():
    loads = [load("a", sample=None, in_flight=2), load("b", sample=None, in_flight=1)]
    found = pick(loads)
    assert addresses(found) == ["b", "a"]
    assert (found.reason, found.predicted_ttft_s) == ("least-requests", None)
    full = most_outstanding(CONFIG.max_num_seqs)
    assert pick([load("a", sample=None, in_flight=full)]) is None


def test_old_samples_are_as_good_as_none():
    old = NOW - STALE_S - 1
    loads = [load("a", at=old, in_flight=3), load("b", at=old, waiting_prompt_tokens=10**6, in_flight=1)]
    assert (addresses(pick(loads)), pick(loads).reason) == (["b", "a"], "least-requests")


def test_of_an_old_sample_among_fresh_ones_only_the_requests_in_flight_count():
    old = load("a", at=NOW - STALE_S - 1, waiting_prompt_tokens=10**6, waiting=99)
    assert addresses(pick([old, load("b", waiting_prompt_tokens=2000, waiting=2)]))[0] == "a"


def test_no_replica_and_one_replica():
    assert pick([]) is None
    assert pick([load("a")]).reason == "only"


def test_the_first_token_may_take_several_times_its_prediction_and_never_less_than_ten_seconds():
    assert first_token_within(0.0) >= LEAST_FIRST_TOKEN_WITHIN_S == 10.0
    assert first_token_within(30.0) >= 3 * 30.0
    assert first_token_within(1e9) == MOST_FIRST_TOKEN_WITHIN_S
    assert first_token_within(None) >= 30.0


def test_the_predicted_ttft_is_the_backlog_and_the_own_prompt_in_the_cost_models_seconds():
    found = pick([load("a", waiting_prompt_tokens=4096, waiting=4)])
    steps = 4096 / 2048 * (5e-3 + 2048 * 30e-6)
    assert found.predicted_ttft_s == pytest.approx(steps + 1000 * 30e-6 + 5e-3, rel=0.1)


def test_the_predicted_ttft_of_a_long_prompt_has_the_decodes_of_each_of_its_steps():
    busy = load("a", running=48, kv_utilization=0.5)
    short, long = pick([busy], prompt_tokens=1000), pick([busy], prompt_tokens=20_001)
    model = busy.sample.cost
    decodes_s = model.seconds(decode_work(busy.sample, 48))
    assert short.predicted_ttft_s == pytest.approx(1.5 * decodes_s + model.prefill_seconds(1000))
    assert long.predicted_ttft_s == pytest.approx(
        0.5 * decodes_s + 20_001 / (2048 - 48) * decodes_s + model.prefill_seconds(20_001)
    )


@pytest.mark.parametrize(
    ("ready", "kept_free", "starts"), [(4, 0.0, True), (1, 0.9, True), (2, 2.0, False), (3, 2.0, True)]
)
def test_a_request_that_keeps_replicas_free_starts_while_more_of_them_are_ready(ready, kept_free, starts):
    loads = [load(f"10.0.0.{number}:8000", in_flight=0 if number < ready else 10**6) for number in range(6)]
    assert (Picker().pick(request(), CONFIG, loads, NOW, kept_free=kept_free) is not None) is starts


@pytest.mark.parametrize(("ready", "starts"), [(MOST_BY_LOAD - 1, False), (MOST_BY_LOAD, True)])
def test_in_a_large_service_enough_are_kept_free_if_those_with_the_least_load_are_ready(ready, starts):
    """The others, which hold the prefix of the prompt, are busy."""
    loads = [load(f"10.0.0.{number}:80", in_flight=0 if number < ready else 10**6) for number in range(MOST_RANKED)]
    assert (Picker().pick(request(), CONFIG, loads, NOW, replicas=500, kept_free=99.0) is not None) is starts


def test_half_of_the_replicas_are_kept_free_at_most_and_an_only_one_is_not():
    half = [load("10.0.0.1:8000"), load("10.0.0.2:8000"), load("10.0.0.3:8000", in_flight=10**6)]
    assert Picker().pick(request(), CONFIG, half, NOW, kept_free=99.0) is not None
    assert Picker().pick(request(), CONFIG, half[:1], NOW, kept_free=99.0) is not None


_LOADS = st.lists(
    st.builds(
        lambda address, fields, in_flight, sent, computed, cached, fresh: load(
            address,
            in_flight=in_flight,
            sent_tokens=sent,
            computed_tokens=min(computed, sent),
            cached_tokens=cached,
            **(fields if fresh else {"sample": None}),
        ),
        st.integers(0, 20).map(lambda number: f"10.0.0.{number}:8000"),
        st.fixed_dictionaries(
            {
                "running": st.integers(0, 300),
                "waiting": st.integers(0, 50),
                "waiting_prompt_tokens": st.integers(0, 10**5),
                "kv_utilization": st.floats(0, 1),
                "kv_cache_tokens": st.sampled_from([0, 1000, 400_000]),
                "max_num_batched_tokens": st.sampled_from([1, 512, 16_384]),
                "at": st.floats(0, NOW),
            }
        ),
        st.integers(0, 300),
        st.integers(0, 50_000),
        st.integers(0, 50_000),
        st.integers(0, 999),
        st.booleans(),
    ),
    max_size=6,
    unique_by=lambda each: each.endpoint.address,
)


@given(loads=_LOADS, avoid=st.frozensets(st.integers(0, 20).map(lambda number: f"10.0.0.{number}:8000"), max_size=4))
def test_any_loads_give_different_endpoints_of_the_service_the_avoided_ones_last(loads, avoid):
    found = pick(loads, replace(CONFIG, max_attempts=99), avoid=avoid)
    if found is None:
        return
    known = {each.endpoint for each in loads}
    assert set(found.endpoints) == known
    assert len(found.endpoints) == len(known)
    avoided = [each.address in avoid for each in found.endpoints]
    assert avoided == sorted(avoided)
    assert LEAST_FIRST_TOKEN_WITHIN_S <= found.first_token_within_s <= MOST_FIRST_TOKEN_WITHIN_S


@given(loads=_LOADS, number=st.integers(0, 5))
def test_a_replica_with_nothing_to_do_never_stays_idle_while_a_request_waits(loads, number):
    idle = load("idle")
    assert pick([*loads[:number], idle, *loads[number:]]) is not None


def test_a_load_needs_no_more_than_endpoint_and_sample():
    first = load("a")
    assert pick([EndpointLoad(first.endpoint, first.sample)]) is not None


@given(st.integers(1, 512), st.integers(0, 600))
def test_a_tenant_above_its_share_leaves_slots_where_others_start(max_num_seqs, in_flight):
    for sampled in (
        load("a", in_flight=in_flight, max_num_seqs=max_num_seqs),
        load("a", sample=None, in_flight=in_flight),
    ):
        config = replace(CONFIG, max_num_seqs=max_num_seqs)
        above = Picker().pick(request(), config, [sampled], NOW, above_share=True)
        below = Picker().pick(request(), config, [sampled], NOW)
        assert above is None or below is not None
        assert above is None or in_flight == 0 or in_flight + 1 < max_num_seqs
        assert below is not None or in_flight > max_num_seqs
        assert above is not None or in_flight > 0


@given(
    st.integers(0, 16_000),
    st.floats(0, 1),
    st.integers(0, 16_000),
    st.integers(1, 20_000),
)
def test_a_tenant_above_its_share_leaves_a_tenth_of_the_kv_cache_unless_nothing_is_there(
    waiting_tokens, kv_utilization, sent_tokens, prompt_tokens
):
    scraped = load(
        "a",
        sent_tokens=sent_tokens,
        computed_tokens=waiting_tokens + sent_tokens,
        waiting_prompt_tokens=waiting_tokens,
        kv_utilization=kv_utilization,
        kv_cache_tokens=16_000,
    )
    asked = request(prompt_tokens=prompt_tokens)
    held = waiting_tokens + sent_tokens + kv_utilization * 16_000
    above = Picker().pick(asked, CONFIG, [scraped], NOW, above_share=True)
    assert (above is not None) == (held == 0 or held + prompt_tokens <= 14_400)
    assert Picker().pick(asked, CONFIG, [scraped], NOW) is not None


@pytest.mark.parametrize(
    ("held", "growing", "starts"),
    [
        pytest.param(9000, [], True, id="its own answer fits"),
        pytest.param(13_000, [], False, id="its own answer does not"),
        pytest.param(9000, [Growing(left=6000, held=4000)], False, id="the answers that run grow beside it"),
        pytest.param(9000, [Growing(left=10, held=9000)], True, id="one that runs ends before"),
    ],
)
def test_a_tenant_above_its_share_leaves_room_for_answers_to_grow(held, growing, starts):
    scraped = load("a", kv_utilization=held / 16_000, kv_cache_tokens=16_000)
    scraped = scraped._replace(growth=Growth(growing), answer_tokens=1500.0)
    asked = request(prompt_tokens=100)
    assert (Picker().pick(asked, CONFIG, [scraped], NOW, above_share=True) is not None) == starts
    assert Picker().pick(asked, CONFIG, [scraped], NOW) is not None


def test_tokens_that_wait_for_kv_blocks_are_not_ahead_of_a_request_of_a_tenant_below_its_share():
    """The engine preempted requests of another tenant, and lets this one pass them."""
    waiting = 10 * LEAST_STEPS * 2048
    full = load("a", waiting=20, waiting_prompt_tokens=waiting, kv_utilization=0.95)
    assert Picker().pick(request(), CONFIG, [full], NOW) is None
    assert Picker().pick(request(), CONFIG, [full], NOW, below_share=True) is not None
    computing = load("a", waiting=20, waiting_prompt_tokens=waiting, kv_utilization=0.5)
    assert Picker().pick(request(), CONFIG, [computing], NOW, below_share=True) is None


def test_choices_of_a_tenant_above_its_share_take_no_slot_that_it_leaves_free():
    half_full = load("a", in_flight=32, max_num_seqs=64)
    for choices, starts in ((1, True), (28, True), (29, False)):
        asked = request(choices=choices, prompt_tokens=1)
        assert (Picker().pick(asked, CONFIG, [half_full], NOW, above_share=True) is not None) == starts
        assert Picker().pick(asked, CONFIG, [half_full], NOW) is not None
    assert Picker().pick(request(choices=1000), CONFIG, [load("a")], NOW, above_share=True) is not None


def test_a_request_of_many_choices_is_worth_a_slot_for_each():
    scraped = load("a", kv_cache_tokens=16_000, max_num_seqs=64)._replace(answer_tokens=20)
    assert slots_worth(scraped, 100, choices=64) == 64
    assert slots_worth(scraped._replace(answer_tokens=1000), 0, choices=8) == 32
    assert slots_worth(load("a", sample=None), 100, choices=64) == 64


@pytest.mark.parametrize(("prompt", "answer", "slots"), [(100, 20, 1), (100, 250, 1), (1000, 1000, 8), (0, 0, 1)])
def test_a_request_is_worth_the_slots_whose_part_of_the_kv_cache_it_fills(prompt, answer, slots):
    scraped = load("a", kv_cache_tokens=16_000, max_num_seqs=64)._replace(answer_tokens=answer)
    assert slots_worth(scraped, prompt) == slots
    assert slots_worth(load("a", sample=None), prompt) == 1
    assert slots_worth(load("a", kv_cache_tokens=0), prompt) == 1
