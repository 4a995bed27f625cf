"""The blocks of a paged KV cache: who owns which, and whose content can be found again (PagedAttention, Kwon et al.
2023; sharing of full blocks by content as in vLLM's automatic prefix caching)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from inflight_engine.block_events import DEVICE, BlockEvent, BlocksRemoved

BlockIds = npt.NDArray[np.int32]
"""Ids of KV blocks."""

_Ids = npt.NDArray[np.intp]
_NO_BLOCK = -1


class OutOfBlocksError(RuntimeError):
    """More blocks were requested than are free; the scheduler must make room first."""


class BlockPool:
    """Block ids 0..num_blocks-1, each with the number of its owners and, once registered, the hash of its content.

    A block without owner is free: empty, or cached, which means that its content can still be found and shared.
    Allocation takes empty blocks first (last freed, first taken), then cached ones, least recently freed first. The
    order is deterministic, so equal histories give equal tables.

    Calls that name blocks take an int32 array or any sequence of ids, all different.

    Attributes:
        num_free: blocks without owner, including cached ones.
        events: gets a record of content that is lost; of what is registered its caller, who knows the tokens, adds one.
            None: no records.
        medium: where these blocks are, for the records.
        offload: called with the blocks whose content an allocation takes away, in the order in which they are given
            out, and with the hashes of their content; None: it is lost.
    """

    def __init__(
        self, num_blocks: int, block_size: int, events: list[BlockEvent] | None = None, medium: str = DEVICE
    ) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a block pool needs at least one block of one token, not {num_blocks} of {block_size}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_free = num_blocks
        self.events = events
        self.medium = medium
        self.offload: Callable[[_Ids, list[bytes]], None] | None = None
        self._num_owners = np.zeros(num_blocks, np.int32)

        # The blocks without owner in order of allocation: _order[_head:_tail]. Empty blocks come and go at the head,
        # cached ones are added at the tail, and one that is shared or emptied meanwhile leaves _NO_BLOCK behind.
        self._order = np.full(3 * num_blocks, _NO_BLOCK)
        self._place = np.zeros(num_blocks, np.intp)
        """Index in _order of each block without owner."""
        self._head = self._tail = num_blocks
        self._append(np.arange(num_blocks))

        # A hash and its block point at each other until the block gets another hash: evicting touches neither. What
        # is found by hash is there only while _has_content says so, one byte a block, seen as bytes and as an array.
        self._block_of: dict[bytes, int] = {}
        self._hash_of: list[bytes | None] = [None] * num_blocks
        self._has_content = bytearray(num_blocks)
        self._content_mask = np.frombuffer(self._has_content, np.bool_)

    @property
    def usage(self) -> float:
        """The share of blocks that have an owner, 0..1."""
        return 1.0 - self.num_free / self.num_blocks

    @property
    def num_empty(self) -> int:
        """Blocks without owner that can be taken before content is lost."""
        return self.num_free - int(np.count_nonzero(self._content_mask & (self._num_owners == 0)))

    @property
    def num_findable(self) -> int:
        """Blocks whose content can be found."""
        return int(np.count_nonzero(self._content_mask))

    def blocks_for(self, num_tokens: int) -> int:
        """Return the number of blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def allocate(self, count: int) -> BlockIds:
        """Take `count` blocks for one owner; what was cached in them is lost.

        Returns:
            int32 [count], read-only; the caller may keep it.

        Raises:
            OutOfBlocksError: fewer are free; nothing is taken.
        """
        if count > self.num_free:
            raise OutOfBlocksError(f"{count} blocks wanted, {self.num_free} free")
        head, end = self._head, self._head + count
        blocks = self._order[head:end]
        if self._tail - head > self.num_free:  # with gaps
            blocks = self._first(count)
            end = int(self._place[blocks[-1]]) + 1 if count else head
        self._head = end
        self.num_free -= count
        self._num_owners[blocks] = 1
        if self.events is not None or self.offload is not None:
            self._evict(blocks[self._content_mask[blocks]])
        self._content_mask[blocks] = False
        block_ids = blocks.astype(np.int32)
        block_ids.setflags(write=False)
        return block_ids

    def free(self, block_ids: BlockIds | Sequence[int], *, elsewhere: bool = False) -> None:
        """Release one reference to each block. A block without owners is empty or, with content, cached.

        Of one table the last block is the first to be evicted (without those before it, it could not be found), and
        empty blocks come back in table order.

        Args:
            elsewhere: the content is in other memory too: where no block is empty, these are the next to be evicted.

        Raises:
            ValueError: a block has no owner, or is named twice; nothing is freed.
        """
        blocks = _all_different(block_ids)
        num_owners = self._num_owners[blocks]
        if not num_owners.all():
            raise ValueError(f"block {blocks[num_owners == 0][0]} is freed twice")
        self._num_owners[blocks] = num_owners - 1
        unowned = blocks[num_owners == 1][::-1]
        mask = self._content_mask[unowned]
        cached = unowned[mask]
        if elsewhere and not self._has_empty():
            self._prepend(cached[::-1])
        else:
            self._append(cached)
        self._prepend(unowned[~mask])
        self.num_free += len(unowned)

    def match(self, hashes: Sequence[bytes]) -> BlockIds:
        """Find the blocks, owned or not, of the longest leading run of hashes whose content is here. Takes nothing:
        they stay only if they are shared before anything is allocated.

        Returns:
            int32 [at most len(hashes)].
        """
        blocks: list[int] = []
        for content_hash in hashes:
            block = self._block_of.get(content_hash)
            if block is None or not self._has_content[block]:
                break
            blocks.append(block)
        return np.array(blocks, np.int32)

    def find(self, hashes: Sequence[bytes]) -> BlockIds:
        """Return the block with each of these contents, or -1 where none has it: int32 [len(hashes)]."""
        found = [self._block_of.get(each, _NO_BLOCK) for each in hashes]
        return np.array([each if each >= 0 and self._has_content[each] else _NO_BLOCK for each in found], np.int32)

    def content(self, block: int) -> bytes | None:
        """Return the hash of a block's content; None: it cannot be found."""
        content_hash = self._hash_of[block]  # first: a thread may ask while the block gets other content
        return content_hash if self._has_content[block] else None

    def num_unowned(self, block_ids: BlockIds | Sequence[int]) -> int:
        """Return how many of the blocks have no owner, so that sharing them uses up free ones."""
        return len(block_ids) - int(np.count_nonzero(self._num_owners[np.asarray(block_ids, np.intp)]))

    def share(self, block_ids: BlockIds | Sequence[int]) -> None:
        """Take one more reference to each block.

        Raises:
            ValueError: a block is neither owned nor cached, or is named twice; nothing is taken.
        """
        blocks = _all_different(block_ids)
        num_owners = self._num_owners[blocks]
        unowned = blocks[num_owners == 0]
        if not self._content_mask[unowned].all():
            raise ValueError("a block without owner and content cannot be shared; share what `match` returned at once")
        self._num_owners[blocks] = num_owners + 1
        self._order[self._place[unowned]] = _NO_BLOCK
        self.num_free -= len(unowned)

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
        """Forget the content of blocks that were registered and never computed, or whose memory is given back. Blocks
        that lost that content already stay as they are."""
        blocks = _all_different(block_ids)
        blocks = blocks[self._content_mask[blocks]]
        if self.events is not None:
            self._note_lost(blocks, self.events)
        self._content_mask[blocks] = False
        unowned = blocks[self._num_owners[blocks] == 0]
        self._order[self._place[unowned]] = _NO_BLOCK
        self._prepend(unowned)

    def _evict(self, blocks: _Ids) -> None:
        if not len(blocks):
            return
        if self.events is not None:
            self._note_lost(blocks, self.events)
        if self.offload is not None:
            self.offload(blocks, [each for each in map(self._hash_of.__getitem__, blocks.tolist()) if each is not None])

    def _note_lost(self, blocks: _Ids, events: list[BlockEvent]) -> None:
        hashes = [self._hash_of[block] for block in blocks.tolist()]
        if hashes:
            events.append(BlocksRemoved(b"".join(each for each in hashes if each is not None), self.medium))

    def _has_empty(self) -> bool:
        """Tell whether a block without owner is empty: those come first."""
        return self.num_free > 0 and not self._content_mask[self._first(1)[0]]

    def _first(self, count: int) -> _Ids:
        """Return the first `count` blocks of the order, without the gaps."""
        width = count
        while True:
            part = self._order[self._head : min(self._head + width, self._tail)]
            blocks = part[part >= 0][:count]
            if len(blocks) == count:
                return blocks
            width *= 2

    def _append(self, blocks: _Ids) -> None:
        """Allocate these after all others, the first of them first."""
        self._make_room(len(blocks))
        self._put(self._tail, blocks)
        self._tail += len(blocks)

    def _prepend(self, blocks: _Ids) -> None:
        """Allocate these before all others, the last of them first."""
        self._make_room(len(blocks))
        self._head -= len(blocks)
        self._put(self._head, blocks[::-1])

    def _put(self, start: int, blocks: _Ids) -> None:
        end = start + len(blocks)
        self._order[start:end] = blocks
        self._place[blocks] = np.arange(start, end)

    def _make_room(self, count: int) -> None:
        """Move the order to the middle where fewer than `count` places are left at either side."""
        if count > self._head or self._tail + count > len(self._order):
            blocks = self._order[self._head : self._tail]
            blocks = blocks[blocks >= 0]
            self._head, self._tail = self.num_blocks, self.num_blocks + len(blocks)
            self._put(self._head, blocks)


def _all_different(block_ids: BlockIds | Sequence[int]) -> _Ids:
    blocks = np.asarray(block_ids, np.intp)
    if len(set(blocks.tolist())) < len(blocks):
        raise ValueError("a block is named twice in one call")
    return blocks
