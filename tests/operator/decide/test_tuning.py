"""Tuning: properties for any measurement, each rule, and convergence on a model engine (arithmetic, not an engine)."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight_cost.capacity import Targets
from inflight_operator.decide.decision import Reason
from inflight_operator.decide.tuning.tune import TuningMode, decide_tuning
from inflight_operator.decide.tuning.types import (
    Quality,
    Slo,
    Step,
    Trial,
    TuningPolicy,
    TuningState,
    TuningView,
)
from inflight_operator.observe.window import Window
from inflight_operator.reconcile.views import tuning_view
from inflight_settings.limits import Limits, LimitsBounds
from tests.operator.decide.words import said
from tests.operator.model_engine import ModelEngine

BOUNDS = LimitsBounds(Limits(1, 64), Limits(128, 4096))
SLO = Slo(ttft_p95=0.5, tpot_p95=0.05)
POLICY = TuningPolicy()
AUTO = TuningMode.AUTO

CALM = TuningView(
    time=100.0,
    span=15.0,
    pods=1,
    tpot_p95=0.045,
    tpot_late=0.0,
    finished=20,
    itl_mean=0.042,
    itl_p50=0.04,
    itl_p95=0.06,
    ttft_p95=0.2,
    generated_tokens=2000,
    tokens_per_s=300.0,
    step_tokens_p50=40.0,
    step_tokens_p95=60.0,
    running=30.0,
    running_now=30,
    waiting=0.0,
    waiting_prompt_tokens=0.0,
    kv_usage=0.4,
    preemptions_per_min=0.0,
    quality=Quality(20, 20, 1.0, 1.0, 300.0, 1.0, 0.0),
)
SLOW = replace(CALM, tpot_p95=0.071, itl_mean=0.068, itl_p50=0.066, running=64.0, running_now=64, waiting=10.0)
IDLE = TuningState(window_start=85.0)

seconds = st.none() | st.floats(0.001, 5)
views = st.builds(
    TuningView,
    time=st.just(100.0),
    span=st.floats(0, 60),
    pods=st.integers(1, 3),
    tpot_p95=seconds,
    tpot_late=st.floats(0, 1),
    finished=st.integers(0, 100),
    itl_mean=seconds,
    itl_p50=seconds,
    itl_p95=seconds,
    ttft_p95=seconds,
    generated_tokens=st.floats(0, 10_000),
    tokens_per_s=st.floats(0, 10_000),
    step_tokens_p50=st.none() | st.floats(0, 4096),
    step_tokens_p95=st.none() | st.floats(0, 4096),
    running=st.floats(0, 128),
    running_now=st.integers(0, 128),
    waiting=st.floats(0, 500),
    waiting_prompt_tokens=st.none() | st.floats(0, 100_000),
    kv_usage=st.floats(0, 1),
    preemptions_per_min=st.floats(0, 100),
    quality=st.just(CALM.quality),
)
limits = st.builds(Limits, st.integers(1, 140), st.integers(1, 8192))
slos = st.builds(Slo, seconds, seconds)
trials = st.none() | st.builds(
    Trial,
    step=st.builds(
        Step,
        knob=st.sampled_from(["max_num_seqs", "max_num_batched_tokens"]),
        frm=st.integers(60, 128),
        to=st.integers(60, 128),
        reason=st.just(Reason("TpotOverTarget")),
    ),
    before=views,
    started=st.just(80.0),
)
states = st.builds(TuningState, window_start=st.just(85.0), trial=trials)


def decide(view, current, state=IDLE, slo=SLO, mode=AUTO):
    return decide_tuning(mode, view, current, BOUNDS, slo, None, state, POLICY)


@given(views, limits, slos, states)
@settings(max_examples=400)
def test_at_most_one_knob_changes_and_the_reason_says_how(view, current, slo, state):
    decision = decide_tuning(AUTO, view, current, BOUNDS, slo, None, state, POLICY)
    changed = [
        knob for knob in ("max_num_seqs", "max_num_batched_tokens") if decision.limits.get(knob) != current.get(knob)
    ]
    assert len(changed) <= 1
    assert bool(decision.changes) == bool(changed)
    if decision.changes:
        frm, to = current.get(changed[0]), decision.limits.get(changed[0])
        assert said(decision).startswith(f"{changed[0]} {frm} -> {to}: ")


@given(views, limits, slos)
@settings(max_examples=400)
def test_a_step_from_within_the_bounds_stays_within(view, current, slo):
    current = BOUNDS.clamp(current)
    after = decide_tuning(AUTO, view, current, BOUNDS, slo, None, IDLE, POLICY).limits
    assert BOUNDS.clamp(after) == after


@given(views, limits, slos, states)
def test_nothing_changes_before_a_whole_window_was_measured(view, current, slo, state):
    early = replace(view, span=POLICY.window - 0.1)
    assert decide_tuning(AUTO, early, BOUNDS.clamp(current), BOUNDS, slo, None, state, POLICY).changes == ()


@given(views, limits, slos, states)
def test_nothing_changes_without_traffic(view, current, slo, state):
    idle = replace(view, generated_tokens=0.0)
    decision = decide_tuning(AUTO, idle, BOUNDS.clamp(current), BOUNDS, slo, None, state, POLICY)
    assert decision.changes == ()


@given(views, limits, slos, states)
def test_off_leaves_engines_at_capacity(view, current, slo, state):
    decision = decide_tuning(TuningMode.OFF, view, current, BOUNDS, slo, None, state, POLICY)
    assert (decision.limits, decision.changes) == (BOUNDS.high, ())


@given(views, limits, slos)
def test_recommend_says_what_auto_would_do_and_does_nothing(view, current, slo):
    current = BOUNDS.clamp(current)  # what is outside of the bounds changes at once, and is advised after a window
    auto = decide_tuning(AUTO, view, current, BOUNDS, slo, None, IDLE, POLICY)
    advice = decide_tuning(TuningMode.RECOMMEND, view, current, BOUNDS, slo, None, IDLE, POLICY)
    assert advice.limits == current
    assert advice.changes == tuple(replace(change, applied=False) for change in auto.changes)
    assert advice.state.trial is None


@pytest.mark.parametrize("share", [0.81, 0.95, 1.0, 1.09])
def test_within_the_dead_band_nothing_changes_even_with_a_queue(share):
    tpot = share * 0.05
    view = replace(SLOW, tpot_p95=tpot, itl_mean=tpot, itl_p50=tpot)
    decision = decide(view, Limits(64, 2048))
    assert decision.changes == ()
    assert decision.reason.code == "InDeadBand"


def test_slow_decodes_lower_the_slots_with_what_was_measured():
    decision = decide(SLOW, Limits(64, 2048))
    assert said(decision) == "max_num_seqs 64 -> 47: p95 TPOT 71ms over target 50ms"


def test_lowering_starts_from_what_runs_so_that_it_bites():
    view = replace(SLOW, running=20.0, running_now=20, step_tokens_p50=22.0, step_tokens_p95=30.0)
    assert decide(view, Limits(64, 2048)).limits.max_num_seqs < 20


def test_prefill_that_fills_the_steps_is_cut_before_the_slots():
    view = replace(SLOW, running=20.0, running_now=20, step_tokens_p50=300.0, step_tokens_p95=900.0)
    decision = decide(view, Limits(64, 2048))
    assert decision.changes[0].knob == "max_num_batched_tokens"
    assert decision.limits.max_num_batched_tokens < 900
    assert said(decision).endswith("p95 TPOT 71ms over target 50ms, prefill fills the steps")


def test_the_token_budget_is_never_cut_below_what_running_requests_need():
    view = replace(SLOW, running=60.0, running_now=60, step_tokens_p50=125.0, step_tokens_p95=125.0, itl_mean=4.0)
    assert decide(view, Limits(64, 2048)).limits.max_num_batched_tokens == 120


def test_a_load_that_is_leaving_lowers_nothing():
    view = replace(SLOW, running=8.0, running_now=1)
    assert decide(view, Limits(64, 2048)).changes == ()


def test_one_burst_of_prompts_among_slow_decodes_is_not_taken_for_prefill_that_fills_the_steps():
    view = replace(SLOW, running=24.0, running_now=24, step_tokens_p50=24.0, step_tokens_p95=4096.0, itl_p50=0.07)
    assert decide(view, Limits(256, 8192)).changes[0].knob == "max_num_seqs"


def test_preemptions_lower_the_slots_first_of_all():
    view = replace(SLOW, preemptions_per_min=3.0, kv_usage=0.99, running=40.0, running_now=42)
    decision = decide(view, Limits(64, 2048))
    assert said(decision) == "max_num_seqs 64 -> 31: 3 preemptions/min, KV cache 99% full"


def test_a_queue_with_room_raises_the_slots():
    view = replace(CALM, tpot_p95=0.03, itl_mean=0.03, running=16.0, running_now=16, waiting=9.0)
    decision = decide(view, Limits(16, 2048))
    assert said(decision) == "max_num_seqs 16 -> 24: 9 requests wait, p95 TPOT 30ms well under target 50ms"


def test_slots_are_not_added_past_what_the_kv_cache_holds():
    view = replace(CALM, tpot_p95=0.01, itl_mean=0.01, running=16.0, running_now=16, waiting=9.0, kv_usage=0.8)
    assert decide(view, Limits(16, 2048)).limits.max_num_seqs == 18
    assert decide(replace(view, kv_usage=0.95), Limits(16, 2048)).changes == ()


def test_late_first_tokens_raise_the_budget_where_steps_reach_it():
    view = replace(
        CALM, tpot_p95=0.03, itl_mean=0.03, ttft_p95=2.0, waiting_prompt_tokens=5000.0, step_tokens_p95=500.0
    )
    decision = decide(view, Limits(64, 512))
    assert said(decision) == (
        "max_num_batched_tokens 512 -> 752: p95 TTFT 2s over target 500ms, p95 TPOT 30ms well under target 50ms"
    )
    assert decide(replace(view, step_tokens_p95=100.0), Limits(64, 512)).changes == ()


def test_few_finished_requests_leave_it_to_inter_token_latency():
    decision = decide(replace(SLOW, finished=2, tpot_p95=9.0), Limits(64, 2048))
    assert "mean inter-token latency 68ms over target 50ms" in said(decision)


def test_finished_requests_that_carry_an_old_setting_lower_nothing():
    assert decide(replace(SLOW, itl_mean=0.03, itl_p50=0.03), Limits(64, 2048)).changes == ()


def test_a_step_up_that_breaks_the_target_is_taken_back_and_the_next_goes_half_of_the_way():
    before = replace(CALM, tpot_p95=0.03, itl_mean=0.03, running=16.0, running_now=16, waiting=9.0)
    first = decide(before, Limits(16, 2048))
    assert first.limits.max_num_seqs == 24
    worse = replace(before, time=116.0, tpot_p95=0.06, itl_mean=0.06, running=24.0, running_now=24)
    back = decide(worse, first.limits, first.state)
    assert back.limits.max_num_seqs == 16
    assert said(back) == "max_num_seqs 24 -> 16: reverted, 60ms a token since, over target 50ms"
    slow = {"tpot_p95": 0.06, "itl_mean": 0.06}
    second = decide(replace(before, time=132.0), back.limits, back.state)
    assert second.limits.max_num_seqs == 20
    back = decide(replace(before, time=148.0, **slow), second.limits, second.state)
    third = decide(replace(before, time=164.0), back.limits, back.state)
    assert third.limits.max_num_seqs == 18
    back = decide(replace(before, time=180.0, **slow), third.limits, third.state)
    assert back.limits.max_num_seqs == 16
    rest = decide(replace(before, time=196.0), back.limits, back.state)
    assert rest.changes == ()
    later = decide(replace(before, time=200.0 + POLICY.fence), rest.limits, rest.state)
    assert later.limits.max_num_seqs == 24


def test_a_step_down_that_only_costs_throughput_is_taken_back():
    first = decide(SLOW, Limits(64, 2048))
    useless = replace(SLOW, time=116.0, tokens_per_s=200.0, running=47.0, running_now=47)
    back = decide(useless, first.limits, first.state)
    assert back.limits.max_num_seqs == 64
    assert "reverted, 300 -> 200 tokens/s since" in said(back)


def test_a_target_that_one_request_alone_would_miss_costs_no_further_slots():
    tight = Slo(tpot_p95=0.01)
    first = decide(SLOW, Limits(64, 2048), slo=tight)
    lower = replace(SLOW, time=116.0, itl_mean=0.05, running=32.0, running_now=32)
    back = decide(lower, first.limits, first.state, slo=tight)
    assert back.limits.max_num_seqs == first.limits.max_num_seqs
    later = replace(lower, time=140.0, itl_mean=0.04)
    assert decide(later, back.limits, back.state, slo=tight).limits.max_num_seqs == back.limits.max_num_seqs


def test_a_change_that_was_measured_with_other_replicas_is_not_blamed_for_them():
    tight = Slo(tpot_p95=0.01)
    first = decide(SLOW, Limits(64, 2048), slo=tight)
    crowded = replace(SLOW, time=116.0, pods=2, itl_mean=0.2, itl_p50=0.2, running=32.0, running_now=32)
    after = decide(crowded, first.limits, first.state, slo=tight)
    assert after.reason.code != "TakenBack"
    assert after.limits.max_num_seqs <= first.limits.max_num_seqs


def test_a_lowered_slot_limit_is_judged_only_once_it_holds():
    first = decide(SLOW, Limits(64, 2048))
    draining = replace(SLOW, time=118.0, span=18.0, running_now=60)
    wait = decide(draining, first.limits, first.state)
    assert wait.reason.code == "Draining"
    assert wait.state.window_start == 118.0
    endless = replace(draining, time=100.0 + POLICY.window * POLICY.drain_windows)
    assert decide(endless, first.limits, first.state).reason.code != "Draining"


def test_limits_outside_new_bounds_come_in_at_once():
    decision = decide(replace(CALM, span=0.0), Limits(500, 2048))
    assert said(decision) == "max_num_seqs 500 -> 128: moved into the bounds of spec.tuning and the capacity"


def run(engine, arrivals, until, slo, bounds, tick=3.0):
    """Drives a model engine with the real decisions; returns the reasons in order and the limits in the end."""
    current, state, window = Limits(engine.max_num_seqs, engine.max_num_batched_tokens), TuningState(0.0), Window()
    upcoming, reasons, now = iter(arrivals), [], 0.0
    following = next(upcoming, None)
    while now < until:
        now += tick
        while following and following[0] <= now:
            engine.run_until(following[0])
            engine.add(following[1], following[2])
            following = next(upcoming, None)
        engine.run_until(now)
        window = window.with_samples({"pod": engine.sample()}, {"pod"}, engine.time)
        view = tuning_view(window, state.window_start, engine.time, slo, {})
        decision = decide_tuning(AUTO, view, current, bounds, slo, None, state, POLICY)
        current, state = decision.limits, decision.state
        engine.max_num_seqs, engine.max_num_batched_tokens = current.max_num_seqs, current.max_num_batched_tokens
        if decision.changes:
            reasons.append((now, said(decision)))
    return reasons, current


MODEL_BOUNDS = LimitsBounds(Limits(1, 64), Limits(64, 2048))


def test_a_burst_on_a_model_engine_changes_both_limits_within_a_minute():
    burst = [(5 + i * 0.25, 120, 80) for i in range(240)]
    reasons, _ = run(ModelEngine(max_num_seqs=64), burst, 70.0, Slo(1.0, 0.05), MODEL_BOUNDS)
    first = reasons[0][0]
    assert first <= 5 + 2 * POLICY.window
    assert any(reason.startswith("max_num_batched_tokens 2048 -> ") for _, reason in reasons)
    assert any(reason.startswith("max_num_seqs 64 -> ") for _, reason in reasons)


@pytest.mark.parametrize("start", [64, 4])
def test_from_any_start_a_model_engine_settles_where_the_target_holds(start):
    """p95 TPOT of 80ms at 20ms + 3ms a request: about 16 slots by the model; prefill takes some of that."""
    numbers = random.Random(3)
    steady = [(i / 6, numbers.randint(10, 60), numbers.randint(40, 80)) for i in range(3600)]
    engine = ModelEngine(max_num_seqs=start, max_num_batched_tokens=512)
    run(engine, steady, 300.0, Slo(None, 0.08), MODEL_BOUNDS)
    before = engine.tpot.value()
    late = [(300 + at, prompt, output) for at, prompt, output in steady[:1500]]
    reasons, settled = run(engine, late, 540.0, Slo(None, 0.08), MODEL_BOUNDS)
    assert engine.tpot.value().since(before).percentile(0.95) <= 0.08 * 1.15
    assert 8 <= settled.max_num_seqs <= 20
    assert len(reasons) <= 4  # settled: few steps more in four minutes


def test_short_memory_on_a_model_engine_ends_with_few_preemptions():
    numbers = random.Random(5)
    arrivals = [(i / 3, numbers.randint(20, 600), numbers.randint(20, 150)) for i in range(1800)]
    tuned = ModelEngine(max_num_seqs=64, kv_tokens=4000)
    run(tuned, arrivals, 400.0, Slo(None, 0.5), MODEL_BOUNDS)
    fixed = ModelEngine(max_num_seqs=64, kv_tokens=4000)
    for at, prompt, output in arrivals[:1200]:
        fixed.run_until(at)
        fixed.add(prompt, output)
    fixed.run_until(400.0)
    assert tuned.preemptions < fixed.preemptions / 3
    assert tuned.finished >= fixed.finished


def test_what_is_measured_is_compared_with_the_ttft_target_of_a_mean_prompt():
    slo = Slo(0.5, 0.05, 60e-6)
    assert slo.of_mean(1000.0) == Slo(0.56, 0.05)
    assert Slo(None, 0.05, 60e-6).of_mean(1000.0) == Slo(None, 0.05)
    assert slo.targets == Targets(0.5, 0.05, 60e-6)
