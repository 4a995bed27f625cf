"""Moments of many items with one timer of the event loop: a timer takes tens of microseconds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Generic, TypeVar

from inflight_base.page.alarm import Alarm

T = TypeVar("T")

GRAIN_SECONDS = 0.01
"""Seconds by which an item may come early, so that one timer serves several."""


class Timetable(Generic[T]):
    """Calls `due` with each item at its moment, or up to `GRAIN_SECONDS` before."""

    def __init__(self, due: Callable[[T], None]) -> None:
        self._due = due
        self._entries: list[tuple[float, int, T]] = []
        """A heap of moments in seconds of the loop's clock, the numbers of their additions, and the items."""
        self._added = 0
        self._alarm = Alarm(self._run)

    def add(self, delay: float, item: T) -> None:
        """Adds an item that is due in `delay` seconds."""
        at = asyncio.get_running_loop().time() + delay
        self._added += 1
        heappush(self._entries, (at, self._added, item))
        self._alarm.set(at)

    def clear(self) -> None:
        """Removes all items."""
        self._entries.clear()
        self._alarm.clear()

    def _run(self) -> None:
        due, until = [], asyncio.get_running_loop().time() + GRAIN_SECONDS
        while self._entries and self._entries[0][0] <= until:
            due.append(heappop(self._entries)[2])
        if self._entries:
            self._alarm.set(self._entries[0][0])
        for item in due:
            self._due(item)
