"""A heap whose items can be taken out from anywhere without a scan."""

from __future__ import annotations

import heapq
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
Key = tuple[Any, ...]


class LazyHeap(Generic[Item]):
    """Items in the order of their keys, smallest first.

    Keys are tuples that compare; those of two items must never be equal. Taking out an item leaves its entry in the
    heap, to be dropped when it surfaces, or with all the others once they outnumber the living: every operation is
    O(log n) on average, and the memory O(n).
    """

    __slots__ = ("_entries", "_keys")

    def __init__(self) -> None:
        self._entries: list[tuple[Key, Item]] = []
        self._keys: dict[Item, Key] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, item: Item) -> bool:
        return item in self._keys

    def push(self, item: Item, key: Key) -> None:
        """Put an item in, or give it another key."""
        entries, keys = self._entries, self._keys
        keys[item] = key
        heapq.heappush(entries, (key, item))
        if len(entries) > 2 * len(keys) + 8:
            self._drop_dead()

    def first(self) -> tuple[Key, Item] | None:
        """Returns the smallest key with its item and leaves both in place; None in an empty heap."""
        entries, keys = self._entries, self._keys
        while entries:
            key, item = entries[0]
            if keys.get(item) == key:
                return entries[0]
            heapq.heappop(entries)
        return None

    def firsts(self, count: int) -> list[tuple[Key, Item]]:
        """Returns the smallest keys with their items, in order, and leaves them in place; all where there are fewer."""
        found: list[tuple[Key, Item]] = []
        while len(found) < count and (first := self.first()) is not None:
            heapq.heappop(self._entries)
            if not found or found[-1][1] is not first[1]:
                found.append(first)
        for entry in found:
            heapq.heappush(self._entries, entry)
        return found

    def remove(self, item: Item) -> None:
        """Remove an item.

        Raises:
            KeyError: the item is not in the heap.
        """
        entries, keys = self._entries, self._keys
        del keys[item]
        if not keys:
            entries.clear()
        elif len(entries) > 2 * len(keys) + 8:
            self._drop_dead()

    def _drop_dead(self) -> None:
        self._entries = [(key, item) for item, key in self._keys.items()]
        heapq.heapify(self._entries)
