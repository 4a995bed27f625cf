"""Measurements that predictions of waits need: arrivals, lengths of outputs, durations of steps."""

from __future__ import annotations

from inflight_cost.model import StepWork
from inflight_engine.cost_fit.online import GOOD_ERROR
from inflight_engine.messages import EngineReady, StepCost, StepStats
from inflight_engine.output_lengths import OutputLengths
from inflight_engine.scheduling.limits import Limits
from inflight_engine.server.admission.pace import Pace, Slots

_NEWEST_STEP = 0.05
"""Weight of the latest step in the average."""

_ESTIMATE_SECONDS = 1.0
"""Time between two estimates of the mean output. An estimate takes about a millisecond."""


class Demand:
    """
    Attributes:
        step_cost: the engine's latest fit; None: none yet.
        estimate_at: when to estimate the mean output again, seconds, monotonic.
    """

    def __init__(self) -> None:
        self.arrived_requests = self.arrived_prompt_tokens = self.arrived_prompt_tokens_squared = 0
        self.output_lengths = OutputLengths()
        self.step_cost: StepCost | None = None
        self._decoding = StepWork(0, 0, 0, 0)
        self._step_seconds = 0.0
        self.estimate_at = 0.0
        self._mean_output = 0.0

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

    def estimate(self, now: float) -> None:
        """Estimate the mean output, 0 before any output is complete."""
        self.estimate_at = now + _ESTIMATE_SECONDS
        lengths = self.output_lengths.estimate()
        self._mean_output = 0.0 if lengths is None else lengths.mean

    def pace(self, num_running: int, limits: Limits | None, ready: EngineReady | None) -> Pace | None:
        """The pace of an engine with these values; None while the model loads."""
        if limits is None or ready is None:
            return None
        cost = self.step_cost
        return Pace(
            Slots(
                limits.max_num_seqs,
                num_running,
                ready.runner.num_cache_tokens,
                self.arrived_prompt_tokens / max(1, self.arrived_requests),
                self._mean_output,
            ),
            self._step_seconds,
            None if cost is None or cost.error > GOOD_ERROR else cost.model,
            self._decoding,
            # A prompt's tokens attend to half of it on average, and longer prompts have more of the tokens.
            self.arrived_prompt_tokens_squared / max(1, self.arrived_prompt_tokens) / 2,
            limits.max_num_batched_tokens,
        )
