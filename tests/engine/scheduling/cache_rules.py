"""The rules of the prefix cache: its content, its hits, and the block that it evicts next."""

from __future__ import annotations

from collections.abc import Callable

from tests.engine.scheduling.model_runner import ModelSequence
from tests.engine.scheduling.tier_rules import TierRules


class CacheRules:
    """Full blocks are found by content: those of a prompt once a step is planned that computes them, by whoever is
    admitted after that, in the same step or later; all others once their request gives up its slot. What a step was to
    compute that gives no tokens, or none for a chunk, is not found any more. What nobody owns is given out in this
    order: blocks without findable content, then the least recently used, of one table the last block first.
    Those of `unshared` requests are never found.

    A stamp says all that came before, so the stamp of a block's last entry names the block's content.

    Args:
        enabled: without it nothing can be found.
        num_places: of the tier behind it.
        stores: whether what is lost goes there.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        enabled: bool,
        num_places: int = 0,
        stores: Callable[[], bool] = lambda: True,
    ) -> None:
        self.block_size = block_size
        self.enabled = enabled
        self.tier = TierRules(num_places)
        self._stores = stores
        self.unshared: set[int] = set()
        self._owners = [0] * num_blocks
        self._num_empty = num_blocks
        self._holder: dict[int, int] = {}
        self._content: dict[int, int] = {}
        self._evictable: dict[int, None] = {}
        self._offered: dict[int, int] = {}
        self._planned: dict[int, list[tuple[int, int]]] = {}
        """By step, content and block of what it makes findable."""

    def findable(self, stamps: list[int], num_tokens: int) -> int:
        """Tokens of a hit for a request of `num_tokens`; the last one is always computed."""
        size = self.block_size
        for start in range(0, (num_tokens - 1) // size * size, size):
            if stamps[start + size - 1] not in self._holder:
                return start
        return (num_tokens - 1) // size * size

    def num_unowned(self, stamps: list[int], num_tokens: int) -> int:
        """Blocks of a hit that nobody owns: as good as free before, and not afterwards."""
        size = self.block_size
        ends = range(size - 1, self.findable(stamps, num_tokens), size)
        return sum(not self._owners[self._holder[stamps[end]]] for end in ends)

    def give_out(self, blocks: list[int]) -> None:
        """Blocks get a new content, at once."""
        lost = {self._content[block]: block for block in blocks if block in self._content}
        for block in blocks:
            self._give_out(block)
        if self._stores():
            self.tier.lost(lost)

    def _give_out(self, block: int) -> None:
        assert not self._owners[block], f"block {block} is given out while it is owned"
        if block in self._content:
            assert self._num_empty == 0, f"the content of block {block} is lost though blocks without content are free"
            oldest = next(iter(self._evictable))
            assert block == oldest, f"block {block} loses its content though block {oldest} was used less recently"
            del self._evictable[block]
            del self._holder[self._content.pop(block)]
        else:
            self._num_empty -= 1
        self._owners[block] = 1

    def share(self, block: int) -> None:
        self._owners[block] += 1
        self._evictable.pop(block, None)

    def planned(self, step: int, sequence: ModelSequence, num_tokens: int) -> None:
        """A chunk of a step brings it to so many tokens in its blocks."""
        self._planned.setdefault(step, []).extend(self._offer(sequence, num_tokens))

    def taken_in(self, step: int) -> None:
        """Notes that the step has computed what it was planned to."""
        self._planned.pop(step, None)

    def dropped(self, step: int) -> set[int]:
        """Notes that the step will never compute what it was planned to; returns its blocks."""
        planned = self._planned.pop(step, [])
        for stamp, _ in planned:
            block = self._holder.pop(stamp, None)
            if block is not None:
                del self._content[block]
                if block in self._evictable:
                    del self._evictable[block]
                    self._num_empty += 1
        return {block for _, block in planned}

    def forget(self) -> None:
        """Notes that no block has content any more, while nobody owns one."""
        assert not any(self._owners), "the cache is forgotten while requests have blocks"
        self._num_empty += len(self._evictable)
        self._evictable.clear()
        self._holder.clear()
        self._content.clear()
        self.tier.clear()

    def _offer(self, sequence: ModelSequence, num_tokens: int) -> list[tuple[int, int]]:
        """Its full blocks of so many tokens can be found from now on. Of equal ones only the first, even if it goes
        earlier. Returns stamp and block of those that could not be found before."""
        if not self.enabled or sequence.request_id in self.unshared:
            return []
        size, full, added = self.block_size, num_tokens // self.block_size, []
        for index in range(self._offered.get(sequence.request_id, 0), full):
            block, stamp = sequence.blocks[index], sequence.stamps[(index + 1) * size - 1]
            if stamp not in self._holder and block not in self._content:
                self._holder[stamp] = block
                self._content[block] = stamp
                added.append((stamp, block))
        self._offered[sequence.request_id] = max(full, self._offered.get(sequence.request_id, 0))
        return added

    def leave(self, sequence: ModelSequence) -> None:
        """It gives up its blocks."""
        self._offer(sequence, sequence.confirmed)
        self._offered.pop(sequence.request_id, None)
        for block in reversed(sequence.blocks):
            self._owners[block] -= 1
            if not self._owners[block]:
                if block in self._content:
                    self._evictable[block] = None
                else:
                    self._num_empty += 1
