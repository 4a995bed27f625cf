"""Back-off of refused writes."""

from __future__ import annotations

FIRST_PAUSE, LONGEST_PAUSE = 2.0, 60.0
"""Seconds; each further refusal doubles the pause."""


def pause(times: int) -> float:
    """Seconds to wait after `times` consecutive refusals."""
    return min(FIRST_PAUSE * 2.0 ** min(times - 1, 20), LONGEST_PAUSE)
