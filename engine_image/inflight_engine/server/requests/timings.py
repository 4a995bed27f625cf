"""Times in the life of one request."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Timings:
    """Seconds on the monotonic clock; None: has not happened."""

    arrived: float
    admitted: float | None = None
    first_token: float | None = None
    finished: float | None = None


@dataclass(slots=True)
class Preempted:
    """A preemption of a running request. Seconds on the monotonic clock; None: not yet.

    Attributes:
        began: step in which it lost its slot.
        resumed: the step in which it had a slot again.
        next_token: its first token after that.
    """

    began: float
    resumed: float | None = None
    next_token: float | None = None


MAX_PREEMPTIONS = 64
"""Of one generation, whose times are kept: the first ones and the latest."""
