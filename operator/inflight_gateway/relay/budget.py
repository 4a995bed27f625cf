"""Retry budget of a relay, so that an outage is not amplified.

A token bucket, as Finagle's RetryBudget: each request adds a fraction of a retry, each retry removes one, and some are
granted per second for services with little traffic. Not Envoy's `retry_budget`, which bounds concurrent retries: when a
replica dies, all its requests are retried at the same moment.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BudgetLimits:
    """Limits of the budget. Attributes: ratio: retries per request, in the long run. per_s: retries granted per second
    besides, which refill the budget after a burst. burst: most retries that are saved up: the requests that one failing
    replica has in flight."""

    ratio: float = 0.2
    per_s: float = 10.0
    burst: float = 500.0


class RetryBudget:
    """The bucket, which starts full. `now`: seconds of one monotonic clock."""

    def __init__(self, limits: BudgetLimits, now: float) -> None:
        self._limits = limits
        self._saved = limits.burst
        self._at = now

    def request(self) -> None:
        """Adds the part of a retry that a request brings."""
        self._saved = min(self._limits.burst, self._saved + self._limits.ratio)

    def retry(self, now: float) -> bool:
        """Returns whether a retry is permitted; if so, charges it to the budget."""
        self._saved = min(self._limits.burst, self._saved + (now - self._at) * self._limits.per_s)
        self._at = now
        if self._saved < 1:
            return False
        self._saved -= 1
        return True
