"""The first request that can still keep its TTFT target; none is passed over for longer than a bound."""

from __future__ import annotations

from math import inf
from typing import Generic, TypeVar

from inflight_policies.lazy_heap import Key, LazyHeap

LATE_SHARE = 0.05
"""Default of the share of picks that go to late requests while others wait."""

MOST_WAIT_SHARE = 0.5
"""Share of the longest wait, after which a request ends, that it may wait while later ones are picked."""

Item = TypeVar("Item")


class DeadlineQueue(Generic[Item]):
    """Items by their places, those first that can still start in time.

    An item that is past its latest start is late, and stays late. One pick in 1 / `late_share` goes to the first late
    item, and every pick does while no other item waits. Items without a latest start are never late.

    An item is overdue, late or not, when time has passed its place by the bound that `pass_time` is given. While
    overdue items wait, every pick goes to the first of them: so the more requests are late, the more picks they get.

    Two promises follow. No item is picked while an overdue one with an earlier place waits. And nothing starves: of any
    1 / `late_share` picks (rounded down) in a row that are made while late items wait, one takes the first of them, or
    an overdue one. So when an item becomes late while k items are ahead of it, it is picked within k + 1 times as many
    picks.

    Raises:
        ValueError: `late_share` is not above 0 and at most 1.
    """

    def __init__(self, late_share: float = LATE_SHARE) -> None:
        if not 0 < late_share <= 1:
            raise ValueError(f"late_share must be above 0 and at most 1, not {late_share}")
        self._most_passed_over = int(1 / late_share) - 1
        self._passed_over = 0
        """Picks of items in time, while late ones waited, since the last pick of a late item."""
        self._in_time: LazyHeap[Item] = LazyHeap()
        self._by_latest_start: LazyHeap[Item] = LazyHeap()
        """Items in time that have a latest start."""
        self._late: LazyHeap[Item] = LazyHeap()
        self._overdue: LazyHeap[Item] = LazyHeap()

    def __len__(self) -> int:
        return len(self._in_time) + len(self._late) + len(self._overdue)

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

    def pass_time(self, now: float, overdue: float) -> tuple[list[Item], list[Item]]:
        """Sets the time.

        Args:
            now: items with earlier latest starts become late.
            overdue: items with places up to this become late and overdue.

        Returns:
            The items that have become late, and those that have become overdue.
        """
        late: list[Item] = []
        while (first := self._by_latest_start.first()) is not None and first[0][0] < now:
            (_, *key), item = first
            self._become_late(item, tuple(key))
            late.append(item)
        while (first := self._in_time.first()) is not None and first[0][0] <= overdue:
            self._become_late(first[1], first[0])
            late.append(first[1])
        past: list[Item] = []
        while (first := self._late.first()) is not None and first[0][0] <= overdue:
            self._late.remove(first[1])
            self._overdue.push(first[1], first[0])
            past.append(first[1])
        return late, past

    def _become_late(self, item: Item, key: Key) -> None:
        if item in self._by_latest_start:
            self._by_latest_start.remove(item)
        self._in_time.remove(item)
        self._late.push(item, key)

    def head(self) -> Item | None:
        """Returns the next pick and leaves it in place; None when no item waits."""
        overdue = self._overdue.first()
        if overdue is not None:
            return overdue[1]
        late, in_time = self._late.first(), self._in_time.first()
        if late is not None and (in_time is None or self._passed_over >= self._most_passed_over):
            return late[1]
        return None if in_time is None else in_time[1]

    def is_late(self, item: Item) -> bool:
        """Returns whether an item is late and not overdue: it is passed over."""
        return item in self._late

    def pick(self, item: Item) -> None:
        """Remove the head, which is picked.

        Raises:
            KeyError: the item is not in the queue.
        """
        if len(self._late) or len(self._overdue):
            self._passed_over = self._passed_over + 1 if item in self._in_time else 0
        self.remove(item)

    def remove(self, item: Item) -> None:
        """Remove any item, which does not count as a pick.

        Raises:
            KeyError: the item is not in the queue.
        """
        for heap in (self._overdue, self._late):
            if item in heap:
                heap.remove(item)
                return
        self._in_time.remove(item)
        if item in self._by_latest_start:
            self._by_latest_start.remove(item)
