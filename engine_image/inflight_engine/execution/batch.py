"""The persistent batch: one row of numbers for each slot, edited by the changes in step plans."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from inflight_engine.execution.attention.base import AttentionBatch, ChunkSpan
from inflight_engine.execution.sampling.prompt_logprobs import PromptSpan
from inflight_engine.request import TokenIds
from inflight_engine.scheduling.plan import PrefillChunk, Slots, SlotStart, StepPlan

IntArray = npt.NDArray[np.int64]
_NO_CELLS: IntArray = np.empty(0, np.int64)


class PromptRows(msgspec.Struct, frozen=True, eq=False):
    """The M prompt tokens of a step whose log-probabilities are asked for, span by span.

    Attributes:
        rows: int64 [M]: packed tokens that they follow; none of them is sampled from.
        token_ids: int64 [M].
    """

    rows: IntArray
    token_ids: IntArray
    spans: tuple[PromptSpan, ...]


class PackedStep(msgspec.Struct, frozen=True, eq=False):
    """The inputs of one forward pass over T packed tokens: the D decodes, then the chunks.

    Attributes:
        token_slots: intp [T]: for decodes, the slots whose last tokens they compute; for chunks, the number of slots,
            which is the padding slot.
        token_ids: int64 [T]: tokens of chunks; -1 for decodes, whose tokens only the device may know yet. None without
            chunks.
        positions: int64 [T].
        sampled_rows: int64 [N]: packed tokens whose successor is sampled; None when all of them are, in order.
        sampled_slots: intp [N]: slots of the sampled tokens.
        sampled_positions: int64 [N]: index of each token to sample in its sequence.
        prompts: None: no request asks for log-probabilities of its prompt.
    """

    token_slots: Slots
    token_ids: IntArray | None
    positions: IntArray
    attention: AttentionBatch
    sampled_rows: IntArray | None
    sampled_slots: Slots
    sampled_positions: IntArray
    prompts: PromptRows | None = None


class _Decodes(msgspec.Struct, frozen=True, eq=False):
    """The decodes of a step: their slots, and int64 [D] positions, lengths and places in the KV cache."""

    slots: Slots
    positions: IntArray
    lens: IntArray
    kv_slots: IntArray


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
        self._changed_cells: list[IntArray] = []
        """Indices into the flattened block table of the cells that changed since the last step that was computed."""
        self._num_tokens = np.zeros(max_num_seqs, np.int64)
        self._known_tokens: dict[int, TokenIds] = {}
        self._scored_prompts: dict[int, tuple[int, int]] = {}
        """Prompt length and number of likeliest tokens to report, by slot that asks for log-probabilities of its
        prompt."""
        self._decodes: _Decodes | None = None
        """Decodes of the last plan that was computed. While the same slots decode, each step follows from the one
        before."""
        self._packed_decodes: _Decodes | None = None
        """Decodes of what was packed last."""

    def apply(self, plan: StepPlan) -> None:
        """Edit the rows that the plan names."""
        for slot in plan.releases:
            self._known_tokens.pop(slot, None)
            self._scored_prompts.pop(slot, None)
        for start in plan.all_starts:
            self._start(start)
        growth = plan.growth
        if growth is not None:
            self._block_table[growth.slots, growth.indices] = growth.block_ids
            self._changed_cells.append(growth.slots * self._block_table.shape[1] + growth.indices)

    def pack(self, plan: StepPlan) -> PackedStep:
        """Lay the plan's tokens out in one sequence: the decodes, then the chunks. The plan, or pieces of it, may be
        packed several times until `advance`."""
        slots = plan.decode_slots
        decodes = self._packed_decodes = self._next_decodes(plan) or self._new_decodes(slots)
        if not plan.prefills:
            return PackedStep(
                token_slots=slots,
                token_ids=None,
                positions=decodes.positions,
                attention=self._attention(decodes, decodes.kv_slots, ()),
                sampled_rows=None,
                sampled_slots=slots,
                sampled_positions=decodes.lens,
            )
        num_decodes = len(slots)
        tokens: list[npt.NDArray[np.integer]] = [np.full(num_decodes, -1)]
        positions = [decodes.positions]
        kv_slots = [decodes.kv_slots]
        chunks = []
        sampled_rows = []
        prompt_rows: list[IntArray] = []
        spans: list[PromptSpan] = []
        first = num_decodes
        for chunk in plan.prefills:
            end = chunk.start + chunk.length
            chunk_positions = np.arange(chunk.start, end)
            blocks = self._block_table[chunk.slot, chunk_positions // self._block_size]
            tokens.append(self._known_tokens[chunk.slot][chunk.start : end])
            positions.append(chunk_positions)
            kv_slots.append(self._kv_slots(blocks, chunk_positions))
            chunks.append(ChunkSpan(chunk.slot, first, chunk.length, chunk.start))
            span = self._scored_span(chunk)
            if span is not None:
                spans.append(span)
                prompt_rows.append(np.arange(first, first + span.length))
            first += chunk.length
            if chunk.samples:
                sampled_rows.append(first - 1)
        token_slots = np.full(first, len(self._num_tokens), np.intp)
        token_slots[:num_decodes] = slots
        sampled_slots = plan.sampled_slots
        return PackedStep(
            token_slots=token_slots,
            token_ids=np.concatenate(tokens).astype(np.int64, copy=False),
            positions=np.concatenate(positions),
            attention=self._attention(decodes, np.concatenate(kv_slots), tuple(chunks)),
            sampled_rows=np.concatenate([np.arange(num_decodes), np.array(sampled_rows, np.int64)]),
            sampled_slots=sampled_slots,
            sampled_positions=self._num_tokens[sampled_slots],
            prompts=self._prompts(prompt_rows, spans) if spans else None,
        )

    def advance(self, plan: StepPlan) -> None:
        """Take in that the plan is computed: each sequence that it samples is one token longer."""
        self._num_tokens[plan.sampled_slots] += 1
        self._changed_cells.clear()
        self._decodes = self._packed_decodes

    def _scored_span(self, chunk: PrefillChunk) -> PromptSpan | None:
        """Return the prompt tokens that follow a chunk's, if they are to be scored; the tokens behind a preempted
        request's prompt are its output."""
        scored = self._scored_prompts.get(chunk.slot)
        if scored is None:
            return None
        num_prompt_tokens, num_top = scored
        length = min(chunk.length, num_prompt_tokens - 1 - chunk.start)
        return PromptSpan(chunk.slot, chunk.start + 1, length, num_top) if length > 0 else None

    def _prompts(self, rows: list[IntArray], spans: list[PromptSpan]) -> PromptRows:
        token_ids = [self._known_tokens[span.slot][span.first : span.first + span.length] for span in spans]
        return PromptRows(np.concatenate(rows), np.concatenate(token_ids).astype(np.int64), tuple(spans))

    def _attention(self, decodes: _Decodes, kv_slots: IntArray, chunks: tuple[ChunkSpan, ...]) -> AttentionBatch:
        changed = self._changed_cells
        return AttentionBatch(
            kv_slots=kv_slots,
            decode_slots=decodes.slots,
            decode_context_lens=decodes.lens,
            chunks=chunks,
            block_table=self._block_table,
            # A slot can be started twice where a step failed in between.
            changed_cells=np.unique(np.concatenate(changed)) if changed else _NO_CELLS,
        )

    def _new_decodes(self, slots: Slots) -> _Decodes:
        lens = self._num_tokens[slots]
        positions = lens - 1
        blocks = self._block_table[slots, positions // self._block_size]
        return _Decodes(slots, positions, lens, self._kv_slots(blocks, positions))

    def _next_decodes(self, plan: StepPlan) -> _Decodes | None:
        """Return the decodes of the plan before, one token on; None: other slots decode."""
        before, growth = self._decodes, plan.growth
        if before is None or plan.decode_slots is not before.slots:
            return None
        kv_slots = before.kv_slots + 1
        if growth is not None:
            rows = np.searchsorted(before.slots, growth.slots)
            kv_slots[rows] = growth.block_ids.astype(np.int64) * self._block_size
        return _Decodes(before.slots, before.lens, before.lens + 1, kv_slots)

    def _start(self, start: SlotStart) -> None:
        slot, token_ids, num_blocks = start.slot, start.token_ids, len(start.block_ids)
        self._known_tokens[slot] = token_ids
        # A step that failed half-way may have lost the release.
        self._scored_prompts.pop(slot, None)
        if start.sampling.prompt_logprobs is not None:
            self._scored_prompts[slot] = (start.num_prompt_tokens, start.sampling.prompt_logprobs)
        self._num_tokens[slot] = len(token_ids)
        self._block_table[slot, :num_blocks] = start.block_ids
        self._changed_cells.append(np.arange(num_blocks) + slot * self._block_table.shape[1])

    def _kv_slots(self, block_ids: IntArray, positions: IntArray) -> IntArray:
        return block_ids * self._block_size + positions % self._block_size
