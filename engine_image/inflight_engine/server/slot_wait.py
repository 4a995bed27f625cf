"""How many steps pass until running requests have given up slots."""

from __future__ import annotations

from typing import NamedTuple


class Slots(NamedTuple):
    """
    Attributes:
        limit: requests that may run.
        running: that do.
        kv_tokens: capacity of the KV cache.
        prompt, output: tokens of a request, on average.
    """

    limit: int
    running: int
    kv_tokens: int
    prompt: float
    output: float

    def steps_until_free(self, wanted: float) -> float:
        """Steps until so many requests that wait have a slot; 0 where they are free now.

        As many requests run at a time as have a slot and room in the KV cache, where each holds its prompt and half of
        its output on average. They are at any place of their outputs, so in each step one in `output` of them ends.
        """
        held = self.prompt + self.output / 2
        room = self.kv_tokens / held if held else self.limit
        most = max(1.0, self.running, min(self.limit, room))
        return max(0.0, wanted - (most - self.running)) * self.output / most
