"""Number of steps until running requests free slots."""

from __future__ import annotations

from typing import NamedTuple


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
