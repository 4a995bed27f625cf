"""Restart limit of the engine process."""

from __future__ import annotations

from collections import deque

MOST_RESTARTS = 3
WINDOW_SECONDS = 600.0
"""A process that dies more often needs intervention, or a new container; the exit of the server triggers both."""


class Restarts:
    """Counts restarts within the window."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=MOST_RESTARTS)

    def begin(self, now: float) -> bool:
        """Count one at `now` (seconds, monotonic). False, and not counted: too many within the window."""
        if len(self._times) == MOST_RESTARTS and now - self._times[0] < WINDOW_SECONDS:
            return False
        self._times.append(now)
        return True
