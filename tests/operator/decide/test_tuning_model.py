"""Limits from the measured cost of steps: moves, their pods, reverts, and the end of the series."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight_cost.capacity import Replica, Workload, full_step_seconds
from inflight_cost.model import CostModel
from inflight_operator.decide.status.sentences import sentence
from inflight_operator.decide.tuning.model import LEAST_MEMORY, TIGHTEST, modelled_limits
from inflight_operator.decide.tuning.tune import TuningMode, decide_tuning
from inflight_operator.decide.tuning.types import (
    PodQuality,
    Quality,
    Slo,
    TuningModel,
    TuningPolicy,
    TuningState,
)
from inflight_settings.limits import KNOBS, Limits, LimitsBounds
from tests.operator.decide.test_tuning import CALM
from tests.operator.decide.words import said

H100 = Replica(CostModel(5.5e-3, 15e-6, 30e-6, 0.045e-6, 1.05e-9), 400_000)
CONVERSATION = Workload(1157, 1157, 1603**2, 211, 266**2)
MODEL = TuningModel(H100, CONVERSATION, 0.03)
SLO = Slo(0.5, 0.05)
BOUNDS = LimitsBounds(Limits(1, 64), Limits(512, 16_384))
POLICY = TuningPolicy()
BEST = Limits(168, 1072)
BAD = Limits(32, 512)
FRESH = TuningState(window_start=0.0)
FINE = Quality(first_tokens=400, finished=400, ttft_within=0.99, tpot_within=1.0, tokens_per_s=2000, load=10, waiting=0)
POOR = replace(FINE, ttft_within=0.5)


def seen(time, quality=FINE, pods=None, **more):
    """Returns a view in which all pods serve alike, except those in `pods`, by uid."""
    by_pod = tuple(PodQuality(uid, f"chat-{uid}", one) for uid, one in (pods or {"a": quality}).items())
    return replace(
        CALM,
        time=time,
        quality=quality,
        by_pod=by_pod,
        pods=len(by_pod),
        itl_mean=0.03,
        tpot_late=1 - quality.tpot_within,
        **more,
    )


def decide(view, limits, state=FRESH, model=MODEL, mode=TuningMode.AUTO, bounds=BOUNDS):
    return decide_tuning(mode, view, limits, bounds, SLO, model, state, POLICY)


def near(limits, wanted):
    return limits.max_num_seqs == pytest.approx(
        wanted.max_num_seqs, rel=0.15
    ) and limits.max_num_batched_tokens == pytest.approx(wanted.max_num_batched_tokens, rel=0.1)


@pytest.mark.parametrize("start", [(32, 512), (512, 16_384), (32, 16_384), (512, 512), (256, 2048)])
def test_one_pod_alone_goes_to_the_models_limits_in_one_move(start):
    decision = decide(seen(100.0), Limits(*start))
    assert near(decision.limits, BEST)
    assert {change.knob for change in decision.changes} == {"max_num_seqs", "max_num_batched_tokens"}


def test_what_the_model_found_best_is_remembered_until_rules_decide():
    held = decide(seen(100.0), Limits(184, 1088))
    assert near(held.state.modelled, BEST)
    assert near(decide(seen(100.0), BAD, mode=TuningMode.RECOMMEND).state.modelled, BEST)
    assert decide(seen(200.0), Limits(184, 1088), state=held.state, model=None).state.modelled is None


def test_the_reason_says_what_a_full_step_takes_and_what_is_won():
    said_ = said(decide(seen(100.0), Limits(512, 8192)))
    assert said_.startswith("max_num_seqs 512 -> ")
    assert "by the measured cost of steps (error 3%) a full step takes 46ms with" in said_
    assert "target 50ms; 17 requests/s under overload, 18.5 with the limits in force" in said_


def test_limits_that_the_model_finds_as_good_stay():
    decision = decide(seen(100.0), Limits(184, 1088))
    assert (decision.limits, decision.changes, decision.reason.code) == (Limits(184, 1088), (), "AsModelled")


def test_a_model_with_a_larger_error_goes_half_of_the_way_at_a_time():
    start = Limits(32, 16_384)
    decision = decide(seen(100.0), start, model=replace(MODEL, error=0.25))
    wanted = decision.state.modelled
    assert near(wanted, Limits(122, 784))
    middle = [math.sqrt(start.get(knob) * wanted.get(knob)) for knob in KNOBS]
    assert near(decision.limits, Limits(*map(round, middle)))


def test_a_model_with_a_larger_error_is_trusted_with_less_of_the_target():
    sure, unsure = (decide(seen(100.0), BAD, model=replace(MODEL, error=error)).limits for error in (0.0, 0.15))
    full = [full_step_seconds(H100, CONVERSATION, limits) for limits in (sure, unsure)]
    assert full[1] == pytest.approx(full[0] * 0.85, rel=0.03)


def test_recommend_says_what_it_would_do_and_what_it_expects_and_changes_nothing():
    decision = decide(seen(100.0), BAD, mode=TuningMode.RECOMMEND)
    assert decision.limits == BAD
    assert decision.state.move is None
    assert not any(change.applied for change in decision.changes)
    text = sentence(decision.reason)
    assert text.startswith("would change max_num_seqs 32 -> ")
    assert "requests/s under overload" in text


def test_recommend_waits_for_a_whole_window_as_its_advice_starts_no_move():
    advised = decide(seen(100.0), Limits(8, 512), mode=TuningMode.RECOMMEND)
    assert near(advised.state.modelled, BEST)
    early = decide(seen(105.0, span=5.0), Limits(8, 512), advised.state, mode=TuningMode.RECOMMEND)
    assert (early.reason.code, early.changes, early.state) == ("Measuring", (), advised.state)


TWO = {"a": FINE, "b": FINE}


def canary_of(limits=BAD):
    """A decision that began with one pod of two."""
    return decide(seen(100.0, pods=TWO), limits)


def test_with_a_pod_to_compare_with_one_goes_first_and_then_all():
    first = canary_of()
    assert first.limits == BAD
    uid = first.state.canary.uid
    assert near(first.state.canary.limits, BEST)
    to = first.state.canary.limits.max_num_seqs
    assert said(first).startswith(f"max_num_seqs 32 -> {to}: on pod chat-{uid} first")
    then = decide(seen(140.0, pods=TWO), first.limits, first.state)
    assert then.limits == first.state.canary.limits
    assert then.state.canary is None


def test_the_measurements_that_kept_a_move_are_those_of_the_next_decision():
    moved = decide(seen(5.0, span=5.0), Limits(8, 512))
    kept = decide(seen(40.0), moved.limits, moved.state)
    assert kept.reason.code == "Kept"
    assert decide(seen(43.0), kept.limits, kept.state).reason.code == "AsModelled"
    assert decide(seen(43.0), kept.limits, replace(kept.state, window_start=40.0)).reason.code == "Measuring"


def test_a_canary_that_serves_worse_than_the_others_goes_back_and_the_next_goes_half_of_the_way():
    first = canary_of()
    uid = first.state.canary.uid
    back = decide(seen(140.0, pods={**TWO, uid: POOR}), first.limits, first.state)
    assert back.limits == BAD
    assert back.state.canary is None
    assert "50% of requests keep their targets, 99% on the others" in said(back)
    again = decide(seen(160.0, pods=TWO), back.limits, back.state)
    middle = again.state.canary.limits
    assert BAD.max_num_seqs < middle.max_num_seqs < first.state.canary.limits.max_num_seqs * 0.6


def test_a_bracket_closes_after_few_attempts_and_nothing_moves_any_more():
    limits, state, time, canaries = BAD, FRESH, 100.0, 0
    for _ in range(60):
        pods = dict(TWO)
        if state.canary is not None:
            pods[state.canary.uid] = POOR
        decision = decide(seen(time, pods=pods), limits, state)
        canaries += decision.state.canary is not None and state.canary is None
        limits, state, time = decision.limits, decision.state, time + 31
    assert limits == BAD
    assert 2 <= canaries <= 8
    assert decision.reason.code == "BracketClosed"


def test_requests_of_another_size_open_a_closed_bracket():
    limits, state = BAD, FRESH
    for number in range(60):
        pods = {**TWO, state.canary.uid: POOR} if state.canary is not None else TWO
        decision = decide(seen(100.0 + 31 * number, pods=pods), limits, state)
        limits, state = decision.limits, decision.state
    shifted = replace(MODEL, workload=Workload(200, 200, 300**2, 800, 1000**2))
    assert decide(seen(2500.0, pods=TWO), limits, state, model=shifted).state.canary is not None


def test_where_targets_are_missed_all_pods_move_at_once():
    decision = decide(seen(100.0, POOR, pods={"a": POOR, "b": POOR}), BAD)
    assert near(decision.limits, BEST)
    assert decision.state.canary is None


def test_a_move_of_all_pods_that_lost_requests_in_target_is_taken_back():
    moved = decide(seen(100.0), BAD)
    back = decide(seen(140.0, POOR), moved.limits, moved.state)
    assert back.limits == BAD
    assert "reverted: 50% of requests keep their targets, 99% before" in said(back)


def test_a_move_is_not_blamed_for_more_load_or_other_replicas():
    moved = decide(seen(100.0), BAD)
    crowded = decide(seen(140.0, replace(POOR, load=14)), moved.limits, moved.state)
    assert crowded.limits == moved.limits
    fewer = decide(seen(140.0, POOR, pods={"a": POOR, "b": POOR}), moved.limits, moved.state)
    assert fewer.limits == moved.limits


def test_a_move_that_costs_tokens_while_requests_wait_is_taken_back():
    queue = replace(POOR, waiting=20)
    moved = decide(seen(100.0, queue), BAD)
    back = decide(seen(140.0, replace(queue, tokens_per_s=1500)), moved.limits, moved.state)
    assert back.limits == BAD


def test_few_requests_are_measured_for_longer_before_they_judge():
    moved = decide(seen(100.0), BAD)
    few = replace(POOR, first_tokens=5, finished=5)
    wait = decide(seen(140.0, few), moved.limits, moved.state)
    assert (wait.limits, wait.reason.code) == (moved.limits, "Measuring")


def test_tokens_that_come_slower_than_the_model_says_tighten_what_it_solves_for():
    slow = replace(FINE, tpot_within=0.3)
    view = replace(seen(100.0, slow), itl_mean=0.065, tpot_p95=0.07)
    decision = decide(view, BEST)
    assert decision.limits.max_num_batched_tokens < BEST.max_num_batched_tokens * 0.85
    assert decision.state.tighten == pytest.approx(0.8)


def test_the_same_late_tokens_again_tighten_it_no_further():
    """Requests of earlier limits may finish in the next window, too; and a model that has learned from the same steps
    says by itself that they are too long."""
    view = replace(seen(100.0, replace(FINE, tpot_within=0.3)), itl_mean=0.05, tpot_p95=0.055)
    once = decide(view, BEST).state
    assert once.tighten < 1
    again = decide(replace(view, time=131.0), BEST, replace(once, move=None)).state
    assert again.tighten == once.tighten
    learned = replace(MODEL, replica=replace(H100, cost=CostModel(8.5e-3, 17e-6, 34e-6, 0.05e-6, 1.2e-9)))
    assert once.tighten < decide(view, BEST, model=learned).state.tighten <= 1


def test_first_limits_that_are_far_off_move_before_a_whole_window_and_later_ones_after_it():
    early, far = seen(5.0, span=5.0), Limits(8, 512)
    moved = decide(early, far)
    # A model of few steps is trusted with less of the target.
    full = full_step_seconds(H100, CONVERSATION, moved.limits)
    assert full == pytest.approx(SLO.tpot_p95 * 0.95 * POLICY.early, rel=0.03)
    assert moved.state.tighten == 1
    for few in ({"first_tokens": POLICY.early_evidence - 1}, {"load": (POLICY.evidence - 1) / early.span}):
        assert decide(replace(early, quality=replace(FINE, **few)), far).reason.code == "Measuring"
    enough = {"first_tokens": POLICY.early_evidence, "load": POLICY.evidence / early.span}
    assert decide(replace(early, quality=replace(FINE, **enough)), far).changes
    assert decide(early, Limits(150, 960)).reason.code == "Measuring"
    assert decide(early, far, replace(FRESH, episode=-50.0)).reason.code == "Measuring"


SLOWER = replace(MODEL, replica=replace(H100, cost=CostModel(5.5e-3, 15e-6, 60e-6, 0.09e-6, 2.1e-9)))
"""The model after the steps of a first move: twice the cost of each token."""


def test_a_move_is_corrected_before_its_window_is_over_where_the_steps_since_show_that_it_was_too_large():
    moved = decide(seen(5.0, span=5.0), Limits(8, 512)).state
    to, early = moved.move.to, seen(12.0, span=4.0)
    corrected = decide(early, to, moved, model=SLOWER)
    limits, move = corrected.limits, corrected.state.move
    assert full_step_seconds(SLOWER.replica, CONVERSATION, limits) < SLO.tpot_p95
    assert all(limits.get(knob) < to.get(knob) for knob in KNOBS)
    # The service before the first move remains the comparison.
    assert (move.frm, move.before, move.to, move.started) == (Limits(8, 512), moved.move.before, limits, 12.0)
    few = replace(early, quality=replace(FINE, finished=POLICY.evidence - 1))
    assert decide(few, to, moved, model=SLOWER).reason.code == "Measuring"
    assert decide(early, to, moved).reason.code == "Measuring"  # the model is as it was
    assert decide(early, to, moved, model=SLOWER, mode=TuningMode.RECOMMEND).changes == ()
    later = replace(moved, window_start=5.0)
    assert decide(seen(25.0), to, later, model=SLOWER).reason.code == "Kept"


def test_limits_on_the_way_to_others_are_not_corrected_by_the_model_that_chose_them():
    unsure = replace(MODEL, error=0.25)
    moved = decide(seen(100.0), Limits(512, 8192), model=unsure)
    assert full_step_seconds(H100, CONVERSATION, moved.limits) > SLO.tpot_p95 * (1 + POLICY.dead_band)
    assert decide(seen(110.0, span=4.0), moved.limits, moved.state, model=unsure).reason.code == "Measuring"


def test_a_canary_is_not_corrected():
    pods = {"a": FINE, "b": FINE}
    moved = decide(seen(100.0, pods=pods), BAD).state
    assert moved.canary is not None
    decision = decide(seen(110.0, span=4.0, pods=pods), BAD, moved, model=SLOWER)
    assert (decision.reason.code, decision.state.canary) == ("Measuring", moved.canary)


def test_before_a_whole_window_limits_that_cannot_move_leave_the_window_as_it_is():
    one_or_two = LimitsBounds(Limits(1, 64), Limits(2, 512))
    decision = decide(seen(5.0, span=5.0), Limits(1, 512), model=replace(MODEL, error=0.25), bounds=one_or_two)
    assert (decision.reason.code, decision.state) == ("Measuring", FRESH)


def test_a_target_that_only_the_smaller_correction_can_hold_is_still_corrected_by_it():
    """A request alone takes 80% of the target: with an error of 25% none is left, with a correction of 10% some is."""
    base = SLO.tpot_p95 * 0.8
    slow = replace(MODEL, replica=replace(H100, cost=CostModel(base, 17e-6, 34e-6, 0.05e-6, 1.2e-9)))
    for error, tighten in ((0.25, 0.9), (0.1, 0.6)):
        state = replace(FRESH, tighten=tighten)
        decision = decide(seen(100.0), BEST, state, replace(slow, error=error))
        full = full_step_seconds(slow.replica, CONVERSATION, decision.state.modelled)
        assert full == pytest.approx(SLO.tpot_p95 * 0.9 * 0.95, rel=0.03)


def test_requests_slower_than_the_mean_tighten_it_where_full_steps_should_hold_the_target():
    view = replace(seen(100.0, replace(FINE, tpot_within=0.7)), itl_mean=0.047, tpot_p95=0.055)
    assert decide(view, BEST).state.tighten == pytest.approx(full_step_seconds(H100, CONVERSATION, BEST) / 0.055)
    assert decide(replace(view, tpot_late=0.05), BEST).state.tighten == 1
    # Steps of 8,192 tokens are longer than the target: these limits are to blame, not the model.
    assert decide(view, Limits(192, 8192)).state.tighten == 1


def test_an_outlier_beside_quick_tokens_and_a_target_that_one_request_alone_takes_tighten_nothing():
    view = replace(seen(100.0, replace(FINE, tpot_within=0.7)), itl_mean=0.035, tpot_p95=0.065)
    assert decide(view, BEST).state.tighten == 1
    slow = replace(MODEL, replica=Replica(CostModel(42e-3, 30e-6, 60e-6, 0.045e-6, 1.05e-9), 400_000))
    late = replace(seen(100.0, replace(FINE, tpot_within=0.1)), itl_mean=0.06, tpot_p95=0.07)
    assert decide(late, Limits(16, 128), model=slow).state.tighten == 1


def test_late_tokens_are_not_blamed_on_smaller_limits_and_late_first_tokens_are():
    moved = decide(seen(100.0), Limits(512, 16_384))
    assert near(moved.limits, BEST)
    slow = decide(seen(140.0, replace(FINE, tpot_within=0.3)), moved.limits, moved.state)
    assert (slow.limits, slow.reason.code) == (moved.limits, "Kept")
    assert decide(seen(140.0, POOR), moved.limits, moved.state).limits == Limits(512, 16_384)


def test_smaller_limits_that_made_tokens_quick_again_stay_although_they_generate_fewer():
    over = replace(FINE, ttft_within=0.5, tpot_within=0.3, waiting=20)
    moved = decide(seen(100.0, over), Limits(512, 16_384))
    quick = replace(over, tpot_within=1.0, tokens_per_s=1600)
    assert decide(seen(140.0, quick), moved.limits, moved.state).limits == moved.limits


def test_limits_that_are_slower_than_the_model_said_are_not_reverted_but_lowered():
    moved = decide(seen(100.0), Limits(32, 16_384))
    late = replace(seen(140.0, replace(FINE, tpot_within=0.1)), itl_mean=0.056, tpot_p95=0.058)
    lower = decide(late, moved.limits, moved.state)
    assert lower.reason.code == "ByCostModel"
    assert moved.limits.max_num_seqs * 0.7 < lower.limits.max_num_seqs < moved.limits.max_num_seqs
    assert lower.limits.max_num_batched_tokens < moved.limits.max_num_batched_tokens
    # The same where the model has learned meanwhile what such steps take.
    learned = replace(MODEL, replica=replace(H100, cost=CostModel(10.5e-3, 17e-6, 34e-6, 0.05e-6, 1.2e-9)))
    assert full_step_seconds(learned.replica, CONVERSATION, moved.limits) > SLO.tpot_p95 * 1.1
    lower = decide(late, moved.limits, moved.state, model=learned)
    assert (lower.reason.code, lower.state.tighten) == ("ByCostModel", 1)
    assert lower.limits.max_num_seqs < moved.limits.max_num_seqs


def test_a_target_that_is_tightened_stays_one_when_requests_grow():
    slow = Replica(CostModel(20e-3, 30e-6, 60e-6, 0.2e-6, 1.05e-9), 400_000)
    long = TuningModel(slow, Workload(32_000, 32_000, 42_000**2, 211, 266**2), 0.03)
    plain, tightened = (modelled_limits(BOUNDS, SLO, long, replace(FRESH, tighten=share)) for share in (1.0, 0.64))
    assert tightened.max_num_seqs <= plain.max_num_seqs
    assert tightened.max_num_batched_tokens <= plain.max_num_batched_tokens


def test_preemptions_on_every_pod_lower_the_slots_and_one_on_fifty_pods_moves_nothing():
    full = replace(H100, kv_tokens=200_000.0)
    model = replace(MODEL, replica=full)
    limits = decide(seen(100.0), BAD, model=model).limits
    busy = seen(200.0, running=limits.max_num_seqs * 0.9)
    assert decide(replace(busy, preemptions_per_min=4 / 50), limits, model=model).changes == ()
    assert decide(replace(busy, preemptions_per_min=4.0), limits, model=model).limits.max_num_seqs < limits.max_num_seqs


def test_corrections_are_not_forgotten_while_tokens_stay_late_or_requests_are_preempted():
    late = replace(seen(100.0, replace(FINE, tpot_within=0.3)), itl_mean=0.2, tpot_p95=0.2)
    preempted = replace(seen(100.0), preemptions_per_min=4.0, running=BEST.max_num_seqs)
    for view, most in ((late, (TIGHTEST, 1.0)), (preempted, (1.0, LEAST_MEMORY))):
        state, limits = FRESH, BEST
        for time in range(100, 4000, 60):
            now = replace(view, time=float(time), running=limits.max_num_seqs)
            decision = decide(now, limits, replace(state, move=None, bracket=None, window_start=0.0))
            limits, state = decision.limits, decision.state
            if time > 500:
                assert (state.tighten, state.memory) == most


def test_corrections_of_the_model_are_forgotten_after_a_while():
    slow = replace(FINE, tpot_within=0.3)
    busy = replace(seen(100.0, slow), itl_mean=0.065, tpot_p95=0.07, preemptions_per_min=4.0, running=BEST.max_num_seqs)
    corrected = decide(busy, BEST).state
    assert (corrected.tighten, corrected.memory) == (pytest.approx(0.8), pytest.approx(0.85))
    still = decide(seen(100.0 + POLICY.corrected - 1), BEST, replace(corrected, move=None)).state
    assert (still.tighten, still.memory) == (corrected.tighten, corrected.memory)
    later = decide(seen(100.0 + POLICY.corrected), BEST, replace(corrected, move=None)).state
    assert (later.tighten, later.memory) == (1.0, 1.0)


def test_each_correction_is_forgotten_a_while_after_its_own_cause():
    slow = replace(seen(100.0, replace(FINE, tpot_within=0.3)), itl_mean=0.065, tpot_p95=0.07)
    corrected = decide(replace(slow, preemptions_per_min=4.0, running=BEST.max_num_seqs), BEST).state
    again = decide(replace(slow, time=500.0), BEST, replace(corrected, move=None, window_start=0.0)).state
    later = decide(seen(100.0 + POLICY.corrected), BEST, replace(again, move=None, window_start=0.0)).state
    assert (later.tighten < 1, later.memory) == (True, 1.0)


def test_a_correction_that_cannot_grow_is_not_forgotten_while_tokens_are_late():
    base = SLO.tpot_p95 * 0.75
    model = replace(MODEL, replica=replace(H100, cost=CostModel(base, 17e-6, 34e-6, 0.05e-6, 1.2e-9)))
    late = replace(seen(100.0, replace(FINE, tpot_within=0.1)), itl_mean=0.07, tpot_p95=0.08)
    state = decide(late, Limits(16, 128), model=model).state
    assert state.tighten == pytest.approx(0.8)
    still = decide(replace(late, time=900.0), Limits(16, 128), replace(state, move=None), model).state
    assert (still.tighten, still.tighten_until) == (state.tighten, 900.0 + POLICY.corrected)


def test_limits_that_are_moved_into_new_bounds_keep_what_was_learned():
    learned = replace(FRESH, tighten=0.8, tighten_until=900.0, memory=0.85, memory_until=700.0)
    moved = decide(seen(100.0), BEST, learned, bounds=LimitsBounds(Limits(1, 64), Limits(64, 512)))
    assert moved.reason.code == "IntoBounds"
    assert moved.state == replace(learned, window_start=100.0)


@pytest.mark.parametrize("model", [MODEL, None])
def test_limits_outside_of_the_bounds_are_advised_into_them_once_a_window(model):
    bounds = LimitsBounds(Limits(1, 64), Limits(64, 512))
    first = decide(seen(100.0), BEST, model=model, mode=TuningMode.RECOMMEND, bounds=bounds)
    assert first.limits == BEST
    assert [change.applied for change in first.changes][:1] == [False]
    assert all(change.to <= bounds.high.get(change.knob) for change in first.changes)
    early = seen(103.0, span=3.0)
    second = decide(early, BEST, first.state, model=model, mode=TuningMode.RECOMMEND, bounds=bounds)
    assert (second.reason.code, second.state) == ("Measuring", first.state)


@pytest.mark.parametrize(
    "change",
    [
        {"mode": TuningMode.OFF},
        {"mode": TuningMode.RECOMMEND},
        {"bounds": LimitsBounds(Limits(1, 64), Limits(64, 512))},
    ],
)
def test_a_canary_ends_when_the_spec_forbids_it(change):
    first = canary_of()
    assert decide(seen(103.0, pods=TWO), first.limits, first.state, **change).state.canary is None


def test_a_canary_ends_when_its_pod_or_all_others_are_gone_and_without_traffic():
    first = canary_of()
    uid = first.state.canary.uid
    other = "b" if uid == "a" else "a"
    for view in (
        seen(140.0, pods={other: FINE}),
        seen(140.0, pods={uid: FINE}),
        replace(seen(140.0, pods=TWO), generated_tokens=0.0),
    ):
        after = decide(view, first.limits, first.state)
        assert (after.limits, after.state.canary) == (BAD, None)


qualities = st.builds(
    Quality,
    first_tokens=st.integers(0, 500),
    finished=st.integers(0, 500),
    ttft_within=st.floats(0, 1),
    tpot_within=st.floats(0, 1),
    tokens_per_s=st.floats(0, 5000),
    load=st.floats(0, 50),
    waiting=st.floats(0, 100),
)
rounds = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from("abc"), qualities, max_size=3),
        qualities,
        st.floats(3.0, 60.0),
        st.floats(0.005, 0.2),
        st.floats(0, 5),
        st.integers(0, 600),
        st.sampled_from([MODEL, MODEL, MODEL, None, replace(MODEL, error=0.25)]),
        st.sampled_from([TuningMode.AUTO, TuningMode.AUTO, TuningMode.AUTO, TuningMode.RECOMMEND]),
    ),
    min_size=1,
    max_size=30,
)


@given(rounds, st.builds(Limits, st.integers(1, 512), st.integers(64, 16_384)))
@settings(max_examples=100, deadline=None)
def test_whatever_is_measured_limits_stay_within_the_bounds_and_a_canary_ends(course, limits):
    state, time, began = FRESH, 0.0, None
    for pods, quality, seconds, pace, preemptions, running, model, mode in course:
        time += seconds
        view = seen(time, quality, pods or {"a": quality}, running_now=running, span=min(seconds, 30.0))
        view = replace(view, itl_mean=pace, preemptions_per_min=preemptions)
        decision = decide(view, limits, state, model=model, mode=mode)
        if mode is TuningMode.RECOMMEND:
            assert decision.limits == limits
            assert decision.state.canary is None
        assert BOUNDS.clamp(decision.limits) == decision.limits
        canary = decision.state.canary
        if canary is not None:
            assert BOUNDS.clamp(canary.limits) == canary.limits
            began = time if state.canary is None else began
            assert time - began <= 2 * POLICY.patience
        limits, state = decision.limits, decision.state
