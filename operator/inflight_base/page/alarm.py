"""A timer of the event loop that can be set to an earlier time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Alarm:
    """Calls `ring` once at the earliest of the times that it was set to since it last rang."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._handle: asyncio.Handle | None = None
        self._at = 0.0
        """Time of the handle. (uvloop's own does not have it where that is less than half a millisecond away.)"""

    def set(self, at: float) -> None:
        """Args: at: seconds of the loop's clock."""
        if self._handle is not None and at < self._at:
            self.clear()
        if self._handle is None:
            self._at, self._handle = at, asyncio.get_running_loop().call_at(at, self._rings)

    def clear(self) -> None:
        """Sets it to no time."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _rings(self) -> None:
        self._handle = None
        self._ring()
