"""Result of sending limits to an engine."""

from __future__ import annotations

from dataclasses import dataclass

from inflight_operator.limits import LimitsInForce


@dataclass(frozen=True, slots=True)
class Telling:
    """Result of sending limits to one engine.

    Attributes:
        taken: the last accepted limits; None before the first.
        at: when, on the steady clock.
        complaint: why it did not accept the last ones; empty if it did.
        again: time of the next attempt after a failure, on the steady clock.
    """

    taken: LimitsInForce | None = None
    at: float = float("-inf")
    complaint: str = ""
    again: float = float("-inf")
