"""Attempts of one request so far. Pure: no clock, no I/O."""

from __future__ import annotations

from collections.abc import Collection

from inflight_gateway.relay.decide import Failure, Tried


class History:
    """Attributes: number: of the latest attempt, from 1; 0: none yet."""

    def __init__(self) -> None:
        self.number = 0
        self._failures = self._deaths = 0
        self._failed_at = 0.0
        self._avoid: dict[str, None] = {}

    @property
    def avoid(self) -> Collection[str]:
        """Endpoints that failed this request, in this order."""
        return self._avoid.keys()

    def begin(self) -> None:
        """An attempt begins."""
        self.number += 1

    def failed(self, failure: Failure, endpoint: str, now: float, *, advanced: bool) -> Tried:
        """The attempt failed.

        Args:
            endpoint: that responded; empty: unknown.
            now: seconds of one monotonic clock.
            advanced: the answer had a token or an end of a choice from this attempt.
        """
        if endpoint:
            self._avoid[endpoint] = None
        elif failure is Failure.BUSY:
            # All other replicas are busy or removed; a failed one may be ready again by then.
            self._avoid.clear()
        if failure is not Failure.BUSY:
            self._failures += 1
            self._failed_at = now
        if failure in (Failure.CUT, Failure.DIED) and endpoint and not advanced:
            self._deaths += 1
        return Tried(self._failures, now - self._failed_at, self._deaths)
