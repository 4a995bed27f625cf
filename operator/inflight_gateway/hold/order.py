"""The order of one tenant's requests of one class."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from inflight_gateway.types import RequestView

PRIORITY_AGING_S = 10.0
"""Seconds of waiting that count as one step of priority: the engine's default."""

LATE_EVERY = 20
"""One pick in this many is the oldest late request while late ones wait: the engine's default share."""


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """Attributes:
    sequence: number of the offer. since: when it was made. until: when it expires.
    latest_start: of its prefill, to keep its deadline.
    """

    request: RequestView
    sequence: int
    since: float
    until: float
    latest_start: float = float("inf")

    @property
    def order(self) -> tuple[float, int]:
        """A smaller priority counts as an earlier arrival, as in the engine's `priority` policy; the relative order
        never changes while both wait."""
        return self.request.arrived + self.request.priority * PRIORITY_AGING_S, self.sequence


class HeldHeap:
    """Held requests by a key that does not change; entries removed elsewhere are dropped when they reach the top."""

    def __init__(self) -> None:
        self._entries: list[tuple[tuple[float, int], Held]] = []
        self._live: dict[int, tuple[tuple[float, int], Held]] = {}

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, held: Held) -> bool:
        return held.sequence in self._live

    def push(self, held: Held, key: float) -> None:
        entry = (key, held.sequence), held
        self._live[held.sequence] = entry
        heappush(self._entries, entry)

    def first(self) -> Held | None:
        while self._entries:
            held = self._entries[0][1]
            if held.sequence in self._live:
                return held
            heappop(self._entries)
        return None

    def discard(self, held: Held) -> None:
        if self._live.pop(held.sequence, None) is not None and len(self._entries) > 2 * len(self._live) + 8:
            self._entries = list(self._live.values())
            heapify(self._entries)


class TenantQueue:
    """By priority and arrival among the requests whose first token can still be in time. One pick in `LATE_EVERY` is
    the oldest late request, and every pick while no other waits: the engine's `deadline` policy. Without deadlines and
    priorities it is first come, first served.
    """

    def __init__(self) -> None:
        self._in_time = HeldHeap()
        self._by_deadline = HeldHeap()
        self._late = HeldHeap()
        self._passed_over = 0
        """Picks since the last one of a late request that were made while late ones waited."""

    def __len__(self) -> int:
        return len(self._in_time) + len(self._late)

    def push(self, held: Held) -> None:
        self._in_time.push(held, held.order[0])
        if held.latest_start < float("inf"):
            self._by_deadline.push(held, held.latest_start)

    def head(self, start: float) -> Held | None:
        """The next to start, left in place.

        Args:
            start: when the prefill of a request sent now would begin.
        """
        while (due := self._by_deadline.first()) is not None and due.latest_start < start:
            self._by_deadline.discard(due)
            self._in_time.discard(due)
            self._late.push(due, due.order[0])
        late, in_time = self._late.first(), self._in_time.first()
        if late is not None and (in_time is None or self._passed_over >= LATE_EVERY - 1):
            return late
        return in_time

    def start(self, held: Held) -> None:
        """Remove the head, which starts."""
        if held in self._late:
            self._passed_over = 0
        elif len(self._late):
            self._passed_over += 1
        self.discard(held)

    def discard(self, held: Held) -> None:
        for heap in (self._in_time, self._by_deadline, self._late):
            heap.discard(held)
