"""What the prefix cache must hold and find, and which block it must give up next."""

from __future__ import annotations

from tests.engine.scheduling.model_runner import ModelSequence


class CacheRules:
    """Full blocks are found by content: those of a prompt once the step that computed them is taken in, all others
    once their request gives up its slot. What nobody owns is given out in this order: blocks without findable content,
    then the least recently used, of one table the last block first.

    A stamp says all that came before, so the stamp of a block's last entry names the block's content.

    Args:
        enabled: without it nothing can be found.
    """

    def __init__(self, num_blocks: int, block_size: int, *, enabled: bool) -> None:
        self.block_size = block_size
        self.enabled = enabled
        self._owners = [0] * num_blocks
        self._num_empty = num_blocks
        self._holder: dict[int, int] = {}
        self._content: dict[int, int] = {}
        self._evictable: dict[int, None] = {}
        self._offered: dict[int, int] = {}

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

    def give_out(self, block: int) -> None:
        """A block gets a new content."""
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

    def computed(self, sequence: ModelSequence) -> None:
        """Its full confirmed blocks can be found from now on. Of equal ones only the first, even if it goes earlier."""
        if not self.enabled:
            return
        size, full = self.block_size, sequence.confirmed // self.block_size
        for index in range(self._offered.get(sequence.request_id, 0), full):
            block, stamp = sequence.blocks[index], sequence.stamps[(index + 1) * size - 1]
            if stamp not in self._holder and block not in self._content:
                self._holder[stamp] = block
                self._content[block] = stamp
        self._offered[sequence.request_id] = full

    def leave(self, sequence: ModelSequence) -> None:
        """It gives up its blocks."""
        self.computed(sequence)
        self._offered.pop(sequence.request_id, None)
        for block in reversed(sequence.blocks):
            self._owners[block] -= 1
            if not self._owners[block]:
                if block in self._content:
                    self._evictable[block] = None
                else:
                    self._num_empty += 1
