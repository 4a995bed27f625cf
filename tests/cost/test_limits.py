"""The limits that hold the targets under overload, by the cost model."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight_cost.capacity import Margins, Replica, Targets, Workload, full_step_seconds
from inflight_cost.limits import best_limits, largest
from inflight_cost.model import CostModel, StepWork
from inflight_settings.limits import Limits, LimitsBounds

H100 = Replica(CostModel(5.5e-3, 15e-6, 30e-6, 0.045e-6, 1.05e-9), 400_000)
CONVERSATION = Workload(1157, 1157, 1603**2, 211, 266**2)
BOUNDS = LimitsBounds(Limits(1, 64), Limits(512, 16_384))
TARGETS = Targets(0.5, 0.05)


def test_a_full_step_holds_the_tpot_target_and_a_tenth_more_tokens_would_not():
    limits = best_limits(H100, CONVERSATION, TARGETS, BOUNDS)
    assert full_step_seconds(H100, CONVERSATION, limits) <= 0.05
    more = Limits(limits.max_num_seqs, int(limits.max_num_batched_tokens * 1.1))
    assert full_step_seconds(H100, CONVERSATION, more) > 0.05


def test_a_saturated_replica_admits_as_many_requests_as_it_ends_and_those_whose_prompts_it_computes():
    """With prompts computed at full steps, Little's law gives the decodes: they fit the slots, and few more do."""
    limits = best_limits(H100, CONVERSATION, TARGETS, BOUNDS)
    decodes = 170.0  # 42 ms of a step beside its base, 52 ms of work a request, 211 decodes each
    prompts = (limits.max_num_batched_tokens - decodes) / CONVERSATION.computed
    assert decodes == pytest.approx(prompts * CONVERSATION.output, rel=0.1)
    assert decodes <= limits.max_num_seqs <= decodes * 1.05


def test_a_cache_that_is_small_bounds_the_slots_and_leaves_the_rest_of_the_step_to_prompts():
    small = replace(H100, kv_tokens=40_000)
    limits = best_limits(small, CONVERSATION, TARGETS, BOUNDS)
    ample = best_limits(H100, CONVERSATION, TARGETS, BOUNDS)
    assert limits.max_num_seqs * CONVERSATION.decode_context <= 0.9 * 40_000
    assert limits.max_num_batched_tokens > ample.max_num_batched_tokens


def test_a_tighter_target_gives_smaller_limits():
    pairs = [best_limits(H100, CONVERSATION, Targets(0.5, tpot), BOUNDS) for tpot in (0.02, 0.03, 0.05, 0.1)]
    for less, more in pairwise(pairs):
        assert less.max_num_seqs < more.max_num_seqs
        assert less.max_num_batched_tokens < more.max_num_batched_tokens


def test_without_targets_memory_bounds_the_slots_and_throughput_the_budget():
    limits = best_limits(H100, CONVERSATION, Targets(), BOUNDS)
    assert 0.8 < limits.max_num_seqs * CONVERSATION.decode_context / 400_000 <= 0.9
    assert 4096 < limits.max_num_batched_tokens < 16_384


def test_a_ttft_target_alone_bounds_a_step_to_a_part_of_it():
    limits = best_limits(H100, CONVERSATION, Targets(ttft=0.5), BOUNDS)
    assert full_step_seconds(H100, CONVERSATION, limits) <= 0.125


def test_a_ttft_target_that_grows_with_the_prompt_bounds_a_step_by_that_of_a_mean_prompt():
    limits = best_limits(H100, CONVERSATION, Targets(0.3, None, 0.2 / 1157), BOUNDS)
    assert limits == best_limits(H100, CONVERSATION, Targets(0.5), BOUNDS)


def test_a_target_that_one_request_alone_would_miss_bounds_nothing():
    assert best_limits(H100, CONVERSATION, Targets(None, 0.004), BOUNDS) == best_limits(
        H100, CONVERSATION, Targets(), BOUNDS
    )


def test_prompts_in_the_prefix_cache_cost_no_budget():
    cached = replace(CONVERSATION, computed=CONVERSATION.prompt / 4)
    found = best_limits(H100, cached, TARGETS, BOUNDS)
    assert found.max_num_seqs > best_limits(H100, CONVERSATION, TARGETS, BOUNDS).max_num_seqs


def test_a_machine_with_a_curve_is_solved_on_its_curve():
    curved = Replica(CostModel(0.0, 0, 0, 1e-7, 0, curve=((1, 0.02), (64, 0.04), (256, 0.2), (1024, 0.9))), 50_000)
    limits = best_limits(curved, Workload(200, 200, 220**2, 60, 80**2), Targets(None, 0.1), BOUNDS)
    tokens = limits.max_num_batched_tokens
    assert 64 < tokens < 256
    assert curved.cost.seconds(StepWork(0, tokens, 0, 0)) <= 0.1


@given(st.floats(0.97, 1.03), st.floats(0.97, 1.03), st.floats(0.97, 1.03))
def test_noise_of_3_percent_moves_the_limits_by_less_than_an_eighth(prompt, output, step):
    workload = Workload(1157 * prompt, 1157 * prompt, (1603 * prompt) ** 2, 211 * output, (266 * output) ** 2)
    cost = replace(H100.cost, base_s=5.5e-3 * step, prefill_token_s=30e-6 * step)
    found = best_limits(replace(H100, cost=cost), workload, TARGETS, BOUNDS)
    wanted = best_limits(H100, CONVERSATION, TARGETS, BOUNDS)
    assert found.max_num_batched_tokens == pytest.approx(wanted.max_num_batched_tokens, rel=0.125)
    assert found.max_num_seqs == pytest.approx(wanted.max_num_seqs, rel=0.2)


factors = st.floats(0, 1e-3)
curves = st.lists(st.tuples(st.integers(1, 10_000), st.floats(0, 1)), max_size=4, unique_by=lambda pair: pair[0]).map(
    lambda pairs: tuple(zip(sorted(p[0] for p in pairs), sorted(p[1] for p in pairs), strict=True))
)


@given(
    st.builds(CostModel, st.floats(1e-5, 1), factors, factors, st.floats(0, 1e-6), st.floats(0, 1e-7), curve=curves),
    st.floats(16, 1e7),
    st.floats(1, 1e5),
    st.floats(0, 1),
    st.floats(1, 1e4),
    st.builds(Targets, st.none() | st.floats(1e-3, 10), st.none() | st.floats(1e-3, 10)),
)
@settings(max_examples=300, deadline=None)
def test_limits_stay_between_the_bounds_whatever_was_measured(cost, kv, prompt, computed, output, targets):
    workload = Workload(prompt, prompt * computed, prompt**2 * 1.5, output, output**2 * 1.5)
    low, high = Limits(2, 32), Limits(300, 5000)
    found = best_limits(Replica(cost, kv), workload, targets, LimitsBounds(low, high), Margins())
    assert low.max_num_seqs <= found.max_num_seqs <= high.max_num_seqs
    assert low.max_num_batched_tokens <= found.max_num_batched_tokens <= high.max_num_batched_tokens


@pytest.mark.parametrize("cost", [CostModel(0, 100.0, 0, 0, 0), CostModel(0, 0, 0, 1.0, 0)])
def test_prompt_tokens_that_cost_nothing_are_not_bounded_by_their_cost(cost):
    low, high = Limits(1, 64), Limits(256, 8192)
    assert (
        best_limits(Replica(cost, 1e6), Workload(100, 100, 20_000, 20, 500), Targets(), LimitsBounds(low, high)) == high
    )


@given(
    st.sampled_from([10, 200, 1157, 8000, 32_000]),
    st.floats(0.05, 1.0),
    st.integers(2, 2000),
    st.sampled_from([0.01, 0.02, 0.05, 0.2]),
    st.integers(2, 512),
    st.integers(16, 16_384),
)
@settings(max_examples=200, deadline=None)
def test_slots_have_room_for_one_in_prefill_and_the_budget_for_it_beside_all_decodes(
    prompt, computed, output, tpot, most_seqs, most_tokens
):
    workload = Workload(prompt, prompt * computed, 2 * prompt**2, output, 2 * output**2)
    bounds = LimitsBounds(Limits(1, 1), Limits(most_seqs, most_tokens))
    limits = best_limits(H100, workload, Targets(5.0, tpot), bounds)
    memory = 0.9 * H100.kv_tokens / workload.decode_context
    assert limits.max_num_seqs >= min(2, int(memory))
    # As many prompt tokens as the requests that end in a step bring, but for what is rounded.
    decodes = limits.max_num_seqs - max(1.0, limits.max_num_seqs / (output + 1))
    if decodes > 1:
        arriving = decodes / output * workload.computed
        assert decodes + 0.9 * arriving <= limits.max_num_batched_tokens * 1.04 + 1


@given(st.floats(0, 1e9), st.sampled_from([2.0**24, 10.0, 123.4]))
def test_the_largest_number_is_found_as_by_halvings_alone_in_fewer_calls(number, most):
    calls = []

    def holds(tried):
        calls.append(tried)
        return tried <= number

    low, high = 0.0, most
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if middle <= number else (low, middle)
    assert largest(holds, most) == (most if most <= number else low)
    assert len(calls) <= 57
    assert len(calls) <= 40 or number > most / 2**17
