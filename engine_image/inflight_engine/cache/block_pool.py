"""The blocks of a paged KV cache: who owns which, and whose content can be found again (PagedAttention, Kwon et al.
2023; sharing of full blocks by content as in vLLM's automatic prefix caching)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from inflight_engine.cache.block_ids import BlockIds

_LEAST_AHEAD = 64
_MOST_AHEAD = 2048
"""Blocks whose order of allocation is worked out at once: few after a change of what is free, twice as many each time
that they are used up without one. Looking ahead changes nothing but cost: a block is taken, and its content lost, only
when it is handed out."""

_Ids = npt.NDArray[np.intp]
_NOT_QUEUED = -1


class OutOfBlocksError(RuntimeError):
    """More blocks asked for than are free; the scheduler must have made room first."""


class BlockPool:
    """Block ids 0..num_blocks-1, each with the number of its owners and, once registered, the hash of its content.

    A block without owner is free: empty, or cached, which means that its content can still be found and shared.
    Allocation takes empty blocks first (last freed, first taken), then cached ones, least recently freed first. The
    order is deterministic, so equal histories give equal tables.

    Calls that name blocks take an int32 array or any sequence of ids, all different.

    Attributes:
        num_free: blocks without owner, including cached ones.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a block pool needs at least one block of one token, not {num_blocks} of {block_size}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_free = num_blocks
        self._num_owners = np.zeros(num_blocks, np.int32)

        self._empty = np.arange(num_blocks - 1, -1, -1, dtype=np.intp)  # A stack; its top is at _num_empty.
        self._num_empty = num_blocks

        # Cached blocks, least recently freed first, in _queue[_head:_tail]. An entry counts only while its block's
        # place says so: one that was shared meanwhile is skipped.
        self._queue = np.empty(2 * num_blocks, np.intp)
        self._place = np.full(num_blocks, _NOT_QUEUED, np.intp)
        self._head = self._tail = 0

        # The next blocks to hand out, in order, the first _num_taken of them handed out already. What that changes is
        # written down later, for many at once: every method that reads the other fields calls _settle first.
        self._next = np.empty(0, np.intp)
        self._next_ids: BlockIds = self._next.astype(np.int32)
        self._num_next = 0
        self._num_taken = 0
        self._ahead = _LEAST_AHEAD

        # A hash and its block point at each other until the block gets another hash: evicting touches neither. What
        # is found by hash is there only while _has_content says so, one byte a block, seen as bytes and as an array.
        self._block_of: dict[bytes, int] = {}
        self._hash_of: list[bytes | None] = [None] * num_blocks
        self._has_content = bytearray(num_blocks)
        self._content_mask = np.frombuffer(self._has_content, np.bool_)

    @property
    def usage(self) -> float:
        """Share of blocks that have an owner, 0..1."""
        return 1.0 - self.num_free / self.num_blocks

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def allocate(self, count: int) -> BlockIds:
        """Take `count` blocks for one owner; what was cached in them is lost.

        Returns:
            int32 [count], read-only; the caller may keep it.

        Raises:
            OutOfBlocksError: fewer are free; nothing is taken.
        """
        start = self._num_taken
        end = start + count
        if end > self._num_next:
            if count > self.num_free:
                raise OutOfBlocksError(f"{count} blocks wanted, {self.num_free} free")
            self._look_ahead(count)
            start, end = 0, count
        self._num_taken = end
        self.num_free -= count
        return self._next_ids[start:end]

    def free(self, block_ids: BlockIds | Sequence[int]) -> None:
        """Release one reference to each block. A block without owners is empty or, with content, cached.

        Of one table the last block is the first to be evicted (without those before it, it could not be found), and
        empty blocks come back in table order.

        Raises:
            ValueError: a block has no owner, or is named twice; nothing is freed.
        """
        blocks = _all_different(block_ids)
        self._settle()
        num_owners = self._num_owners[blocks]
        if not num_owners.all():
            raise ValueError(f"block {blocks[num_owners == 0][0]} is freed twice")
        self._num_owners[blocks] = num_owners - 1
        unowned = blocks[num_owners == 1][::-1]
        cached = self._content_mask[unowned]
        self._push_cached(unowned[cached])
        self._push_empty(unowned[~cached])
        self.num_free += len(unowned)
        self._forget_next()

    def match(self, hashes: Sequence[bytes]) -> BlockIds:
        """The blocks, owned or not, of the longest leading run of hashes whose content is here. Takes nothing: they
        stay only if they are shared before anything is allocated.

        Returns:
            int32 [at most len(hashes)].
        """
        self._settle()
        blocks: list[int] = []
        for content_hash in hashes:
            block = self._block_of.get(content_hash)
            if block is None or not self._has_content[block]:
                break
            blocks.append(block)
        return np.array(blocks, np.int32)

    def num_unowned(self, block_ids: BlockIds | Sequence[int]) -> int:
        """How many of the blocks have no owner, so that sharing them uses up free ones."""
        self._settle()
        return len(block_ids) - int(np.count_nonzero(self._num_owners[np.asarray(block_ids, np.intp)]))

    def share(self, block_ids: BlockIds | Sequence[int]) -> None:
        """Take one more reference to each block.

        Raises:
            ValueError: a block is neither owned nor cached, or is named twice; nothing is taken.
        """
        blocks = _all_different(block_ids)
        self._settle()
        num_owners = self._num_owners[blocks]
        unowned = blocks[num_owners == 0]
        if not self._content_mask[unowned].all():
            raise ValueError("a block without owner and content cannot be shared; share what `match` returned at once")
        self._num_owners[blocks] = num_owners + 1
        if len(unowned):
            self._place[unowned] = _NOT_QUEUED
            self.num_free -= len(unowned)
            self._forget_next()

    def register(self, block_ids: BlockIds | Sequence[int], hashes: Sequence[bytes]) -> list[int]:
        """Make the content of full blocks findable. They are computed before any request that finds them computes.
        A block that has a hash keeps it; a hash whose content another block has stays with that block.

        Returns:
            The blocks that could not be found before.

        Raises:
            ValueError: a block has no owner or is named twice, or there are more or fewer hashes than blocks; nothing
                is registered.
        """
        blocks = _all_different(block_ids)
        self._settle()
        if len(hashes) != len(blocks):
            raise ValueError(f"{len(blocks)} blocks but {len(hashes)} hashes")
        if not self._num_owners[blocks].all():
            raise ValueError("only blocks that have an owner can be registered")
        unnamed = np.flatnonzero(~self._content_mask[blocks])
        registered: list[int] = []
        block_of, hash_of, has_content = self._block_of, self._hash_of, self._has_content
        for index, block in zip(unnamed.tolist(), blocks[unnamed].tolist(), strict=True):
            content_hash = hashes[index]
            holder = block_of.get(content_hash)
            if holder is not None:
                if has_content[holder]:
                    continue
                hash_of[holder] = None
            stale = hash_of[block]
            if stale is not None:
                del block_of[stale]
            block_of[content_hash] = block
            hash_of[block] = content_hash
            has_content[block] = True
            registered.append(block)
        return registered

    def unregister(self, block_ids: BlockIds | Sequence[int]) -> None:
        """These blocks were registered and never computed: what they should contain cannot be found. Blocks that lost
        that content already stay as they are."""
        blocks = _all_different(block_ids)
        self._settle()
        blocks = blocks[self._content_mask[blocks]]
        self._content_mask[blocks] = False
        unowned = blocks[self._num_owners[blocks] == 0]
        if len(unowned):
            self._place[unowned] = _NOT_QUEUED
            self._push_empty(unowned)
            self._forget_next()

    def _push_empty(self, blocks: _Ids) -> None:
        top = self._num_empty + len(blocks)
        self._empty[self._num_empty : top] = blocks
        self._num_empty = top

    def _push_cached(self, blocks: _Ids) -> None:
        if self._tail + len(blocks) > len(self._queue):
            waiting = self._queued(self._head, self._tail)
            self._head, self._tail = 0, len(waiting)
            self._queue_from(0, waiting)
        self._queue_from(self._tail, blocks)
        self._tail += len(blocks)

    def _queue_from(self, start: int, blocks: _Ids) -> None:
        end = start + len(blocks)
        self._queue[start:end] = blocks
        self._place[blocks] = np.arange(start, end)

    def _queued(self, start: int, end: int) -> _Ids:
        """The blocks of this part of the queue that still count."""
        blocks = self._queue[start:end]
        counts: npt.NDArray[np.bool_] = self._place[blocks] == np.arange(start, end)
        return blocks[counts]

    def _settle(self) -> None:
        """Write down what was handed out of `_next`."""
        if self._num_taken == 0:
            return
        taken = self._next[: self._num_taken]
        self._num_owners[taken] = 1
        self._content_mask[taken] = False
        evicted = taken[self._num_empty :]
        self._num_empty -= len(taken) - len(evicted)
        self._head += len(evicted)  # Looking ahead left no gaps between them.
        self._next = self._next[self._num_taken :]
        self._next_ids = self._next_ids[self._num_taken :]
        self._num_next -= self._num_taken
        self._num_taken = 0

    def _forget_next(self) -> None:
        self._num_next = 0
        self._ahead = _LEAST_AHEAD

    def _look_ahead(self, count: int) -> None:
        """Work out the next blocks anew: `count`, which must be free, or more."""
        self._settle()
        count = min(max(count, self._ahead), self.num_free)
        self._ahead = min(2 * self._ahead, _MOST_AHEAD)
        num_empty = min(count, self._num_empty)
        empty = self._empty[self._num_empty - num_empty : self._num_empty][::-1]
        self._next = np.concatenate([empty, self._oldest_cached(count - num_empty)])
        self._next_ids = self._next.astype(np.int32)
        self._next_ids.flags.writeable = False
        self._num_next = len(self._next)

    def _oldest_cached(self, count: int) -> _Ids:
        """At least the first `count` cached blocks, which must be there, in order of eviction."""
        width = count
        while True:
            end = min(self._head + width, self._tail)
            oldest = self._queued(self._head, end)
            if len(oldest) >= count:
                break
            width *= 2
        if self._head + len(oldest) < end:
            # Moved together behind what no longer counts, so that nothing is skipped twice.
            self._head = end - len(oldest)
            self._queue_from(self._head, oldest)
        return oldest


def _all_different(block_ids: BlockIds | Sequence[int]) -> _Ids:
    blocks = np.asarray(block_ids, np.intp)
    if len(set(blocks.tolist())) < len(blocks):
        raise ValueError("a block is named twice in one call")
    return blocks
