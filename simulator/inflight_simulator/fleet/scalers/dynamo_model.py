"""What Dynamo's planner predicts of an engine: the time of an iteration, and from it time to first token and between
tokens.

Source: ai-dynamo/dynamo 1.5.0, 2a6da14c8 (2026-08-21), planner/core, aggregated engines. Its model of an iteration
comes from AIConfigurator or a regression on live steps; the replica's own cost model stands in for both, so that it is
never wrong here.
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
    """Tokens of a mean request; hit_rate: share of the prompt in the prefix cache."""

    prompt: float
    output: float
    hit_rate: float = 0.0

    @property
    def computed(self) -> float:
        return self.prompt * (1 - min(self.hit_rate, 0.95))


@dataclass(frozen=True, slots=True)
class IterationModel:
    """Attributes:
    limits: of the engine. kv_capacity: tokens that its KV cache holds.
    """

    cost: CostModel
    limits: StepLimits
    kv_capacity: float

    def ttft(self, load: EngineLoad, means: Means) -> float:
        """Seconds until the first token of a mean request that comes now, behind what is queued, in chunks."""
        left = load.queued_tokens + means.computed
        budget = max(1.0, self.limits.max_num_batched_tokens - load.running)
        full = math.floor(left / budget)
        rest = left - full * budget
        return full * self._step(load, budget, means) + (self._step(load, rest, means) if rest > 0 else 0.0)

    def itl(self, load: EngineLoad) -> float:
        """Seconds between two tokens while nothing is prefilled."""
        return self.cost.seconds(StepWork(load.running, 0, load.kv_tokens, 0))

    def largest_rate(self, means: Means, ttft: float, tpot: float) -> float:
        """Requests a second of one engine at the batch that gives most within both targets; 0: none keeps them."""
        best = 0.0
        for batch in range(1, self.limits.max_num_seqs + 1):
            load = EngineLoad(batch, batch * (means.prompt + means.output / 2), 0.0)
            seconds = self._step(load, batch * means.computed / means.output, means)
            if load.kv_tokens > self.kv_capacity or seconds > tpot or self.ttft(load, means) > ttft:
                break
            best = max(best, batch / (means.output * seconds))
        return best

    def _step(self, load: EngineLoad, prefill: float, means: Means) -> float:
        """All that runs decodes, beside so many prompt tokens of mean prompts."""
        return self.cost.seconds(StepWork(load.running, prefill, load.kv_tokens, prefill * means.prompt / 2))
