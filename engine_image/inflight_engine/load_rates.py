"""Measured rates of prefill and of KV copies, which decide between computing and loading."""

from __future__ import annotations

from inflight_engine.cache.loading import LoadRates

_WEIGHT = 0.2
"""Weight of the latest step in the running mean."""
_LEAST_CHANGE = 0.2
"""Relative change from which the scheduler is told: rates are an input of its decisions, and every change of an input
is recorded."""


class LoadRateMeter:
    """Measures the prefill rate over the steps that mainly prefill.

    Args:
        copy_tokens_per_second: at which keys and values are copied one way, measured by the runner at start.
    """

    def __init__(self, copy_tokens_per_second: float) -> None:
        self._copy = copy_tokens_per_second
        self._prefill = 0.0
        self._told = 0.0

    def observe(self, num_prefill_tokens: int, num_decode_tokens: int, seconds: float) -> LoadRates | None:
        """Take in one step; returns the rates when they changed enough to matter."""
        if num_prefill_tokens <= num_decode_tokens or seconds <= 0:
            return None
        rate = (num_prefill_tokens + num_decode_tokens) / seconds
        self._prefill = self._prefill + _WEIGHT * (rate - self._prefill) if self._prefill else rate
        if abs(self._prefill - self._told) <= _LEAST_CHANGE * self._told:
            return None
        self._told = self._prefill
        return LoadRates(prefill=self._prefill, copy=self._copy)
