"""Updates of generations for the writers of responses, by callback: a task for each stream would cost a task switch for
each token."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inflight_engine.server.requests.generation import Generation

READERS_A_ROUND = 32
"""Streams that are written to in an iteration of the event loop. Writing to so many takes about 1 ms. Requests, probes
and the engine's reports wait that long, and not until all streams are written to."""


class Deliveries:
    """Calls the readers of inboxes with updates: in the order of their first update, a few in each iteration of the
    event loop. Updates of a waiting inbox are delivered together, so that tokens share events, and cost less, while the
    process lags behind the engine."""

    def __init__(self) -> None:
        self._due: deque[Inbox] = deque()
        self._scheduled = False

    def add(self, inbox: Inbox) -> None:
        """Enqueue `inbox`, which has updates and is not queued yet."""
        self._due.append(inbox)
        if not self._scheduled:
            self._schedule()

    def _schedule(self) -> None:
        self._scheduled = True
        asyncio.get_running_loop().call_soon(self._deliver)

    def _deliver(self) -> None:
        self._scheduled = False
        due = self._due
        try:
            for _ in range(min(len(due), READERS_A_ROUND)):
                due.popleft().deliver()
        finally:
            if due and not self._scheduled:
                self._schedule()


class Inbox:
    """Generations with updates, for the writer of their response."""

    __slots__ = ("_changed", "_deliveries", "_reader")

    def __init__(self, deliveries: Deliveries) -> None:
        self._changed: dict[Generation, None] = {}
        self._deliveries = deliveries
        self._reader: Callable[[list[Generation]], None] | None = None

    def put(self, generation: Generation) -> None:
        """Add a generation with an update."""
        if not self._changed and self._reader is not None:
            self._deliveries.add(self)
        self._changed[generation] = None

    def read(self, reader: Callable[[list[Generation]], None]) -> None:
        """Call `reader` from now on, not before the event loop's next iteration, with generations updated since the
        last call: at least one, each once, in the order of their first update."""
        self._reader = reader
        if self._changed:
            self._deliveries.add(self)

    def close(self) -> None:
        """Stop calling the reader."""
        self._reader = None

    def deliver(self) -> None:
        """Call the reader."""
        changed, self._changed = [*self._changed], {}
        if self._reader is not None:
            self._reader(changed)
