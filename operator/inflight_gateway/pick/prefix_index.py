"""Index of the leading prompt blocks that each replica's prefix cache should hold, from the requests sent there."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

WAYS = 8
_KEY = 0xFFFF_FFFF_FFFF_FFFF
_ENTRY_BYTES = 8

DEFAULT_BLOCKS = 8192
MOST_BLOCKS = 1 << 20
"""Most blocks indexed for one replica: 8 MiB."""


class _Table:
    """The blocks of one replica: a set-associative cache, as in CPUs, with the least recently used of a set's 8 entries
    replaced. An entry is the 64-bit hash alone, 8 bytes; a set's entries are in the order of their last use. 0: empty.
    """

    __slots__ = ("entries", "sets")

    def __init__(self, blocks: int) -> None:
        self.sets = max(1, -(-blocks // WAYS))
        self.entries = array("Q", bytes(self.sets * WAYS * _ENTRY_BYTES))

    def holds(self, key: int) -> bool:
        begin = key % self.sets * WAYS
        return key in self.entries[begin : begin + WAYS]

    def add(self, key: int) -> None:
        begin = key % self.sets * WAYS
        entries = self.entries[begin : begin + WAYS]
        if entries[0] == key:
            return
        if key in entries:
            entries.remove(key)
        else:
            entries.pop()
        entries.insert(0, key)
        self.entries[begin : begin + WAYS] = entries


class PrefixIndex:
    """The index. It is approximate, as engines do not report evictions. Each replica's blocks are bounded by its KV
    cache; the least recently sent are evicted first.

    A look-up takes time in the logarithm of the blocks found, independent of the index size: leading blocks are used
    with every longer prompt and so outlive those behind them; if block n is present, those before it are.
    """

    def __init__(self) -> None:
        self._tables: dict[str, _Table] = {}

    def add(self, address: str, prefix: Sequence[int], blocks: int = DEFAULT_BLOCKS) -> None:
        """Adds the blocks of a prompt that was sent to a replica.

        Args:
            prefix: hashes of its leading blocks; each covers all text before it, too.
            blocks: number of such blocks that the replica's KV cache holds. If it changes, the replica's blocks are
                dropped.
        """
        if not prefix:
            return
        wanted = max(1, -(-min(blocks, MOST_BLOCKS) // WAYS))
        table = self._tables.get(address)
        if table is None or table.sets != wanted:
            table = self._tables[address] = _Table(wanted * WAYS)
        # In reverse order, so that the leading blocks of a set are the most recent.
        for key in reversed(_keys(prefix[:blocks])):
            table.add(key)

    def matched(self, addresses: Iterable[str], prefix: Sequence[int]) -> list[int]:
        """Returns the number of leading blocks of the prompt that each replica should hold."""
        keys = _keys(prefix)
        tables = self._tables
        return [0 if (table := tables.get(address)) is None else _matched(table, keys) for address in addresses]

    def forget(self, address: str) -> None:
        """Drops the blocks of a replica that was removed, or whose cache is empty."""
        self._tables.pop(address, None)


def _keys(prefix: Sequence[int]) -> list[int]:
    return [each & _KEY or 1 for each in prefix]


def _matched(table: _Table, keys: list[int]) -> int:
    """Returns the number of leading blocks in the table, by exponential search: doubling steps, then bisection."""
    holds, count = table.holds, len(keys)
    low, high = 0, 1
    while high <= count and holds(keys[high - 1]):
        low, high = high, 2 * high
    high = min(high, count + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(keys[middle - 1]) else (low, middle)
    return low
