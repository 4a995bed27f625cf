"""The blocks that engines say are in their prefix caches, and the names of the blocks that prompts are in there.

An engine's KV cache events name its blocks by hashes of tokens, and a gateway without a tokenizer knows prompts by
hashes of text (`request.prefix`). The names of a prompt's blocks come with the first token of its answer. A hash of
text stands for the last block within its text; where prompts with that text in common turn out to differ in that block,
for the last one that they share.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

BLOCK_BYTES = 112
"""Memory of a block that a replica holds: an entry of a dictionary and an integer."""

MOST_HELD = 1 << 18
"""Most blocks of one replica: 4.2 million tokens of 16 a block, 28 MiB. An engine with more is approximated; of those
behind its device, what makes more than half of them is not known."""

MOST_REMOVED = 1 << 16
"""Most blocks of a replica that are remembered as removed lately: those of 100,000 tokens a second."""

MOST_NAMES = 1 << 17
"""Most hashes of text of a service whose blocks are known, half of them at least: 20 MiB."""

MOST_BYTES = 256 * 2**20
"""Most bytes of the blocks of all replicas of a process: 2.4 million of them, 38 million tokens of 16 a block."""

MOST_MISSED = 16
"""Prompts in a row whose last block no event told of after which the events do not describe the engine's cache."""

EVENT_WITHIN_S = 1.0
"""Seconds in which the events of a prompt's blocks come after its first token. They are sent with it."""

DEVICE, HOST, DISK = "GPU", "CPU", "DISK"
"""Media: that of the blocks that steps read, on a CPU too, and the tiers behind it, from which blocks are loaded.
Blocks in other media are not known."""

_START, _UNKNOWN = -1, -2
"""Parent of a first block, and of one whose place in a sequence no event told. Names are never negative."""

_MOST_STEPS = 512
"""Most blocks within the text of one hash. Text of one hash has 256 bytes."""

_RESERVED = 1024
"""Blocks that memory is reserved for at once."""


class BlockMemory:
    """Bytes that the blocks of a process may still take. A replica takes at most what it leaves free."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self.free = most


class TooManyBlocks(ValueError):
    """An engine says that it holds, or removes, more blocks than are counted."""


class ReplicaBlocks:
    """The blocks that one engine holds, by its events.

    A block is found only with all blocks before it, as in the engine. Blocks that the engine holds may be missing:
    those from before the first event, and those whose events were lost. Blocks that it has lost are not there.

    Attributes:
        exact: the events describe the engine's cache: of a prompt that it computed, an event told of the last block. As
            long as none did, and after `MOST_MISSED` prompts in a row without one, the engine is approximated.
        block_size: tokens of a block, by its last event; 0: not known.
    """

    def __init__(self, memory: BlockMemory | None = None) -> None:
        self.exact, self.block_size = False, 0
        self._memory = memory or BlockMemory()
        self._reserved = 0
        self._media: dict[str, dict[int, int]] = {DEVICE: {}, HOST: {}, DISK: {}}
        """The block before each block, by name, for each medium."""
        self._removed: dict[int, int] = {}
        self._removed_before: dict[int, int] = {}
        """The block before each block that was removed lately: news of a prompt may be older than the event, and a
        block that moves to another medium is removed first."""
        self._cleared_at = float("-inf")
        self._missed = 0
        self._awaited: dict[int, float] = {}
        """Last blocks of prompts that no event told of yet, and when these should have."""

    def __len__(self) -> int:
        return sum(map(len, self._media.values()))

    def __contains__(self, name: int) -> bool:
        return any(name in held for held in self._media.values())

    def stored(self, names: Sequence[int], parent: int | None, medium: str) -> None:
        """Adds consecutive blocks of a sequence.

        Args:
            parent: block before them; None: they begin it, or they were copied behind the device, where events name
                blocks in any order.

        Raises:
            TooManyBlocks: there is no room for them.
        """
        held = self._media.get(medium)
        if held is None or not names:
            return
        if medium != DEVICE and len(self) + len(names) > MOST_HELD // 2:
            return
        self._reserve(len(names))
        if parent is None and medium != DEVICE:
            held.update([(name, self._parent(name)) for name in names])
        else:
            held.update(zip(names, (_START if parent is None else parent, *names[:-1]), strict=True))
        for removed in (self._removed, self._removed_before):
            if removed:
                for name in names:
                    removed.pop(name, None)
        if self._awaited:
            for name in [each for each in self._awaited if each in held]:
                del self._awaited[name]
                self.exact, self._missed = True, 0

    def removed(self, names: Sequence[int], medium: str) -> None:
        """Removes blocks that are there.

        Raises:
            TooManyBlocks: so many that they are not all remembered.
        """
        held, removed = self._media.get(medium), self._removed
        if held is None:
            return
        if len(removed) + len(names) > MOST_REMOVED:
            raise TooManyBlocks("more blocks are removed than any engine computes")
        for name in names:
            parent = held.pop(name, _UNKNOWN)
            removed[name] = self._parent(name) if parent == _UNKNOWN else parent

    def forget_removed(self) -> None:
        """Forgets the blocks that were removed before the previous call. Called every few seconds."""
        self._removed_before, self._removed = self._removed, {}

    def clear(self, now: float) -> None:
        """Removes all blocks: the cache is empty, or events were lost."""
        for blocks in (*self._media.values(), self._removed, self._removed_before):
            blocks.clear()
        self._awaited.clear()
        self._cleared_at = now
        self._release()

    def close(self, now: float) -> None:
        """Ends the events: the engine is approximated until they describe its cache again."""
        self.clear(now)
        self.exact, self._missed = False, 0

    def told(self, names: Sequence[int], sent_at: float, now: float) -> None:
        """Notes the blocks of a prompt whose first token has just come, so that the engine holds all of them.

        Args:
            names: of its full blocks, at least one, in their order.
            sent_at: when the request was sent there, in seconds.
        """
        for name in [each for each, until in self._awaited.items() if until <= now]:
            del self._awaited[name]
            self._missed += 1
            self.exact = self.exact and self._missed < MOST_MISSED
        if names[-1] in self:
            self.exact, self._missed = True, 0
        elif len(self._awaited) < MOST_MISSED:
            self._awaited[names[-1]] = now + EVENT_WITHIN_S
        if not self.exact or sent_at <= self._cleared_at:
            return
        # Of blocks that were there before the first event, or whose events were lost, no event comes.
        previous = _START
        lacking: list[tuple[int, int]] = []
        for name in names:
            if self.before(name) is None:
                for held in self._media.values():
                    if name in held:
                        held[name] = previous
                if name not in self._removed and name not in self._removed_before:
                    lacking.append((name, previous))
            previous = name
        if lacking and len(self) + len(lacking) <= MOST_HELD:
            self._reserve(len(lacking))
            self._media[DEVICE].update(lacking)

    def found(self, ends: Sequence[int]) -> int:
        """Returns how many of the leading parts of a prompt are held whole.

        Args:
            ends: last block of each part, in their order.
        """
        previous = _START
        for number, name in enumerate(ends):
            if name != previous and not self._reaches(name, previous):
                return number
            previous = name
        return len(ends)

    def behind(self, end: int) -> tuple[int, int]:
        """Returns how many blocks of a part of a prompt that is held whole are in the tiers behind the device only, and
        how many of these are on the disk only. Args: end: its last block."""
        device, host = self._media[DEVICE], self._media[HOST]
        count = on_disk = 0
        if len(device) == len(self):
            return 0, 0
        name: int | None = end
        while name is not None and name != _START:
            before = device.get(name)
            if before is None:
                count += 1
                on_disk += name not in host
                before = self.before(name)
            name = before
        return count, on_disk

    def before(self, name: int) -> int | None:
        """Returns the block before one, negative at the beginning; None: the block is not held, or not known where."""
        for held in self._media.values():
            parent = held.get(name, _UNKNOWN)
            if parent != _UNKNOWN:
                return parent
        return None

    def _parent(self, name: int) -> int:
        """Returns the block before one that is held, or was lately."""
        for known in (*self._media.values(), self._removed, self._removed_before):
            parent = known.get(name, _UNKNOWN)
            if parent != _UNKNOWN:
                return parent
        return _UNKNOWN

    def _reaches(self, name: int, previous: int) -> bool:
        """Returns whether a block, and those between it and an earlier one, are held."""
        on_device = self._media[DEVICE].get
        for _ in range(_MOST_STEPS):
            before = on_device(name)
            if before is None:
                before = self.before(name)
            if before == previous:
                return True
            if before is None or before == _START:
                return False
            name = before
        return False

    def _reserve(self, more: int) -> None:
        lacking = len(self) + more - self._reserved
        if lacking <= 0:
            return
        if self._reserved + lacking > MOST_HELD:
            raise TooManyBlocks("more blocks than any KV cache holds")
        lacking = min(-(-lacking // _RESERVED) * _RESERVED, MOST_HELD - self._reserved)
        if lacking * BLOCK_BYTES > self._memory.free:
            raise TooManyBlocks("no memory for so many blocks")
        self._reserved += lacking
        self._memory.free -= lacking * BLOCK_BYTES

    def _release(self) -> None:
        self._memory.free += self._reserved * BLOCK_BYTES
        self._reserved = 0


class BlockNames:
    """The last block within the text of each hash, for all replicas of a service. Hashes that no prompt had for a long
    time are forgotten."""

    def __init__(self) -> None:
        self._young: dict[int, int] = {}
        self._old: dict[int, int] = {}

    def known(self, keys: Iterable[int]) -> list[int]:
        """Returns the blocks of the leading hashes that are known."""
        young, old = self._young, self._old
        found: list[int] = []
        for key in keys:
            name = young.get(key)
            if name is None:
                name = old.get(key)
                if name is None:
                    break
            found.append(name)
        return found

    def __contains__(self, key: int) -> bool:
        return key in self._young or key in self._old

    def learn(
        self, keys: Sequence[int], names: Sequence[int], blocks_per_key: float, replicas: Iterable[ReplicaBlocks]
    ) -> None:
        """Notes the blocks of a prompt.

        Args:
            keys: hashes of its text.
            names: of its full blocks, at least one.
            blocks_per_key: blocks in the text of one hash, on average over the prompt.
            replicas: they know how earlier prompts go on.
        """
        most, last = len(names), -1
        depths = [min(most, max(1, int(blocks_per_key * (place + 1)))) for place in range(len(keys))]
        young, old = self._young, self._old
        before = [young.get(key) or old.get(key) for key in keys]
        for place, name in enumerate(before):
            if name is not None and name != names[depths[place] - 1]:
                last = place
        if last >= 0:
            depth_of = {name: place + 1 for place, name in enumerate(names)}
            shared: int | None = None
            for place in range(last, -1, -1):
                name = before[place]
                if name is None:
                    continue
                depth = depth_of.get(name)
                if depth is None:  # a block of another prompt: both share fewer
                    if shared is None:
                        shared = _shared(name, depth_of, replicas)
                    depth = shared
                depths[place] = min(depths[place], depth or most)
        for key, depth in zip(keys, depths, strict=True):
            young[key] = names[depth - 1]
        if len(young) > MOST_NAMES // 2:
            self._old, self._young = young, {}


def _shared(name: int, depth_of: dict[int, int], replicas: Iterable[ReplicaBlocks]) -> int:
    """Returns how many leading blocks of a prompt are those of another one, which has a block of this name; 0: not
    known, or none."""
    for replica in replicas:
        before = replica.before(name)
        for _ in range(_MOST_STEPS):
            if before is None or before == _START:
                break
            depth = depth_of.get(before)
            if depth is not None:
                return depth
            before = replica.before(before)
    return 0
