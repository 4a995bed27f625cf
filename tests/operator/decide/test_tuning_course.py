"""Tuning by the cost model on a model engine (arithmetic, not an engine), beside fixed limits of a coarse sweep."""

import random
from functools import cache

import pytest

from inflight_operator.decide.demand import DemandHistory
from inflight_operator.decide.tuning import TuningMode, decide_tuning
from inflight_operator.decide.tuning_types import Slo, TuningModel, TuningPolicy, TuningState
from inflight_operator.decide.tuning_workload import recent_workload
from inflight_operator.observe.window import Window
from inflight_operator.reconcile.views import tuning_view
from inflight_settings.limits import Limits, LimitsBounds
from tests.operator.model_engine import ModelEngine

TTFT, TPOT = 1.0, 0.1
BOUNDS = LimitsBounds(Limits(1, 32), Limits(64, 2048))
STARTS = [(4, 32), (64, 2048), (4, 2048), (64, 32), (32, 256)]
SWEEP = [(seqs, tokens) for seqs in (4, 24, 64) for tokens in (32, 64, 96, 2048)]
SECONDS, SHIFT = 1800.0, 900.0


@cache
def arrivals(shifted):
    """Traffic: 2.8 requests a second, 60% of the engine's capacity within its targets; after the shift 1.0 with prompts
    that are four times as long."""
    numbers, time, made = random.Random(11), 0.0, []
    while time < SECONDS:
        late = shifted and time > SHIFT
        time += numbers.expovariate(1.0 if late else 2.8)
        made.append((time, numbers.randint(160, 480) if late else numbers.randint(20, 140), numbers.randint(20, 60)))
    return tuple(made)


@cache
def course(start, shifted, tune):
    """Requests in target by the second of their end, and the times of changes."""
    engine = ModelEngine(max_num_seqs=start[0], max_num_batched_tokens=start[1], targets=(TTFT, TPOT))
    engine.reported_cost = engine.true_cost
    limits, state, window, demand = Limits(*start), TuningState(0.0), Window(), DemandHistory()
    upcoming, now, good, changes = iter(arrivals(shifted)), 0.0, [], []
    following = next(upcoming)
    while now < SECONDS:
        now += 3.0
        while following is not None and following[0] <= now:
            engine.run_until(following[0])
            engine.add(*following[1:])
            following = next(upcoming, None)
        engine.run_until(now)
        good.append((now, engine.in_target))
        if not tune:
            continue
        sample = engine.sample()
        window = window.with_samples({"pod": sample}, {"pod"}, engine.time)
        demand = demand.with_samples({"pod": sample}, {}, engine.time)
        workload = recent_workload(demand)
        known = demand.replica is not None and workload is not None
        model = TuningModel(demand.replica, workload, 0.03) if known else None
        view = tuning_view(window, state.window_start, engine.time, Slo(TTFT, TPOT), {"pod": "chat-1"})
        decision = decide_tuning(TuningMode.AUTO, view, limits, BOUNDS, Slo(TTFT, TPOT), model, state, TuningPolicy())
        limits, state = decision.limits, decision.state
        changes += [now] * bool(decision.changes)
        engine.max_num_seqs, engine.max_num_batched_tokens = limits.max_num_seqs, limits.max_num_batched_tokens
    return good, changes


def served(good, start, end):
    """Requests in target that ended between two times."""
    at = dict(good)
    return at[end] - at[start]


@cache
def best_fixed(shifted, start, end):
    return max(served(course(pair, shifted, tune=False)[0], start, end) for pair in SWEEP)


@pytest.mark.parametrize("start", STARTS)
def test_from_any_start_goodput_is_that_of_the_best_fixed_limits_within_five_minutes(start):
    good, changes = course(start, False, tune=True)
    assert served(good, 300.0, SECONDS) >= 0.99 * best_fixed(False, 300.0, SECONDS)
    fixed, _ = course(start, False, tune=False)
    assert served(good, 3.0, SECONDS) >= 0.99 * served(fixed, 3.0, SECONDS)
    assert not [time for time in changes if time > 900.0]


@pytest.mark.parametrize("start", [(4, 32), (64, 2048)])
def test_after_longer_prompts_goodput_is_again_that_of_the_best_fixed_limits_within_five_minutes(start):
    good, _ = course(start, True, tune=True)
    assert served(good, SHIFT + 300.0, SECONDS) >= 0.99 * best_fixed(True, SHIFT + 300.0, SECONDS)
