"""Slots, the requests that hold them, and the numbers of each, as arrays."""

from __future__ import annotations

import heapq

import numpy as np

from inflight_engine.cache.block_pool import BlockIds
from inflight_engine.request import Request
from inflight_engine.scheduling.plan import Slots


class SlotTable:
    """A row per slot; a slot is a running request's place in the batch.

    Attributes:
        requests: the slot's request, None when empty.
        blocks: int32 [num_slots, max_blocks], the block tables; `flat_blocks` is the same memory in one dimension,
            where each slot's begins at `first_cells`, intp [num_slots].
        num_blocks: intp [num_slots], length of the block table.
        num_tokens: int64 [num_slots], known tokens of the request, those of a step in flight that is counted included.
        num_computed: int64 [num_slots], tokens whose KV is in the cache. Kept while in prefill only: a slot past it has
            computed all but its last token.
        num_registered: int64 [num_slots], leading blocks whose content the prefix cache knows.
        num_preemptions, num_prompt_tokens: int64 [num_slots], of the request.
        order: int64 [num_slots], arrival order; -1 when empty.
        start: int64 [num_slots], how many requests had started before; `num_starts`: how many there were in all.
    """

    def __init__(self, num_slots: int, max_blocks: int) -> None:
        self.num_slots = num_slots
        self.max_blocks = max_blocks
        self.requests: list[Request | None] = [None] * num_slots
        self.blocks = np.zeros((num_slots, max_blocks), np.int32)
        self.flat_blocks = self.blocks.reshape(-1)
        self.first_cells = np.arange(num_slots) * max_blocks
        self.num_blocks = np.zeros(num_slots, np.intp)
        self.num_tokens = np.zeros(num_slots, np.int64)
        self.num_computed = np.zeros(num_slots, np.int64)
        self.num_registered = np.zeros(num_slots, np.int64)
        self.num_preemptions = np.zeros(num_slots, np.int64)
        self.num_prompt_tokens = np.zeros(num_slots, np.int64)
        self.order = np.full(num_slots, -1, np.int64)
        self.start = np.zeros(num_slots, np.int64)
        self.num_starts = 0
        self._free = list(range(num_slots))

    @property
    def num_running(self) -> int:
        return self.num_slots - len(self._free)

    @property
    def has_free(self) -> bool:
        return bool(self._free)

    def taken(self) -> Slots:
        """Return all slots that hold a request, oldest request first."""
        slots = np.flatnonzero(self.order >= 0)
        return slots[np.argsort(self.order[slots])]

    def take(self, request: Request, block_ids: BlockIds, num_computed: int, num_registered: int) -> int:
        """Give the request the lowest free slot, with its block table; returns the slot."""
        slot = heapq.heappop(self._free)
        self.requests[slot] = request
        self.blocks[slot, : len(block_ids)] = block_ids
        self.num_blocks[slot] = len(block_ids)
        self.num_tokens[slot] = request.num_tokens
        self.num_computed[slot] = num_computed
        self.num_registered[slot] = num_registered
        self.num_preemptions[slot] = request.num_preemptions
        self.num_prompt_tokens[slot] = request.num_prompt_tokens
        self.order[slot] = request.order
        self.start[slot] = self.num_starts
        self.num_starts += 1
        return slot

    def extend(self, slot: int, block_ids: BlockIds, num_computed: int) -> None:
        """Append blocks to the table of a slot that is in prefill again."""
        num_blocks = int(self.num_blocks[slot])
        self.blocks[slot, num_blocks : num_blocks + len(block_ids)] = block_ids
        self.num_blocks[slot] = num_blocks + len(block_ids)
        self.num_computed[slot] = num_computed

    def release(self, slot: int) -> None:
        """Empty the slot."""
        self.requests[slot] = None
        self.order[slot] = -1
        heapq.heappush(self._free, slot)

    def table(self, slot: int) -> BlockIds:
        """Return the slot's block table, int32 [num_blocks]; a view."""
        return self.blocks[slot, : self.num_blocks[slot]]

    def request(self, slot: int) -> Request:
        """Return the request in a slot that is taken."""
        request = self.requests[slot]
        if request is None:
            raise AssertionError(f"slot {slot} is empty")
        return request
