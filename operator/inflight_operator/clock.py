"""Clocks of the operator, which tests and simulations can set; back-off of refused writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic


def _calendar() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Clock:
    """Attributes:
    steady: monotonic seconds.
    calendar: date and time, with time zone.
    """

    steady: Callable[[], float] = monotonic
    calendar: Callable[[], datetime] = _calendar


FIRST_PAUSE, LONGEST_PAUSE = 2.0, 60.0
"""Shortest and longest pause in seconds; each further refusal doubles the pause."""


def pause(times: int) -> float:
    """Returns the seconds to wait after `times` consecutive refusals."""
    return min(FIRST_PAUSE * 2.0 ** min(times - 1, 20), LONGEST_PAUSE)
