"""How fast prompt work goes lately, and what that means for the queue."""

from __future__ import annotations

import math

from inflight_engine.messages import StepStats

HALF_LIFE_SECONDS = 10.0
"""Of step time: old enough to be smooth, young enough to follow a change of limits."""


class Throughput:
    """Tokens computed per second of step time, over the latest steps that computed prompt tokens.

    Steps of decodes only are left out: they are bound by the batch, not by speed, and would make a queue behind a
    single slow stream look endless.
    """

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0

    def add(self, stats: StepStats) -> None:
        if stats.num_prefill_tokens == 0:
            return
        keep = math.exp2(-stats.step_seconds / HALF_LIFE_SECONDS)
        self._tokens = self._tokens * keep + stats.num_prefill_tokens + stats.num_decode_tokens
        self._seconds = self._seconds * keep + stats.step_seconds

    def seconds_for(self, tokens: float) -> float:
        """Seconds that `tokens` take at the measured rate; 0 while nothing was measured."""
        return tokens * self._seconds / self._tokens if self._tokens else 0.0
