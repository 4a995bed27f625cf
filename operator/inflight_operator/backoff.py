"""How long something that was refused rests before it is tried again."""

from __future__ import annotations

FIRST_PAUSE, LONGEST_PAUSE = 2.0, 60.0
"""Seconds; each further refusal doubles the pause."""


def pause(times: int) -> float:
    """Seconds to rest after `times` refusals in a row."""
    return min(FIRST_PAUSE * 2.0 ** min(times - 1, 20), LONGEST_PAUSE)
