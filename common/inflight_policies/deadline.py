"""The first request that can still keep its TTFT target; late ones get more picks the longer they wait."""

from __future__ import annotations

from math import inf
from typing import Generic, TypeVar

from inflight_policies.lazy_heap import LazyHeap

LATE_SHARE = 0.05
"""Default of the share of picks that go to late requests while others wait."""

OVERDUE_SHARE = 0.2
"""Least share of picks that go to late requests once the first of them is overdue."""

OVERDUE_WAIT_SHARE = 0.5
"""Share of the longest wait, after which a request ends: a late request that has waited for as long is overdue."""

Item = TypeVar("Item")


class DeadlineQueue(Generic[Item]):
    """Items by their places, those first that can still start in time.

    An item that is past its latest start is late, and stays late. One pick in 1 / `late_share` goes to the first late
    item, and every pick does while no other item waits. Items without a latest start are never late. While the first
    late item is overdue, as its place is older than `pass_time` was told, one pick in 1 / `OVERDUE_SHARE` goes to it.

    Nothing starves: of any 1 / `late_share` picks (rounded down) in a row that are made while late items wait, one
    takes the first of them, and of any 1 / `OVERDUE_SHARE` picks that are made while it is overdue. So when an item
    becomes late, or overdue, while k late ones are ahead of it, it is picked within k + 1 times as many picks.

    Raises:
        ValueError: `late_share` is not above 0 and at most 1.
    """

    def __init__(self, late_share: float = LATE_SHARE) -> None:
        if not 0 < late_share <= 1:
            raise ValueError(f"late_share must be above 0 and at most 1, not {late_share}")
        self._most_passed_over = int(1 / late_share) - 1
        self._most_while_overdue = min(self._most_passed_over, int(1 / OVERDUE_SHARE) - 1)
        self._passed_over = 0
        """Picks of items in time, while late ones waited, since the last pick of a late item."""
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
        most = self._most_while_overdue if late[0][0] <= self._overdue else self._most_passed_over
        return late[1] if in_time is None or self._passed_over >= most else in_time[1]

    def is_late(self, item: Item) -> bool:
        return item in self._late

    def pick(self, item: Item) -> None:
        """Remove the head, which is picked.

        Raises:
            KeyError: the item is not in the queue.
        """
        if len(self._late):
            self._passed_over = 0 if item in self._late else self._passed_over + 1
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
