"""Predicted waits, and the measurements behind them: arrivals, lengths of outputs, durations of steps."""

from __future__ import annotations

from typing import NamedTuple

from inflight_cost.backlog import backlog_seconds
from inflight_cost.model import StepWork
from inflight_engine.messages import EngineReady, StepCost, StepStats
from inflight_fit.output_lengths import OutputLengths
from inflight_settings.limits import Limits

_NEWEST_STEP = 0.05
"""Weight of the latest step in the average."""

_LOOKED_UP_TOKENS = 100_000
"""So many prompt tokens, about, of the latest admitted requests decide which share is expected in the prefix cache, and
of the latest that were computed how many are copied to and from host memory beside them."""

_ESTIMATE_SECONDS = 1.0
"""Time between two estimates of the mean output. An estimate takes about a millisecond."""


class Load(NamedTuple):
    """Present load of the engine.

    Attributes:
        stats: after its latest step.
        limits, ready: None while the model loads.
        num_requests: requests whose end the engine has not reported, including those on their way to it.
        queued_tokens: prompt tokens of requests that were not admitted.
    """

    stats: StepStats
    limits: Limits | None
    ready: EngineReady | None
    num_requests: int
    queued_tokens: int

    @property
    def waiting(self) -> int:
        """Requests without a slot, including those not yet received by the engine."""
        return max(0, self.num_requests - self.stats.num_running)

    @property
    def waiting_tokens(self) -> int:
        """Uncomputed prompt tokens: the engine's count after its latest step, or the API process's if newer."""
        return max(self.stats.waiting_prompt_tokens, self.queued_tokens)

    def tokens_to_compute(self, computed_share: float) -> float:
        """Prompt tokens that will be computed, where this share of those in the queue is not in the prefix cache."""
        return self.waiting_tokens - self.queued_tokens * (1 - computed_share)


class Slots(NamedTuple):
    """Slots of the engine, and the requests that take them.

    Attributes:
        limit: requests that may run.
        running: requests that run.
        kv_tokens: capacity of the KV cache.
        prompt, output: tokens of a request, on average.
    """

    limit: int
    running: int
    kv_tokens: int
    prompt: float
    output: float

    def steps_until_free(self, wanted: float) -> float:
        """Steps until a number of waiting requests have a slot; 0 if slots are free now.

        As many requests run at a time as have a slot and room in the KV cache, where each holds its prompt and half of
        its output on average. They are at any place of their outputs, so in each step one in `output` of them ends.
        """
        held = self.prompt + self.output / 2
        room = self.kv_tokens / held if held else self.limit
        most = max(1.0, self.running, min(self.limit, room))
        return max(0.0, wanted - (most - self.running)) * self.output / most


class Demand:
    """Arrivals, outputs and steps.

    Attributes:
        step_cost: the latest fit; None: none yet.
        estimate_at: when to estimate the mean output again, seconds, monotonic.
    """

    def __init__(self) -> None:
        self.arrived_requests = self.arrived_prompt_tokens = self.arrived_prompt_tokens_squared = 0
        self.output_lengths = OutputLengths()
        self.step_cost: StepCost | None = None
        self.estimate_at = 0.0
        self._mean_output = 0.0
        self._decoding = StepWork(0, 0, 0, 0)
        """Decodes of the latest step."""
        self._step_seconds = 0.0
        """Mean duration of recent steps."""
        self._looked_up = self._found = 0.0
        """Prompt tokens of admitted requests, the latest most, and those of them that were in the prefix cache."""
        self._computed = self._copied = 0.0
        """Prompt tokens that were computed, the latest most, and those that were copied meanwhile."""
        self._counted = 0, 0
        """Both as the engine process has counted them."""

    @property
    def computed_share(self) -> float:
        """Share of the prompt tokens of recent requests that was computed, and not found in the prefix cache."""
        return 1 - self._found / self._looked_up if self._looked_up else 1.0

    def arrived(self, num_prompt_tokens: int) -> None:
        """Count an accepted request."""
        self.arrived_requests += 1
        self.arrived_prompt_tokens += num_prompt_tokens
        self.arrived_prompt_tokens_squared += num_prompt_tokens**2

    def step(self, stats: StepStats) -> None:
        """Count one step; a report without a step has no computed tokens."""
        if stats.num_prefill_tokens + stats.num_decode_tokens:
            self._step_seconds += (stats.step_seconds - self._step_seconds) * _NEWEST_STEP
            self._decoding = StepWork(stats.num_decode_tokens, 0, stats.decode_kv_tokens, 0)
        kept = max(0.0, 1 - stats.num_prefill_tokens / _LOOKED_UP_TOKENS)
        self._computed = self._computed * kept + stats.num_prefill_tokens
        self._copied = self._copied * kept + stats.copied_tokens
        if stats.prefix_queries != self._counted[0]:
            # Another engine process counts from 0.
            before = self._counted if stats.prefix_queries > self._counted[0] else (0, 0)
            looked_up, found = stats.prefix_queries - before[0], stats.prefix_hits - before[1]
            kept = max(0.0, 1 - looked_up / _LOOKED_UP_TOKENS)
            self._looked_up = self._looked_up * kept + looked_up
            self._found = self._found * kept + found
            self._counted = stats.prefix_queries, stats.prefix_hits

    def estimate(self, now: float) -> None:
        """Estimate the mean output, 0 before any output is complete."""
        self.estimate_at = now + _ESTIMATE_SECONDS
        lengths = self.output_lengths.estimate()
        self._mean_output = 0.0 if lengths is None else lengths.mean

    def seconds_for(self, num_tokens: float, num_requests: float, load: Load) -> float:
        """Seconds until a number of waiting requests have a slot, and a number of prompt tokens are computed beside
        decodes. Without an accurate model of steps, only slots count, by recent step durations."""
        if load.limits is None or load.ready is None:
            return 0.0
        slots = Slots(
            load.limits.max_num_seqs,
            load.stats.num_running,
            load.ready.runner.num_cache_tokens,
            self.arrived_prompt_tokens / max(1, self.arrived_requests),
            self._mean_output,
        )
        steps = slots.steps_until_free(num_requests)
        if self.step_cost is None or not self.step_cost.good:
            return steps * self._step_seconds
        # A prompt's tokens attend to half of it on average, and longer prompts have more of the tokens.
        attended = self.arrived_prompt_tokens_squared / max(1, self.arrived_prompt_tokens) / 2
        cost, budget = self.step_cost.model, load.limits.max_num_batched_tokens
        copied = self._copied / self._computed if self._computed else 0.0
        seconds = backlog_seconds(cost, num_tokens, attended, self._decoding, budget, copied)
        # Slots get free while prompts are computed, and steps that only decode follow where that is not enough.
        prefill_steps = num_tokens / max(1.0, budget - self._decoding.decode_seqs)
        return seconds + max(0.0, steps - prefill_steps) * cost.seconds(self._decoding)

    def predicted_seconds(self, load: Load) -> float:
        """Seconds until all waiting requests have a slot and their prompts are computed. Others are computed while some
        wait for the disk."""
        computing = self.seconds_for(load.tokens_to_compute(self.computed_share), load.waiting, load)
        return max(computing, load.stats.disk_wait_seconds)
