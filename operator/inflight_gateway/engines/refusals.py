"""Short memory of endpoints that refused a request. Pure."""

from __future__ import annotations

REFUSAL_S = 1.0
"""Seconds for which other endpoints are preferred: by then the next scrape says whether an engine is gone or full."""


class Refusals:
    """`now`: seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        """By address, in the order of these times."""

    def refused(self, address: str, now: float) -> None:
        self._until.pop(address, None)
        self._until[address] = now + REFUSAL_S

    def __len__(self) -> int:
        return len(self._until)

    def recent(self, address: str, now: float) -> bool:
        """Whether the endpoint refused a request a moment ago."""
        return self._until.get(address, now) > now

    def expire(self, now: float) -> None:
        """Forgets old refusals."""
        while self._until:
            address, until = next(iter(self._until.items()))
            if until > now:
                break
            del self._until[address]
