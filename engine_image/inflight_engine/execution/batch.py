"""The persistent batch: one row of numbers for each slot, edited only by what a step plan says has changed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from inflight_engine.execution.attention.base import AttentionBatch, ChunkSpan
from inflight_engine.execution.sampler import SamplingBatch
from inflight_engine.request import TokenIds
from inflight_engine.scheduling.plan import SlotStart, StepPlan

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class PackedStep:
    """The inputs of one forward pass over T packed tokens.

    Attributes:
        token_ids, positions: int64 [T].
        sampled_rows: int64 [N]: packed tokens whose successor is sampled.
        sampled_slots: int32 [N]: whose they are.
    """

    token_ids: IntArray
    positions: IntArray
    attention: AttentionBatch
    sampled_rows: IntArray
    sampled_slots: npt.NDArray[np.int32]


class PersistentBatch:
    """All slots of the engine.

    Args:
        max_num_seqs: number of slots.
        max_model_len: longest sequence in tokens.
    """

    def __init__(self, max_num_seqs: int, max_model_len: int, block_size: int) -> None:
        self._block_size = block_size
        # Stale or unset entries are read as padding and masked, so they only have to be valid block ids.
        self._block_table = np.zeros((max_num_seqs, -(-max_model_len // block_size)), np.int64)
        self._num_tokens = np.zeros(max_num_seqs, np.int64)
        self._last_token = np.zeros(max_num_seqs, np.int64)
        self._temperature = np.zeros(max_num_seqs, np.float64)
        self._top_p = np.ones(max_num_seqs, np.float64)
        self._top_k = np.zeros(max_num_seqs, np.int64)
        self._seed = np.zeros(max_num_seqs, np.uint64)
        self._known_tokens: dict[int, TokenIds] = {}

    def apply(self, plan: StepPlan) -> None:
        """Edit the rows that the plan names."""
        for slot in plan.releases:
            self._known_tokens.pop(slot, None)
        for start in plan.starts:
            self._start(start)
        for grant in plan.grants:
            self._block_table[grant.slot, grant.first : grant.first + len(grant.block_ids)] = grant.block_ids

    def pack(self, plan: StepPlan) -> PackedStep:
        """Lay the plan's tokens out in one sequence: the decodes, then the chunks."""
        slots = plan.decode_slots
        num_decodes = len(slots)
        decode_positions = self._num_tokens[slots] - 1
        decode_table = self._block_table[slots]
        tokens: list[npt.NDArray[np.integer]] = [self._last_token[slots]]
        positions = [decode_positions]
        decode_blocks = decode_table[np.arange(num_decodes), decode_positions // self._block_size]
        kv_slots = [self._kv_slots(decode_blocks, decode_positions)]
        chunks = []
        sampled_rows = []
        first = num_decodes
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
        return PackedStep(
            token_ids=np.concatenate(tokens).astype(np.int64, copy=False),
            positions=np.concatenate(positions),
            attention=AttentionBatch(np.concatenate(kv_slots), decode_table, decode_positions + 1, tuple(chunks)),
            sampled_rows=np.concatenate([np.arange(num_decodes), np.array(sampled_rows, np.int64)]),
            sampled_slots=plan.sampled_slots,
        )

    def sampling(self, slots: npt.NDArray[np.int32]) -> SamplingBatch:
        """How to sample the next token of these slots."""
        return SamplingBatch(
            self._temperature[slots], self._top_p[slots], self._top_k[slots], self._seed[slots], self._num_tokens[slots]
        )

    def append(self, slots: npt.NDArray[np.int32], token_ids: TokenIds) -> None:
        """Take over what was sampled: each slot's last token, not yet computed."""
        self._last_token[slots] = token_ids
        self._num_tokens[slots] += 1

    def _start(self, start: SlotStart) -> None:
        slot, sampling = start.slot, start.sampling
        self._known_tokens[slot] = start.token_ids
        self._num_tokens[slot] = len(start.token_ids)
        self._temperature[slot] = sampling.temperature
        self._top_p[slot] = sampling.top_p
        self._top_k[slot] = sampling.top_k
        self._seed[slot] = sampling.seed & 0xFFFF_FFFF_FFFF_FFFF

    def _kv_slots(self, block_ids: IntArray, positions: IntArray) -> IntArray:
        return block_ids * self._block_size + positions % self._block_size
