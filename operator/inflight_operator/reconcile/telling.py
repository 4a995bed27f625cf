"""What became of telling an engine its limits."""

from __future__ import annotations

from dataclasses import dataclass

from inflight_operator.limits import LimitsInForce


@dataclass(frozen=True, slots=True)
class Telling:
    """What became of telling one engine its limits.

    Attributes:
        taken: the limits it took last; None before it took any.
        at: when, on the steady clock.
        complaint: why it did not take the last ones; empty when it did.
        again: when it may be tried again after that, on the steady clock.
    """

    taken: LimitsInForce | None = None
    at: float = float("-inf")
    complaint: str = ""
    again: float = float("-inf")
