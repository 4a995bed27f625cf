"""The paged KV cache's free list (PagedAttention, Kwon et al. 2023, section 4.3)."""

from __future__ import annotations


class OutOfBlocksError(RuntimeError):
    """More blocks asked for than are free; the scheduler must have made room first."""


class BlockPool:
    """Hands out block ids 0..num_blocks-1, each to one owner at a time.

    The order is deterministic (last freed, first given), so equal histories give equal tables.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a block pool needs at least one block of one token, not {num_blocks} of {block_size}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = list(range(num_blocks - 1, -1, -1))
        self._is_free = bytearray(b"\x01" * num_blocks)

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def usage(self) -> float:
        """Share of blocks in use, 0..1."""
        return 1.0 - len(self._free) / self.num_blocks

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def allocate(self, count: int) -> tuple[int, ...]:
        """Take `count` blocks.

        Raises:
            OutOfBlocksError: fewer are free; nothing is taken.
        """
        if count > len(self._free):
            raise OutOfBlocksError(f"{count} blocks wanted, {len(self._free)} free")
        taken = tuple(self._free.pop() for _ in range(count))
        for block in taken:
            self._is_free[block] = 0
        return taken

    def free(self, blocks: list[int]) -> None:
        """Give blocks back, the table's last block first, so that a new owner gets them in table order."""
        for block in reversed(blocks):
            if self._is_free[block]:
                raise ValueError(f"block {block} is freed twice")
            self._is_free[block] = 1
            self._free.append(block)
