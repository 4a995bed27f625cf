"""The first request that can still keep its TTFT target; late ones get a share of the work, and a share of the
picks too once they have waited for long."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Generic, TypeVar

from inflight_policies.lazy_heap import LazyHeap

LATE_SHARE = 0.05
"""Default of the share of work that goes to late requests while others wait."""

OVERDUE_SHARE = 0.2
"""Least share of picks that go to late requests once the first of them is overdue."""

OVERDUE_WAIT_SHARE = 0.5
"""Share of the longest wait, after which a request ends: a late request that has waited for as long is overdue."""

Item = TypeVar("Item")


class LateTurns:
    """Turns of late items while others wait.

    The first late item has its turn once its work is at most the share `late_share` of all that was picked since the
    last late item, its own included. Work counts because late items tend to be large, and make others late while they
    are computed. An overdue item also has its turn after 1 / `OVERDUE_SHARE` - 1 picks of items in time, whatever their
    work.

    Raises:
        ValueError: `late_share` is not above 0 and at most 1.
    """

    def __init__(self, late_share: float = LATE_SHARE) -> None:
        if not 0 < late_share <= 1:
            raise ValueError(f"late_share must be above 0 and at most 1, not {late_share}")
        self._share = late_share
        self._picks = self._work = 0
        """Number and work of the items in time that were picked while late ones waited, since the last late pick."""

    def pass_over(self, work: int) -> None:
        """Counts the pick of an item in time while late ones wait."""
        self._picks += 1
        self._work += work

    def take(self) -> None:
        """Counts the pick of a late item."""
        self._picks = self._work = 0

    def has_come(self, work: int, overdue: bool) -> bool:
        """Returns whether the first late item has its turn. Args: work: its own."""
        return (self._work + work) * self._share >= work or (overdue and self._picks >= _MOST_PICKS)


_MOST_PICKS = int(1 / OVERDUE_SHARE) - 1
"""Picks of items in time after which an overdue item has its turn."""


class DeadlineQueue(Generic[Item]):
    """Items by their places, those first that can still start in time.

    An item that is past its latest start is late, and stays late. The first late item is picked in its turn
    (`LateTurns`), and while no other item waits. Items without a latest start are never late. A late item is overdue
    when its place is older than `pass_time` was told.

    Nothing starves: a late item with k - 1 late items ahead of it, and w of work with them, is picked before the items
    in time that pass it come to a work of w / `late_share` and k items; once it is overdue, within 5 k picks.

    Args:
        work: size of an item, which never changes; at least 1.

    Raises:
        ValueError: `late_share` is not above 0 and at most 1.
    """

    def __init__(self, work: Callable[[Item], int], late_share: float = LATE_SHARE) -> None:
        self._turns = LateTurns(late_share)
        self._work_of = work
        self._overdue = -inf
        self._in_time: LazyHeap[Item] = LazyHeap()
        self._by_latest_start: LazyHeap[Item] = LazyHeap()
        """Items in time that have a latest start."""
        self._late: LazyHeap[Item] = LazyHeap()

    def __len__(self) -> int:
        return len(self._in_time) + len(self._late)

    def push(self, item: Item, place: float, order: int, latest_start: float) -> None:
        """Put an item in.

        Args:
            place: smaller goes first; when it began to wait, or another time that counts as this.
            order: decides between equal places; never equal for two items.
            latest_start: infinite for an item that is never late.
        """
        self._in_time.push(item, (place, order))
        if latest_start < inf:
            self._by_latest_start.push(item, (latest_start, place, order))

    def pass_time(self, now: float, overdue: float) -> tuple[list[Item], bool]:
        """Sets the time.

        Args:
            now: items with earlier latest starts are late.
            overdue: late items with places up to this are overdue.

        Returns:
            The items that have become late; and whether the first late one has become overdue.
        """
        late: list[Item] = []
        while (first := self._by_latest_start.first()) is not None and first[0][0] < now:
            (_, *key), item = first
            self._by_latest_start.remove(item)
            self._in_time.remove(item)
            self._late.push(item, tuple(key))
            late.append(item)
        first_late = self._late.first()
        became_overdue = first_late is not None and self._overdue < first_late[0][0] <= overdue
        self._overdue = overdue
        return late, became_overdue

    def head(self) -> Item | None:
        """Returns the next pick and leaves it in place; None when no item waits."""
        late, in_time = self._late.first(), self._in_time.first()
        if late is None:
            return None if in_time is None else in_time[1]
        if in_time is None or self._turns.has_come(self._work_of(late[1]), late[0][0] <= self._overdue):
            return late[1]
        return in_time[1]

    def firsts(self, count: int) -> list[Item]:
        """Returns `head`, then other items: those in time, then the late ones, each by their places."""
        head = self.head()
        if head is None:
            return []
        others = [item for heap in (self._in_time, self._late) for _, item in heap.firsts(count) if item is not head]
        return [head, *others][:count]

    def is_late(self, item: Item) -> bool:
        return item in self._late

    def pick(self, item: Item) -> None:
        """Remove the head, which is picked.

        Raises:
            KeyError: the item is not in the queue.
        """
        if item in self._late:
            self._turns.take()
        elif len(self._late):
            self._turns.pass_over(self._work_of(item))
        self.remove(item)

    def remove(self, item: Item) -> None:
        """Remove any item, which does not count as a pick.

        Raises:
            KeyError: the item is not in the queue.
        """
        if item in self._late:
            self._late.remove(item)
            return
        self._in_time.remove(item)
        if item in self._by_latest_start:
            self._by_latest_start.remove(item)
