"""Tuning by the cost model on a model engine (arithmetic, not an engine), beside fixed limits of a coarse sweep."""

import math
import random
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from inflight_operator.decide.replicas.demand import MAX_ERROR, DemandHistory
from inflight_operator.decide.tuning.tune import TuningMode, decide_tuning
from inflight_operator.decide.tuning.types import Slo, TuningModel, TuningPolicy, TuningState
from inflight_operator.decide.tuning.workload import recent_workload
from inflight_operator.observe.window import Window
from inflight_operator.reconcile.views import tuning_model, tuning_view
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


def driven(engine, arriving, bounds, seconds, tune, error=0.03, first_cost=None):
    """Requests in target by the second of their end, and the times of changes. The engine reports its true cost, in the
    first 8 s `first_cost`."""
    slo = Slo(*engine.targets)
    engine.cost_error = error
    limits = Limits(engine.max_num_seqs, engine.max_num_batched_tokens)
    state, window, demand = TuningState(0.0), Window(), DemandHistory()
    upcoming, now, good, changes = iter(arriving), 0.0, [], []
    following = next(upcoming)
    while now < seconds:
        now += 3.0
        while following is not None and following[0] <= now:
            engine.run_until(following[0])
            engine.add(*following[1:])
            following = next(upcoming, None)
        engine.run_until(now)
        good.append((now, engine.in_target))
        if not tune:
            continue
        engine.reported_cost = engine.true_cost if first_cost is None or now > 8.0 else first_cost
        sample = engine.sample()
        window = window.with_samples({"pod": sample}, {"pod"}, engine.time)
        demand = demand.with_samples({"pod": sample}, {}, engine.time)
        workload = recent_workload(demand)
        known = demand.replica is not None and workload is not None
        model = TuningModel(demand.replica, workload, error) if known else None
        view = tuning_view(window, state.window_start, engine.time, slo, {"pod": "chat-1"})
        decision = decide_tuning(TuningMode.AUTO, view, limits, bounds, slo, model, state, TuningPolicy())
        limits, state = decision.limits, decision.state
        changes += [now] * bool(decision.changes)
        engine.max_num_seqs, engine.max_num_batched_tokens = limits.max_num_seqs, limits.max_num_batched_tokens
    return good, changes


@cache
def course(start, shifted, tune):
    engine = ModelEngine(max_num_seqs=start[0], max_num_batched_tokens=start[1], targets=(TTFT, TPOT))
    return driven(engine, arrivals(shifted), BOUNDS, SECONDS, tune)


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


class Machine(NamedTuple):
    """Seconds of a step, lengths of requests, TTFT and TPOT targets; three bad starts, and limits to compare with.

    Attributes:
        most: requests a second that it carries within its targets.
    """

    base: float
    per_prefill: float
    per_decode: float
    prompt: float
    output: float
    targets: tuple[float, float]
    most: float
    bounds: LimitsBounds
    starts: tuple[tuple[int, int], ...]
    sweep: tuple[tuple[int, int], ...]


CPU = Machine(
    0.009, 0.24e-3, 0.3e-3, 59, 36, (1.0, 0.06), 34.0, LimitsBounds(Limits(1, 32), Limits(128, 4096)),
    ((2, 512), (128, 512), (24, 4096)), tuple((seqs, tokens) for seqs in (12, 32, 96) for tokens in (96, 160, 2048)),
)  # fmt: skip
GPU = Machine(
    0.0055, 31e-6, 72e-6, 1150, 210, (0.5, 0.05), 17.7, LimitsBounds(Limits(1, 64), Limits(512, 16_384)),
    ((8, 512), (512, 2048), (64, 16_384)), tuple((seqs, tokens) for seqs in (100, 180) for tokens in (512, 1024, 8192)),
)  # fmt: skip
LONG = Machine(
    0.0055, 36e-6, 0.3e-3, 6700, 135, (4.0, 0.05), 3.1, LimitsBounds(Limits(1, 64), Limits(512, 16_384)),
    ((2, 512), (256, 2048), (24, 16_384)), tuple((seqs, tokens) for seqs in (6, 24) for tokens in (512, 1024, 8192)),
)  # fmt: skip
TWO_MINUTES = 120.0


@cache
def requests(machine, rate):
    numbers, time, made = random.Random(3), 0.0, []

    def length(mean, spread):
        return max(1, round(min(16 * mean, mean * math.exp(numbers.gauss(0, spread) - spread**2 / 2))))

    while time < TWO_MINUTES:
        time += numbers.expovariate(rate)
        made.append((time, length(machine.prompt, 0.9), length(machine.output, 0.8)))
    return tuple(made)


@cache
def course_on(machine, share, slow, start, tune):
    """A course at a share of what the machine carries, with steps that take `slow` times as long as its model says."""
    engine = ModelEngine(
        *machine[:3], *start, kv_tokens=400_000, targets=machine.targets, slow=slow, noise=0.1, ordered=True
    )
    error = 0.03 if slow == 1 else 0.09
    return driven(engine, requests(machine, machine.most * share / slow), machine.bounds, TWO_MINUTES, tune, error)[0]


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize(("share", "slow"), [(0.6, 1.0), (0.9, 1.0), (0.9, 1.12)])
@pytest.mark.parametrize("machine", [CPU, GPU, LONG], ids=["cpu", "gpu", "long-prompts"])
def test_on_any_machine_and_load_goodput_is_soon_that_of_the_best_fixed_limits(machine, share, slow, number):
    """Also where steps take longer than the model says, which it knows by the error that it reports."""
    start = machine.starts[number]
    good = course_on(machine, share, slow, start, tune=True)
    fixed = [course_on(machine, share, slow, pair, tune=False) for pair in machine.sweep]
    assert served(good, 60.0, TWO_MINUTES) >= 0.95 * max(served(one, 60.0, TWO_MINUTES) for one in fixed)
    whole = 0.9 if number == 0 else 0.93
    assert served(good, 3.0, TWO_MINUTES) >= whole * max(served(one, 3.0, TWO_MINUTES) for one in fixed)


def test_a_first_move_by_a_cost_that_was_too_low_is_corrected_as_soon_as_steps_show_it():
    engine = ModelEngine(*CPU[:3], *CPU.starts[0], kv_tokens=400_000, targets=CPU.targets, noise=0.1, ordered=True)
    true = engine.true_cost
    low = replace(true, decode_seq_s=true.decode_seq_s * 0.6, prefill_token_s=true.prefill_token_s * 0.6)
    good, changes = driven(engine, requests(CPU, CPU.most * 0.9), CPU.bounds, TWO_MINUTES, True, first_cost=low)
    fixed = [course_on(CPU, 0.9, 1.0, pair, tune=False) for pair in CPU.sweep]
    assert changes[:2] == [6.0, 9.0]
    assert served(good, 3.0, TWO_MINUTES) >= 0.93 * max(served(one, 3.0, TWO_MINUTES) for one in fixed)


def test_a_model_that_is_reliable_no_more_is_used_with_the_largest_error_of_a_reliable_one():
    engine, demand = ModelEngine(), DemandHistory()
    engine.reported_cost = engine.true_cost
    for _ in range(60):
        engine.add(80, 40)
        engine.run_until(engine.time + 1.0)
        demand = demand.with_samples({"pod": engine.sample()}, {}, engine.time)
    for error, used in ((0.05, 0.05), (0.6, MAX_ERROR), (5.0, MAX_ERROR)):
        engine.cost_error = error
        sample = engine.sample()
        demand = demand.with_samples({"pod": sample}, {}, engine.time)
        assert tuning_model(SimpleNamespace(fresh={"pod": sample}), demand).error == used
