"""Index of the leading prompt blocks that each replica's prefix cache should hold, from the requests sent there."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from inflight_gateway.pick.blocks import BlockNames, ReplicaBlocks

WAYS = 8
_KEY = 0xFFFF_FFFF_FFFF_FFFF
_PLACE_BITS = 48
_PLACE = (1 << _PLACE_BITS) - 1
_SET_BYTES = WAYS * 8
_FIRST_SETS = 8
_NEW_OF_SET = 2
"""Entries of a set on average above which a table gets another set: with a quarter of the entries in use, hardly any
set is full before the table has all of its sets."""

DEFAULT_BLOCKS = 8192
MOST_BLOCKS = 1 << 17
"""Most blocks indexed for one replica: 8.4 million tokens of 64 a block, 1 MiB. No more are plausible for an engine,
whatever it says."""

MOST_BYTES = 128 * 2**20
"""Most bytes of all indexes of a process: 500 replicas whose KV caches hold 400,000 tokens need 32 MiB."""

FOUND_BLOCKS = 1 << 19
"""Most entries of a service by which replicas are found: 4 MiB."""

STRIDE = 4
"""Every so many blocks of a prompt, from the first one on, can be found at any replica."""

MOST_REPLICAS = 0xFFFF
"""Most replicas of a service that are found."""


class IndexMemory:
    """Bytes that the indexes of a process may still take. A service may take as much as it leaves free, so one takes
    half of them at most, and two a third each: dynamic thresholds as in `hold.bounds`."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self.free = most


class _Part:
    """Bytes that a service takes."""

    __slots__ = ("memory", "taken")

    def __init__(self, memory: IndexMemory) -> None:
        self.memory = memory
        self.taken = 0

    def take(self, size: int) -> None:
        self.taken += size
        self.memory.free -= size

    def grow(self) -> bool:
        """Takes another set; returns whether it may."""
        if self.taken + _SET_BYTES > self.memory.free:
            return False
        self.take(_SET_BYTES)
        return True


class _Table:
    """A set-associative cache, as in CPUs, with the least recently used of a set's 8 entries replaced. An entry is 64
    bits, of which the low 48 are of a hash and choose its set; a set's entries are in the order of their last use. 0:
    empty.

    It grows with the entries, set by set: Litwin 1980, "Linear Hashing: A New Tool for File and Table Addressing"
    (VLDB). Sets below `sets - low` have been split already.
    """

    __slots__ = ("_part", "entries", "low", "most", "sets", "used")

    def __init__(self, most: int, part: _Part) -> None:
        self.most = most
        self.sets = self.low = min(_FIRST_SETS, most)
        self.used = 0
        self.entries = array("Q", bytes(self.sets * _SET_BYTES))
        self._part = part
        part.take(self.sets * _SET_BYTES)

    def set_of(self, entry: int) -> array[int]:
        """Returns the set that an entry belongs to."""
        begin = self._begin(entry)
        return self.entries[begin : begin + WAYS]

    def _begin(self, entry: int) -> int:
        place, low = entry & _PLACE, self.low
        number = place % low
        return (number if number >= self.sets - low else place % (2 * low)) * WAYS

    def add(self, entry: int) -> None:
        begin = self._begin(entry)
        entries = self.entries[begin : begin + WAYS]
        if entries[0] == entry:
            return
        if entry in entries:
            entries.remove(entry)
        elif not entries.pop():
            self.used += 1
        entries.insert(0, entry)
        self.entries[begin : begin + WAYS] = entries
        if self.used > _NEW_OF_SET * self.sets and self.sets < self.most and self._part.grow():
            self._split()

    def _split(self) -> None:
        """Adds a set, with its part of the entries of the next set to split."""
        number = self.sets - self.low
        begin, modulus = number * WAYS, 2 * self.low
        both = self.entries[begin : begin + WAYS]
        stay = [each for each in both if (each & _PLACE) % modulus == number]
        move = [each for each in both if each and (each & _PLACE) % modulus != number]
        for place, entries in ((begin, stay), (len(self.entries), move)):
            self.entries[place : place + WAYS] = array("Q", (*entries, *(0,) * WAYS)[:WAYS])
        self.sets += 1
        if self.sets == modulus:
            self.low = modulus

    def drop(self) -> None:
        """Gives its memory back."""
        self._part.take(-self.sets * _SET_BYTES)


class Matched(NamedTuple):
    """Contents of replicas that a prompt begins with, in the order of the replicas.

    Attributes:
        blocks: number of its leading blocks, each of a hash.
        loaded_tokens: tokens of these that are loaded from tiers behind the device.
        disk_tokens: tokens of these that are loaded from a disk.
    """

    blocks: list[int]
    loaded_tokens: list[int]
    disk_tokens: list[int]


class PrefixIndex:
    """The index of a service. It is exact for replicas whose events describe their prefix caches (`blocks`), and for
    prompts whose blocks are known; in addition, these hold what is on its way to them. Otherwise it is approximate: the
    prompts that were sent to a replica are there, bounded by its KV cache; the least recently sent is evicted first.

    A look-up takes time in the logarithm of the blocks found, independent of the index size: leading blocks are used
    with every longer prompt and so outlive those behind them; if block n is present, those before it are.

    Args:
        memory: shared by all indexes of a process.
    """

    def __init__(self, memory: IndexMemory | None = None) -> None:
        self._part = _Part(memory or IndexMemory())
        self._tables: dict[str, _Table] = {}
        self._names = BlockNames()
        self._replicas: dict[str, ReplicaBlocks] = {}
        self._pending: dict[str, dict[int, int]] = {}
        """Hashes of the prompts on their way to each replica with events, and how many of the prompts have each."""
        self._found = _Table(FOUND_BLOCKS // WAYS, self._part)
        """Replicas that had a block sent last: the entries are numbers of replicas above hashes of every `STRIDE`-th
        block. What it says is checked in the replica's own table, which alone is exact."""
        self._numbers: dict[str, int] = {}
        self._addresses: dict[int, str] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._tables.keys() | self._replicas.keys())

    @property
    def size(self) -> int:
        """Bytes of the tables."""
        return self._part.taken

    def add(self, address: str, prefix: Sequence[int], blocks: int = DEFAULT_BLOCKS) -> None:
        """Adds the blocks of a prompt that was sent to a replica; `settled` follows.

        Args:
            prefix: hashes of its leading blocks; each covers all text before it, too.
            blocks: number of such blocks that the replica's KV cache holds. If it changes, the replica's blocks are
                dropped.
        """
        if not prefix:
            return
        most = max(1, -(-min(blocks, MOST_BLOCKS) // WAYS))
        table = self._tables.get(address)
        if table is None or table.most != most:
            self.forget(address)
            table = self._tables[address] = _Table(most, self._part)
            self._number(address)
        # In reverse order, so that the leading blocks of a set are the most recent.
        keys = _keys(prefix[:blocks])
        for key in reversed(keys):
            table.add(key)
        pending = self._pending.get(address)
        if pending is not None:
            for key in _keys(prefix):
                pending[key] = pending.get(key, 0) + 1
        number = self._numbers.get(address)
        if number is not None:
            high = number << _PLACE_BITS
            for key in reversed(keys[::STRIDE]):
                self._found.add(high | key & _PLACE)

    def matched(self, addresses: Sequence[str], prefix: Sequence[int]) -> Matched:
        """Returns what each replica should hold of the prompt."""
        keys = _keys(prefix)
        tables, replicas = self._tables, self._replicas
        loaded, on_disk = [0] * len(addresses), [0] * len(addresses)
        if not replicas:
            found = [0 if (table := tables.get(address)) is None else _matched(table, keys) for address in addresses]
            return Matched(found, loaded, on_disk)
        ends = self._names.known(keys)
        found = []
        for place, address in enumerate(addresses):
            replica, table = replicas.get(address), tables.get(address)
            if replica is None or not replica.exact:
                found.append(0 if table is None else _matched(table, keys))
                continue
            held = replica.found(ends)
            if held:
                loaded[place], on_disk[place] = (
                    blocks * replica.block_size for blocks in replica.behind(ends[held - 1])
                )
            if held < len(ends):
                pending = self._pending[address]
                while held < len(keys) and keys[held] in pending:
                    held += 1
            elif table is not None:
                held += _matched(table, keys[held:])
            found.append(held)
        return Matched(found, loaded, on_disk)

    def publishes(self, address: str, replica: ReplicaBlocks | None) -> None:
        """Sets the blocks that the events of a replica tell. None: they tell none any more."""
        if replica is not None:
            self._replicas[address], self._pending[address] = replica, {}
        else:
            self._replicas.pop(address, None)
            self._pending.pop(address, None)

    def exact(self, address: str) -> bool:
        """Returns whether it is known what a replica holds."""
        replica = self._replicas.get(address)
        return replica is not None and replica.exact

    def block_size(self, address: str) -> int:
        """Returns the tokens of a block of a replica, by its events; 0: they do not say."""
        replica = self._replicas.get(address)
        return 0 if replica is None else replica.block_size

    def told(
        self,
        address: str,
        prefix: Sequence[int],
        names: Sequence[int],
        blocks_per_key: float,
        sent_at: float,
        now: float,
    ) -> None:
        """Notes the blocks of a prompt that a replica has just computed.

        Args:
            names: of its full blocks, at least one, as events of the replica have them.
            blocks_per_key: see `BlockNames.learn`.
            sent_at: when it was sent there, in seconds.
        """
        replica = self._replicas.get(address)
        if replica is not None:
            replica.told(names, sent_at, now)
            self._names.learn(_keys(prefix), names, blocks_per_key, self._replicas.values())

    def settled(self, address: str, prefix: Sequence[int]) -> None:
        """Notes that a prompt that was added is not on its way to a replica any more: its first token has come, or none
        will."""
        pending = self._pending.get(address)
        if pending is not None:
            for key in _keys(prefix):
                count = pending.get(key, 0)
                if count > 1:
                    pending[key] = count - 1
                elif count:
                    del pending[key]

    def longest(self, prefix: Sequence[int], most: int) -> list[str]:
        """Returns up to `most` replicas that should hold the most leading blocks of the prompt, the longest first.

        The blocks that some replica holds are found by exponential search, as those of one replica; replicas that hold
        fewer come from the blocks that the search has passed."""
        keys = _keys(prefix)[::STRIDE]
        passed: list[list[str]] = []
        low, high, count = 0, 1, len(keys)
        while high <= count and (holders := self._holders(keys[high - 1])):
            passed.append(holders)
            low, high = high, 2 * high
        high = min(high, count + 1)
        while high - low > 1:
            middle = (low + high) // 2
            if holders := self._holders(keys[middle - 1]):
                passed.append(holders)
                low = middle
            else:
                high = middle
        return list(dict.fromkeys(address for holders in reversed(passed) for address in holders))[:most]

    def forget(self, address: str) -> None:
        """Drops the blocks of a replica that was removed, or whose cache is empty."""
        table = self._tables.pop(address, None)
        if table is not None:
            table.drop()
            number = self._numbers.pop(address, None)
            if number is not None:
                del self._addresses[number]

    def drop(self) -> None:
        """Drops the blocks of all replicas."""
        self._part.take(-self._part.taken)

    def _holders(self, key: int) -> list[str]:
        place, addresses = key & _PLACE, self._addresses
        return [
            addresses[each >> _PLACE_BITS]
            for each in self._found.set_of(place)
            if each & _PLACE == place and each >> _PLACE_BITS in addresses
        ]

    def _number(self, address: str) -> None:
        """Gives a replica a number that none had recently, so that it is not found by the blocks of another."""
        if len(self._numbers) == MOST_REPLICAS:
            return
        self._last = self._last % MOST_REPLICAS + 1
        while self._last in self._addresses:
            self._last = self._last % MOST_REPLICAS + 1
        self._numbers[address], self._addresses[self._last] = self._last, address


def _keys(prefix: Sequence[int]) -> list[int]:
    return [each & _KEY or 1 for each in prefix]


def _matched(table: _Table, keys: list[int]) -> int:
    """Returns the number of leading blocks in the table, by exponential search: doubling steps, then bisection."""
    set_of, count = table.set_of, len(keys)
    low, high = 0, 1
    while high <= count and keys[high - 1] in set_of(keys[high - 1]):
        low, high = high, 2 * high
    high = min(high, count + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if keys[middle - 1] in set_of(keys[middle - 1]) else (low, middle)
    return low
