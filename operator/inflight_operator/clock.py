"""The two times that an operator reads, in one place so that a test or a simulation can set them."""

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
    steady: seconds that never go back.
    calendar: the time of day, with its zone.
    """

    steady: Callable[[], float] = monotonic
    calendar: Callable[[], datetime] = _calendar
