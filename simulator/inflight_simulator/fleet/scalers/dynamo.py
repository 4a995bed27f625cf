"""Dynamo's planner, for aggregated engines, in three modes.

Source: ai-dynamo/dynamo 1.5.0, 2a6da14c8 (2026-08-21), planner/core. While a replica starts, each mode only observes.
The GPU budget of 8 is replaced by the fleet's bounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from inflight_cost.model import CostModel, StepWork
from inflight_settings.limits import Limits
from inflight_simulator.fleet.scalers.signals import Traffic, rounded_up
from inflight_simulator.fleet.view import FleetView

LOAD_TICK_S, FORECAST_TICK_S = 5.0, 180.0
MEANS_S = 180.0
UP, DOWN = 1.0, 0.6
"""Use of a KV cache, for `dynamo-throughput`."""
SENSITIVITY = 0.8
FEWEST = 5
"""Points from which the forecast has a model; before, the last value is the forecast."""


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """Load of an engine.

    Attributes:
        running: requests that decode. kv_tokens: that they hold.
        queued_tokens: prompt tokens not computed yet.
    """

    running: float
    kv_tokens: float
    queued_tokens: float

    def consolidated(self, replicas: int) -> EngineLoad:
        """Returns the load with one replica less, if all load spreads evenly."""
        factor = replicas / (replicas - 1)
        return EngineLoad(self.running * factor, self.kv_tokens * factor, self.queued_tokens * factor)


@dataclass(frozen=True, slots=True)
class Means:
    """Means of the workload.

    Attributes:
        prompt, output: tokens of a mean request. hit_rate: share of the prompt in the prefix cache.
        step_prefill: prompt tokens in a mean step.
    """

    prompt: float
    output: float
    hit_rate: float = 0.0
    step_prefill: float = 0.0

    @property
    def to_compute(self) -> float:
        """Share of prompt tokens that the prefix cache is expected not to have."""
        return 1 - min(self.hit_rate, 0.95)


@dataclass(frozen=True, slots=True)
class IterationModel:
    """Predictions for an engine: the time of an iteration, and from it TTFT and the time between tokens.

    The planner's model of an iteration comes from AIConfigurator or a regression on live steps; the replica's own cost
    model stands in for both, so that it is exact here.

    Attributes:
        limits: of the engine. kv_capacity: tokens that its KV cache holds.
    """

    cost: CostModel
    limits: Limits
    kv_capacity: float

    def ttft(self, load: EngineLoad, means: Means) -> float:
        """Seconds until the first token of a mean request that arrives now, behind what is queued, in chunks."""
        left, budget = (load.queued_tokens + means.prompt) * means.to_compute, self.limits.max_num_batched_tokens
        full = math.floor(left / budget)
        rest = left - full * budget
        return full * self._step(load, budget, means) + (self._step(load, rest, means) if rest > 0 else 0.0)

    def itl(self, load: EngineLoad, means: Means) -> float:
        """Seconds between two tokens, beside the prompt tokens of a mean step and with one request more."""
        more = EngineLoad(load.running + 1, load.kv_tokens + means.prompt + means.output / 2, 0.0)
        return self._step(more, means.step_prefill, means)

    def largest_rate(self, means: Means, ttft: float, tpot: float) -> float:
        """Requests a second of one engine at the largest batch within both targets, at least at a batch of 1."""
        budget, seqs = self.limits.max_num_batched_tokens, self.limits.max_num_seqs
        each = means.prompt + means.output / 2
        # Beyond this many prompts come faster than what the decodes leave of a step's budget computes them.
        balanced = means.output * budget / (means.prompt + means.output)
        rate = 0.0
        for batch in range(1, max(1, int(min(seqs, balanced, self.kv_capacity / each))) + 1):
            prefill = min(batch * means.prompt * means.to_compute / means.output, budget)
            load = EngineLoad(batch, batch * each, prefill)
            seconds = self._step(load, prefill, means)
            if batch > 1 and (seconds > tpot or self.ttft(load, means) > ttft):
                break
            rate = batch / (means.output * seconds)
        return rate

    def _step(self, load: EngineLoad, prefill: float, means: Means) -> float:
        """An iteration in which all running requests decode, beside a number of prompt tokens of mean prompts."""
        return self.cost.seconds(StepWork(load.running, prefill, load.kv_tokens, prefill * means.prompt / 2))


def _engine_loads(view: FleetView) -> list[EngineLoad]:
    return [
        EngineLoad(
            pod.sample.running,
            (pod.sample.kv_usage or 0.0) * pod.kv_tokens,
            float(pod.sample.waiting_prompt_tokens or 0),
        )
        for pod in view.ready
        if pod.sample is not None
    ]


def _scaling_in_progress(view: FleetView) -> bool:
    return len(view.ready) != view.ordered


class DynamoThroughput:
    """`dynamo-throughput`, the default mode, by thresholds of the KV cache: every 5 s, use = (scheduled + queued KV +
    queued prompt tokens) / KV cache; one replica more if any engine's is above 1.0, one less if all are below 0.6."""

    interval_s = LOAD_TICK_S

    def replicas(self, view: FleetView) -> int:
        if _scaling_in_progress(view):
            return view.ordered
        capacities = [pod.kv_tokens for pod in view.ready if pod.sample is not None]
        loads = zip(_engine_loads(view), capacities, strict=True)
        return view.ordered + change_by_use([(load.kv_tokens + load.queued_tokens) / kv for load, kv in loads])


def change_by_use(uses: Sequence[float]) -> int:
    """Returns the change of replicas, 1, 0 or -1, for engines with these uses."""
    if any(use > UP for use in uses):
        return 1
    return -1 if uses and all(use < DOWN for use in uses) else 0


class DynamoLoad:
    """`dynamo-load`, the load loop of SLA mode. Every 5 s: one replica more if all engines are predicted to miss TTFT,
    or all to miss the time between tokens; one less only if, with the load of n on n - 1, every engine keeps the part
    of TTFT that its queue adds below 0.8 of what the target leaves, the time between tokens below 0.8 of its target,
    and the KV cache suffices. One replica each start-up at most.

    Args:
        ttft, tpot: targets in seconds.
    """

    interval_s = LOAD_TICK_S

    def __init__(self, model: IterationModel, ttft: float, tpot: float) -> None:
        self._model, self._ttft, self._tpot = model, ttft, tpot
        self._traffic = Traffic(MEANS_S)

    def replicas(self, view: FleetView) -> int:
        growth, loads = self._traffic.observe(view), _engine_loads(view)
        if not loads or growth.prompt is None or _scaling_in_progress(view):
            return view.ordered
        means = Means(growth.prompt, growth.output or 1.0, growth.hit_rate, growth.step_prefill)
        return view.ordered + change_by_latency(loads, self._model, means, self._ttft, self._tpot)


def change_by_latency(
    loads: Sequence[EngineLoad], model: IterationModel, means: Means, ttft: float, tpot: float
) -> int:
    """Returns the change of replicas, 1, 0 or -1, for engines of which each has one of `loads`."""
    if all(model.ttft(load, means) > ttft for load in loads) or all(model.itl(load, means) > tpot for load in loads):
        return 1
    after = [load.consolidated(len(loads)) for load in loads] if len(loads) > 1 else []
    return -1 if after and all(_keeps(load, model, means, ttft, tpot) for load in after) else 0


def _keeps(load: EngineLoad, model: IterationModel, means: Means, ttft: float, tpot: float) -> bool:
    own = model.ttft(EngineLoad(load.running, load.kv_tokens, 0.0), means)
    combined = EngineLoad(load.running, load.kv_tokens + load.queued_tokens, 0.0)
    return (
        model.ttft(load, means) - own < SENSITIVITY * (ttft - own)
        and model.itl(combined, means) < SENSITIVITY * tpot
        and combined.kv_tokens < model.kv_capacity
    )


class DynamoSla:
    """`dynamo-sla`, the forecast loop, which SLA mode runs without the load loop. Every 180 s: predict the requests,
    prompt and output tokens of the next interval, divide the rate by that of the batch that gives most within both
    targets, round up. No limit on the step.

    Args:
        ttft, tpot: targets in seconds.
    """

    interval_s = FORECAST_TICK_S

    def __init__(self, model: IterationModel, ttft: float, tpot: float) -> None:
        self._model, self._ttft, self._tpot = model, ttft, tpot
        self._traffic = Traffic(FORECAST_TICK_S)
        self._seen: list[tuple[float, float, float]] = []

    def replicas(self, view: FleetView) -> int:
        growth = self._traffic.observe(view)
        if growth.prompt is None or growth.output is None:
            return view.ordered
        self._seen.append((growth.requests_per_second, growth.prompt, growth.output))
        if _scaling_in_progress(view):
            return view.ordered
        rate, prompt, output = map(next_value, zip(*self._seen, strict=True))
        each = self._model.largest_rate(Means(prompt, max(1.0, output), growth.hit_rate), self._ttft, self._tpot)
        return max(1, rounded_up(rate / each))


def next_value(series: Sequence[float]) -> float:
    """The next value of a series by ARIMA(1, 1, 0) without a constant, by least squares: the last difference goes on by
    a share of itself.

    Dynamo lets pmdarima choose the order; with the 20 points of an hour this is what is left to choose. Never below 0.
    """
    if len(series) < FEWEST:
        return series[-1]
    steps = [after - before for before, after in pairwise(series)]
    squares = sum(step * step for step in steps[:-1])
    share = sum(before * after for before, after in pairwise(steps)) / squares if squares else 0.0
    # Outside of (-1, 1) the model is not stationary and would run away.
    return max(0.0, series[-1] + min(max(share, -1.0), 1.0) * steps[-1])
