"""Prediction of waits, from the recent pace of the engine."""

from __future__ import annotations

from typing import NamedTuple

from inflight_cost.backlog import backlog_seconds
from inflight_cost.model import CostModel, StepWork


class Slots(NamedTuple):
    """
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


class Pace(NamedTuple):
    """
    Attributes:
        step_seconds: mean duration of recent steps.
        cost: cost of a step; None: not known well enough.
        decoding: decodes of the latest step.
        attended: tokens that a prompt token attends to, on average.
        max_num_batched_tokens: limit of the tokens in a step.
    """

    slots: Slots
    step_seconds: float
    cost: CostModel | None
    decoding: StepWork
    attended: float
    max_num_batched_tokens: int

    def seconds(self, num_tokens: float, num_requests: float) -> float:
        """Seconds until a number of waiting requests have a slot, and a number of prompt tokens are computed beside
        decodes. Without an accurate model of steps, only slots count, by recent step durations."""
        steps = self.slots.steps_until_free(num_requests)
        if self.cost is None:
            return steps * self.step_seconds
        budget = self.max_num_batched_tokens
        seconds = backlog_seconds(self.cost, num_tokens, self.attended, self.decoding, budget)
        # Slots get free while prompts are computed, and steps that only decode follow where that is not enough.
        prefill_steps = num_tokens / max(1.0, budget - self.decoding.decode_seqs)
        return seconds + max(0.0, steps - prefill_steps) * self.cost.seconds(self.decoding)
