"""How often the operator looks after a service: arithmetic without a clock, so that no burst takes the event loop."""

from __future__ import annotations

APART_SECONDS = 0.25
"""Least pause between two rounds of a service, however many events ask for one."""

BUSY_SHARE = 20.0
"""A service pauses for this many times the seconds that its last round kept the event loop busy: its events take at
most a twentieth of the loop."""

LONGEST_REST_SECONDS = 5.0

FIRST_APART_SECONDS = 0.01
"""Seconds between the first rounds of two services, and between the first scrapes of two pods of a service."""

MOST_STRETCH = 2.0
"""Samples that are two intervals old still count as fresh."""

LAG_SECONDS = 0.5
"""Lag of the event loop at which intervals have their longest stretch."""

CALMER = 0.9
"""Share of an earlier stretch that remains at each further look at a loop without lag."""


def rest(busy: float) -> float:
    """Returns the seconds from the end of a round of a service to the next one.

    Args:
        busy: seconds for which the round kept the event loop busy.
    """
    return min(LONGEST_REST_SECONDS, max(APART_SECONDS, BUSY_SHARE * busy))


def first_apart(count: int, interval: float) -> float:
    """Returns the seconds between the first turns of `count` that begin together: all have theirs in one interval."""
    return min(FIRST_APART_SECONDS, interval / max(1, count))


class Stretch:
    """By how much intervals are longer than they are set to, because the event loop is late."""

    def __init__(self) -> None:
        self.factor = 1.0

    def note(self, lag: float) -> None:
        """Takes a new measurement. Args: lag: seconds by which a timer of the event loop was late."""
        asked = 1 + (MOST_STRETCH - 1) * min(1.0, max(0.0, lag) / LAG_SECONDS)
        self.factor = max(asked, 1 + (self.factor - 1) * CALMER)
