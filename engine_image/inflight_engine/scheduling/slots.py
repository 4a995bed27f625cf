"""Per-slot numbers of the running requests, as arrays: a step's bookkeeping is a handful of array operations."""

from __future__ import annotations

import numpy as np

from inflight_engine.request import Request, TokenIds
from inflight_engine.scheduling.plan import Slots

_NO_TOKEN = -1


class SlotTable:
    """One row per slot; a slot is a running request's place in the batch.

    Attributes:
        requests: the slot's request, None when empty.
        blocks: the slot's block table.
        token_ids: int32 [max_num_seqs, max_model_len], prompt then output.
        num_tokens: int32 [max_num_seqs], known tokens (the last may not be computed yet).
        num_computed: int32 [max_num_seqs], tokens whose KV is in the cache. Kept while in prefill only: a decoding
            slot has computed all but its last token.
        max_tokens: int32 [max_num_seqs], length at which the request ends as `length`.
        num_blocks: int32 [max_num_seqs], length of the block table.
        order: int64 [max_num_seqs], arrival order; -1 when empty, so that argmax finds the last arrived.
        stop_token_ids: int32 [max_num_seqs, most stop ids of any request so far], padded with -1.
    """

    def __init__(self, max_num_seqs: int, max_model_len: int) -> None:
        self.requests: list[Request | None] = [None] * max_num_seqs
        self.blocks: list[list[int]] = [[] for _ in range(max_num_seqs)]
        self.token_ids = np.empty((max_num_seqs, max_model_len), np.int32)
        self.num_tokens = np.zeros(max_num_seqs, np.int32)
        self.num_computed = np.zeros(max_num_seqs, np.int32)
        self.max_tokens = np.zeros(max_num_seqs, np.int32)
        self.num_blocks = np.zeros(max_num_seqs, np.int32)
        self.order = np.full(max_num_seqs, -1, np.int64)
        self.stop_token_ids = np.full((max_num_seqs, 1), _NO_TOKEN, np.int32)
        self._free = list(range(max_num_seqs - 1, -1, -1))
        self._decoding = np.zeros(max_num_seqs, np.bool_)
        self._decode_slots: Slots = np.empty(0, np.int32)
        self._decode_slots_stale = False

    @property
    def num_running(self) -> int:
        return len(self.requests) - len(self._free)

    @property
    def has_free(self) -> bool:
        return bool(self._free)

    @property
    def decode_slots(self) -> Slots:
        """Slots past their prefill, ascending; the same array object until the set changes."""
        if self._decode_slots_stale:
            self._decode_slots = np.flatnonzero(self._decoding).astype(np.int32)
            self._decode_slots.flags.writeable = False
            self._decode_slots_stale = False
        return self._decode_slots

    def is_decoding(self, slot: int) -> bool:
        return bool(self._decoding[slot])

    def last_arrived(self) -> int:
        """The slot whose request came last. At least one slot must be taken."""
        return int(self.order.argmax())

    def take(self, request: Request) -> int:
        """Give the request a slot, with its tokens but no blocks yet; returns the slot."""
        slot = self._free.pop()
        num_prompt = request.num_prompt_tokens
        num_tokens = num_prompt + len(request.output_token_ids)
        self.requests[slot] = request
        self.token_ids[slot, :num_prompt] = request.prompt_token_ids
        self.token_ids[slot, num_prompt:num_tokens] = request.output_token_ids
        self.num_tokens[slot] = num_tokens
        self.num_computed[slot] = 0
        self.max_tokens[slot] = request.max_total_tokens
        self.num_blocks[slot] = 0
        self.order[slot] = request.order
        self._set_stop_ids(slot, request.sampling.stop_token_ids)
        return slot

    def start_decoding(self, slot: int) -> None:
        self._decoding[slot] = True
        self._decode_slots_stale = True

    def release(self, slot: int) -> list[int]:
        """Empty the slot; returns the blocks it held."""
        blocks = self.blocks[slot]
        self.requests[slot] = None
        self.blocks[slot] = []
        self.order[slot] = -1
        if self._decoding[slot]:
            self._decoding[slot] = False
            self._decode_slots_stale = True
        self._free.append(slot)
        return blocks

    def append_blocks(self, slot: int, blocks: tuple[int, ...]) -> int:
        """Extend the slot's block table; returns the table index of the first new block."""
        first = len(self.blocks[slot])
        self.blocks[slot].extend(blocks)
        self.num_blocks[slot] = len(self.blocks[slot])
        return first

    def tokens_of(self, slot: int) -> TokenIds:
        """A copy of the slot's known tokens, int32 [num_tokens]."""
        return self.token_ids[slot, : self.num_tokens[slot]].copy()

    def append_tokens(self, slots: Slots, token_ids: TokenIds) -> tuple[Slots, Slots]:
        """Append one sampled token to each slot.

        Returns:
            The slots that sampled one of their stop tokens, and those of the rest that reached their length.
        """
        self.token_ids[slots, self.num_tokens[slots]] = token_ids
        self.num_tokens[slots] += 1
        stopped = (self.stop_token_ids[slots] == token_ids[:, None]).any(axis=1)
        full = (self.num_tokens[slots] >= self.max_tokens[slots]) & ~stopped
        return slots[stopped], slots[full]

    def _set_stop_ids(self, slot: int, stop_token_ids: tuple[int, ...]) -> None:
        missing = len(stop_token_ids) - self.stop_token_ids.shape[1]
        if missing > 0:
            self.stop_token_ids = np.pad(self.stop_token_ids, ((0, 0), (0, missing)), constant_values=_NO_TOKEN)
        self.stop_token_ids[slot] = _NO_TOKEN
        self.stop_token_ids[slot, : len(stop_token_ids)] = stop_token_ids
