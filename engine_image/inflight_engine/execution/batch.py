"""The persistent batch: one row of numbers for each slot, edited only by what a step plan says has changed."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from inflight_engine.execution.attention.base import AttentionBatch, ChunkSpan
from inflight_engine.request import TokenIds
from inflight_engine.scheduling.plan import Slots, SlotStart, StepPlan

IntArray = npt.NDArray[np.int64]
_NO_TOKENS: IntArray = np.empty(0, np.int64)


class PackedStep(msgspec.Struct, frozen=True, eq=False):
    """The inputs of one forward pass over T packed tokens: the D decodes, then the chunks.

    Attributes:
        decode_slots: intp [D]: each one's token is its slot's last, which only the device may know yet.
        chunk_token_ids: int64 [T - D].
        positions: int64 [T].
        sampled_rows: int64 [N]: packed tokens whose successor is sampled; None when all of them are, in order.
        sampled_slots: intp [N]: whose they are.
        sampled_positions: int64 [N]: index of each token to sample in its sequence.
    """

    decode_slots: Slots
    chunk_token_ids: IntArray
    positions: IntArray
    attention: AttentionBatch
    sampled_rows: IntArray | None
    sampled_slots: Slots
    sampled_positions: IntArray


class _Decodes(msgspec.Struct, frozen=True, eq=False):
    """The decodes of a step: their slots, and int64 [D] positions, lengths and places in the KV cache; int64 [D, >=
    blocks of the longest] block table."""

    slots: Slots
    positions: IntArray
    lens: IntArray
    kv_slots: IntArray
    table: IntArray


class PersistentBatch:
    """All slots of the engine: how many tokens each has and where their keys and values are. Which tokens a running
    sequence has sampled it does not know, so a step can be packed before the one before it is done.

    Args:
        max_num_seqs: number of slots.
        max_model_len: longest sequence in tokens.
    """

    def __init__(self, max_num_seqs: int, max_model_len: int, block_size: int) -> None:
        self._block_size = block_size
        # Stale or unset entries are read as padding and masked, so they only have to be valid block ids.
        self._block_table = np.zeros((max_num_seqs, -(-max_model_len // block_size)), np.int64)
        self._num_tokens = np.zeros(max_num_seqs, np.int64)
        self._known_tokens: dict[int, TokenIds] = {}
        self._decodes: _Decodes | None = None
        """Of the last plan. While the same slots decode, each step follows from the one before."""

    def apply(self, plan: StepPlan) -> None:
        """Edit the rows that the plan names."""
        for slot in plan.releases:
            self._known_tokens.pop(slot, None)
        for start in plan.starts:
            self._start(start)
        growth = plan.growth
        if growth is not None:
            self._block_table[growth.slots, growth.indices] = growth.block_ids

    def pack(self, plan: StepPlan) -> PackedStep:
        """Lay the plan's tokens out in one sequence: the decodes, then the chunks. From here on the sequences are as
        much longer as the plan samples."""
        slots = plan.decode_slots
        decodes = self._decodes = self._next_decodes(plan) or self._new_decodes(slots)
        if not plan.prefills:
            self._num_tokens[slots] += 1
            return PackedStep(
                decode_slots=slots,
                chunk_token_ids=_NO_TOKENS,
                positions=decodes.positions,
                attention=AttentionBatch(decodes.kv_slots, decodes.table, decodes.lens, ()),
                sampled_rows=None,
                sampled_slots=slots,
                sampled_positions=decodes.lens,
            )
        tokens: list[npt.NDArray[np.integer]] = []
        positions = [decodes.positions]
        kv_slots = [decodes.kv_slots]
        chunks = []
        sampled_rows = []
        first = len(slots)
        for chunk in plan.prefills:
            end = chunk.start + chunk.length
            chunk_positions = np.arange(chunk.start, end)
            table = self._block_table[chunk.slot]
            tokens.append(self._known_tokens[chunk.slot][chunk.start : end])
            positions.append(chunk_positions)
            kv_slots.append(self._kv_slots(table[chunk_positions // self._block_size], chunk_positions))
            chunks.append(ChunkSpan(first, chunk.length, chunk.start, table[: -(-end // self._block_size)]))
            first += chunk.length
            if chunk.samples:
                sampled_rows.append(first - 1)
        sampled_slots = plan.sampled_slots
        sampled_positions = self._num_tokens[sampled_slots]
        self._num_tokens[sampled_slots] += 1
        return PackedStep(
            decode_slots=slots,
            chunk_token_ids=np.concatenate(tokens).astype(np.int64, copy=False),
            positions=np.concatenate(positions),
            attention=AttentionBatch(np.concatenate(kv_slots), decodes.table, decodes.lens, tuple(chunks)),
            sampled_rows=np.concatenate([np.arange(len(slots)), np.array(sampled_rows, np.int64)]),
            sampled_slots=sampled_slots,
            sampled_positions=sampled_positions,
        )

    def _new_decodes(self, slots: Slots) -> _Decodes:
        lens = self._num_tokens[slots]
        positions = lens - 1
        table = self._block_table[:, : -(-int(lens.max(initial=0)) // self._block_size)][slots]
        blocks = table[np.arange(len(slots)), positions // self._block_size]
        return _Decodes(slots, positions, lens, self._kv_slots(blocks, positions), table)

    def _next_decodes(self, plan: StepPlan) -> _Decodes | None:
        """Those of the plan before, one token on; None: they are others, or one is longer than the table is wide."""
        before, growth, size = self._decodes, plan.growth, self._block_size
        if before is None or plan.decode_slots is not before.slots:
            return None
        kv_slots, table = before.kv_slots + 1, before.table
        if growth is not None:
            if growth.indices.max() >= table.shape[1]:
                return None
            rows = np.searchsorted(before.slots, growth.slots)
            table = table.copy()  # the step before may be under way
            table[rows, growth.indices] = growth.block_ids
            kv_slots[rows] = growth.block_ids.astype(np.int64) * size
        return _Decodes(before.slots, before.lens, before.lens + 1, kv_slots, table)

    def _start(self, start: SlotStart) -> None:
        slot, token_ids = start.slot, start.token_ids
        self._known_tokens[slot] = token_ids
        self._num_tokens[slot] = len(token_ids)
        self._block_table[slot, : len(start.block_ids)] = start.block_ids

    def _kv_slots(self, block_ids: IntArray, positions: IntArray) -> IntArray:
        return block_ids * self._block_size + positions % self._block_size
