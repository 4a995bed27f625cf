"""Tuning over whole courses of windows: a machine that is slower than its model or not, with loads, sizes of requests,
noise and modes that change."""

from dataclasses import dataclass, replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from inflight_cost.capacity import Replica, Workload, full_step_seconds
from inflight_cost.limits import saturated_rate
from inflight_cost.model import CostModel
from inflight_operator.decide.tuning.tune import TuningMode, decide_tuning
from inflight_operator.decide.tuning.types import PodQuality, Quality, Slo, TuningModel, TuningPolicy, TuningState
from inflight_settings.limits import Limits, LimitsBounds
from tests.operator.decide.test_tuning import CALM

REPLICA = Replica(CostModel(5.5e-3, 15e-6, 30e-6, 0.045e-6, 1.05e-9), 400_000)
WORKLOADS = (
    Workload(1157, 1157, 1603**2, 211, 266**2),
    Workload(200, 180, 300**2, 400, 500**2),
    Workload(32_000, 32_000, 42_000**2, 211, 266**2),
)
SLO = Slo(5.0, 0.05)
BOUNDS = LimitsBounds(Limits(1, 64), Limits(512, 16_384))
POLICY = TuningPolicy()


@dataclass(frozen=True)
class Stretch:
    """Some seconds of a course. `load`: arrivals as a share of what the machine does with its limits."""

    seconds: float
    workload: Workload
    load: float
    slow: float
    preempts: bool
    pods: int


def stretches(**fixed):
    parts = {
        "seconds": st.floats(60, 1500),
        "workload": st.sampled_from(WORKLOADS),
        "load": st.sampled_from([0.3, 0.8, 1.3]),
        "slow": st.sampled_from([0.9, 1.0, 1.1, 1.5]),
        "preempts": st.booleans(),
        "pods": st.integers(1, 3),
    }
    return st.lists(st.builds(Stretch, **{**parts, **fixed}), min_size=1, max_size=4)


def measured(now, state, limits, stretch, noise):
    """Returns what engines with these limits show."""
    full = full_step_seconds(REPLICA, stretch.workload, limits) * stretch.slow * noise
    pace = full if stretch.load > 1 else full * (0.4 + 0.5 * stretch.load)
    span = max(0.0, min(30.0, now - state.window_start))
    rate = saturated_rate(REPLICA, stretch.workload, limits) * min(1.0, stretch.load)
    within = 1.0 if pace <= SLO.tpot_p95 else 0.2
    tokens = rate * stretch.workload.output
    quality = Quality(int(rate * span), int(rate * span), 0.98, within, tokens, rate, 20.0 * (stretch.load > 1))
    return replace(
        CALM,
        time=now,
        span=span,
        pods=stretch.pods,
        tpot_p95=pace * 1.02,
        tpot_late=1 - within,
        finished=int(rate * span) * stretch.pods,
        itl_mean=pace,
        generated_tokens=tokens * span,
        tokens_per_s=tokens,
        running=limits.max_num_seqs * min(1.0, stretch.load),
        running_now=round(limits.max_num_seqs * min(1.0, stretch.load)),
        preemptions_per_min=4.0 if stretch.preempts else 0.0,
        quality=quality,
        by_pod=tuple(PodQuality(f"uid-{number}", f"chat-{number}", quality) for number in range(stretch.pods)),
    )


def course(stretches, limits, numbers, mode=TuningMode.AUTO, bounds=BOUNDS, error=0.03):
    """Yields (time, stretch, limits before, decision) of each scrape."""
    state, now = TuningState(0.0), 0.0
    for stretch in stretches:
        until = now + stretch.seconds
        while now < until:
            now += 3.0
            noise = numbers.uniform(0.97, 1.03)
            model = TuningModel(REPLICA, replace(stretch.workload, output=stretch.workload.output * noise), error)
            view = measured(now, state, limits, stretch, noise)
            decision = decide_tuning(mode, view, limits, bounds, SLO, model, state, POLICY)
            yield now, stretch, limits, decision
            limits, state = decision.limits, decision.state


anywhere = st.builds(Limits, st.integers(1, 512), st.integers(64, 16_384))
randoms = st.integers(0, 999).map(Random)


@given(stretches(), st.builds(Limits, st.integers(1, 2000), st.integers(1, 50_000)), randoms)
@settings(max_examples=40, deadline=None)
def test_recommend_changes_nothing_and_judges_each_whole_window_once(stretches, limits, numbers):
    """Also where the limits in force are outside of the bounds."""
    judged = 0.0
    for now, _, before, decision in course(stretches, limits, numbers, TuningMode.RECOMMEND):
        assert decision.limits == before == limits
        assert not any(change.applied for change in decision.changes)
        if decision.reason.code == "Measuring":
            assert now - judged <= POLICY.window + 3.0
            continue
        assert now - judged >= POLICY.window
        judged = now
        if decision.reason.code == "NoTraffic":
            continue
        assert decision.state.modelled is not None
        if BOUNDS.clamp(limits) != limits:
            assert decision.changes


@given(stretches(), anywhere, randoms)
@settings(max_examples=40, deadline=None)
def test_a_window_is_judged_in_bounded_time_whatever_changes(stretches, limits, numbers):
    judged = 0.0
    for now, _, before, decision in course(stretches, limits, numbers):
        assert BOUNDS.clamp(decision.limits) == decision.limits
        assert decision.limits == before or decision.changes
        if decision.reason.code not in ("Measuring", "Draining"):
            judged = now
        assert now - judged <= 2 * POLICY.patience + POLICY.settle


@given(stretches(), anywhere, randoms)
@settings(max_examples=60, deadline=None)
def test_a_correction_only_grows_and_ends_a_while_after_its_own_cause(stretches, limits, numbers):
    was, slowed, preempted = TuningState(0.0), 0.0, 0.0
    for now, stretch, _, decision in course(stretches, limits, numbers):
        state = decision.state
        assert state.tighten <= was.tighten or (state.tighten == 1.0 and now >= was.tighten_until)
        assert state.memory <= was.memory or (state.memory == 1.0 and now >= was.memory_until)
        slowed = now if stretch.slow > 0.95 else slowed
        preempted = now if stretch.preempts else preempted
        longest = POLICY.corrected + 2 * POLICY.patience
        assert state.tighten == 1.0 or now - slowed <= longest
        assert state.memory == 1.0 or now - preempted <= longest
        was = state


@given(stretches(seconds=st.just(3600.0), load=st.just(1.3), preempts=st.just(False)), anywhere, randoms)
@settings(max_examples=15, deadline=None)
def test_a_machine_that_stays_as_it_is_gets_limits_that_hold_the_target_and_stay(stretches, limits, numbers):
    stretch = stretches[0]
    late = changes = scrapes = 0
    for now, _, before, decision in course([stretch], limits, numbers):
        if now > 600:
            scrapes += 1
            late += full_step_seconds(REPLICA, stretch.workload, before) * stretch.slow > SLO.tpot_p95 * 1.03
            changes += decision.limits != before
    assert late <= scrapes * 0.1
    assert changes <= 8
