"""`min_tokens`: a request with fewer tokens cannot sample a token that would end it."""

from __future__ import annotations

import math

from inflight_engine.scheduling.plan import SlotStart, StepPlan

Biases = tuple[tuple[int, float], ...]
"""Pairs (token id, addend of its logit), each token once."""


class MinTokens:
    """The slots that may not stop yet, and how many tokens they must have before."""

    def __init__(self) -> None:
        self._left: dict[int, int] = {}
        self._biases: dict[int, Biases] = {}

    def start(self, start: SlotStart) -> Biases:
        """Return the biases with which a request begins: its own, and those that keep it from stopping."""
        sampling = start.sampling
        stops = sampling.stop_token_ids
        left = sampling.min_tokens - (len(start.token_ids) - start.num_prompt_tokens)
        if left <= 0 or not stops or sampling.is_masked:  # the mask withholds them
            return sampling.logit_bias
        self._left[start.slot], self._biases[start.slot] = left, sampling.logit_bias
        others = tuple(each for each in sampling.logit_bias if each[0] not in stops)
        return others + tuple((token_id, -math.inf) for token_id in dict.fromkeys(stops))

    def release(self, slot: int) -> None:
        self._left.pop(slot, None)
        self._biases.pop(slot, None)

    def advance(self, plan: StepPlan) -> dict[int, Biases]:
        """Count what a step samples, when its starts are known; gives the slots that may stop from this step on, with
        their biases from then on."""
        if not self._left:
            return {}
        free = {}
        for slot in self._left.keys() & set(plan.sampled_slots.tolist()):
            if self._left[slot] > 0:
                self._left[slot] -= 1
                continue
            free[slot] = self._biases[slot]
            self.release(slot)
        return free
