"""Predictions of Dynamo's planner for an engine: the time of an iteration, and from it TTFT and the time between
tokens.

Source: ai-dynamo/dynamo 1.5.0, 2a6da14c8 (2026-08-21), planner/core, aggregated engines. Its model of an iteration
comes from AIConfigurator or a regression on live steps; the replica's own cost model stands in for both, so that it is
exact here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from inflight_cost.capacity import StepLimits
from inflight_cost.model import CostModel, StepWork


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """Attributes:
    running: requests that decode. kv_tokens: that they hold.
    queued_tokens: prompt tokens not computed yet.
    """

    running: float
    kv_tokens: float
    queued_tokens: float

    def consolidated(self, replicas: int) -> EngineLoad:
        """With one replica less, if all load spreads evenly."""
        factor = replicas / (replicas - 1)
        return EngineLoad(self.running * factor, self.kv_tokens * factor, self.queued_tokens * factor)


@dataclass(frozen=True, slots=True)
class Means:
    """Attributes:
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
    """Attributes:
    limits: of the engine. kv_capacity: tokens that its KV cache holds.
    """

    cost: CostModel
    limits: StepLimits
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
