"""Blocks by their number alone: for a simulation that asks when, not where."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inflight_engine.cache.block_ids import BlockIds
from inflight_engine.cache.block_pool import OutOfBlocksError

_NO_BLOCKS: BlockIds = np.empty(0, np.int32)


_ZEROS: list[BlockIds] = [np.zeros(1024, np.int32)]
"""Zeros that all counters return parts of. They grow to the largest number requested."""


class BlockCounter:
    """Stands in for `BlockPool` where no prefix cache is: counts what is free, and gives every block the id 0.

    Attributes:
        num_free: blocks without owner.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_free = num_blocks

    @property
    def usage(self) -> float:
        """Share of blocks that have an owner, 0..1."""
        return 1.0 - self.num_free / self.num_blocks

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def allocate(self, count: int) -> BlockIds:
        """Take `count` blocks for one owner.

        Raises:
            OutOfBlocksError: fewer are free; nothing is taken.
        """
        if count > self.num_free:
            raise OutOfBlocksError(f"{count} blocks wanted, {self.num_free} free")
        self.num_free -= count
        return _zeros(count)

    def free(self, block_ids: BlockIds | Sequence[int]) -> None:
        """Give up so many blocks."""
        self.num_free += len(block_ids)

    def match(self, hashes: Sequence[bytes]) -> BlockIds:
        """Nothing is found by content."""
        return _NO_BLOCKS

    def num_unowned(self, block_ids: BlockIds | Sequence[int]) -> int:
        """Return 0: no block is found by content."""
        return 0

    def share(self, block_ids: BlockIds | Sequence[int]) -> None:
        """Nothing can be shared."""

    def register(self, block_ids: BlockIds | Sequence[int], hashes: Sequence[bytes]) -> list[int]:
        """Contents are not kept."""
        return []

    def unregister(self, block_ids: BlockIds | Sequence[int]) -> None:
        """None can be found."""


def _zeros(count: int) -> BlockIds:
    """Return int32 [count] zeros, read-only."""
    if count > len(_ZEROS[0]):
        _ZEROS[0] = np.zeros(2 * count, np.int32)
    zeros = _ZEROS[0][:count]
    zeros.flags.writeable = False
    return zeros
