"""The numbers of a step on a GPU, as its attention backends need them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from inflight_engine.execution.attention.base import AttentionBatch, AttentionSpec, ChunkSpan, StepShape
from inflight_engine.execution.memory.staging import Staging, staged_bytes, upload
from inflight_engine.scheduling.plan import Slots

Int32Array = npt.NDArray[np.int32]

_COLUMNS = 16
"""Rows are a multiple of this long: they begin at multiples of 64 bytes, and Triton, which compiles a kernel again for
sizes that 16 does not divide, has one variant for all lengths of sequences."""


@dataclass(frozen=True, slots=True, eq=False)
class GpuStep:
    """Int32 tensors on the device: R rows that decode (padded ones included), then C chunks.

    How many sequences of a fixed shape with chunks decode is not fixed. With tiles, its chunks are in `query_tiles`
    alone: C is 0. Without, all its sequences count as chunks, those that decode of one token, padded ones of none: R is
    0.

    Attributes:
        num_rows: R.
        num_chunks: C.
        longest_chunk: tokens; of a fixed shape, as many as there are.
        block_table: [max_num_seqs, blocks], a row for each slot; or [R + C, blocks], a row for each sequence, where
            that was asked for.
        context_lens: [R + C]: tokens that each sequence has in the cache after the step; 0: padded.
        slots: [R + C]: slot of each sequence; padded rows have any.
        kv_slots: [T]: where each packed token's key and value go; -1: nowhere.
        query_tiles: [N, 4]: pieces of the chunks, and each decode where that was asked for, see `cut`; then padding,
            pieces of no tokens. Or empty.
        chunk_starts: [C + 1]: packed tokens before each chunk, and after the last; empty without chunks.
    """

    num_rows: int
    num_chunks: int
    longest_chunk: int
    block_table: torch.Tensor
    context_lens: torch.Tensor
    slots: torch.Tensor
    kv_slots: torch.Tensor
    query_tiles: torch.Tensor
    chunk_starts: torch.Tensor


class DeviceBlockTable:
    """Copy of the host's block table, at one address. A table sent whole with each step would be 8 MB for one sequence
    of 128k tokens.

    Attributes:
        rows: int32 [max_num_seqs, blocks of the longest sequence or more]; entries past a sequence's blocks are any
            valid block.
    """

    def __init__(self, spec: AttentionSpec) -> None:
        blocks = -(-spec.max_model_len // spec.block_size)
        width = -(-blocks // _COLUMNS) * _COLUMNS
        self.rows = torch.zeros((spec.max_num_seqs, width), dtype=torch.int32, device=spec.device)
        self._cells = self.rows.view(-1)

    def update(self, batch: AttentionBatch) -> None:
        """Bring the rows to what the batch's are, in the order of the device's stream: a step that is under way reads
        them as they were."""
        changed = batch.changed_cells
        if not len(changed):
            return
        slots, columns = np.divmod(changed, batch.block_table.shape[1])
        cells = slots * self.rows.shape[1] + columns
        sent = upload(np.stack([cells, batch.block_table.reshape(-1)[changed]]), self.rows.device)
        self._cells.index_copy_(0, sent[0], sent[1].to(torch.int32))


class StepStaging:
    """Brings each step's numbers to the device. All tensors of two steps of the same shape are at the same addresses.

    Args:
        tile_queries: longest piece that chunks are cut into; None: `query_tiles` stays empty.
        decode_tiles: decodes are among the `query_tiles`.
        gathers: the block table has a row for each sequence of the step, in order: for kernels that take no indices
            into it.
    """

    def __init__(
        self,
        spec: AttentionSpec,
        *,
        tile_queries: int | None = None,
        decode_tiles: bool = False,
        gathers: bool = False,
    ) -> None:
        self._max_sequences = spec.max_num_seqs
        self._max_tokens = max(spec.max_num_batched_tokens, spec.max_num_seqs)
        self._tile_queries = tile_queries
        self._decode_tiles = decode_tiles
        sequences = self._max_sequences
        num_tiles = 0 if tile_queries is None else self._max_tokens // tile_queries + sequences
        sizes = (sequences, sequences, self._max_tokens, 4 * num_tiles, sequences + 1)
        # On CPU too: what is tested there is what runs on a GPU.
        self._staging = Staging(staged_bytes(*(4 * size for size in sizes)), spec.device, copies=True)
        self._table = DeviceBlockTable(spec)
        self._gathered = None
        if gathers:
            # As wide as the longest sequence: some kernels take the width for a length.
            blocks = -(-spec.max_model_len // spec.block_size)
            self._gathered = torch.empty((sequences, blocks), dtype=torch.int32, device=spec.device)

    def send(self, batch: AttentionBatch, shape: StepShape | None) -> GpuStep:
        """See `AttentionBackend.prepare`.

        Raises:
            ValueError: more sequences or tokens than the engine's capacity, or a shape that does not hold the batch.
        """
        num_decodes, chunks = len(batch.decode_slots), batch.chunks
        num_tokens = len(batch.kv_slots)
        size = StepShape(num_tokens, num_decodes + len(chunks))
        if shape is not None:
            self._check(size, batch, shape)
            size = shape
        if size.num_sequences > self._max_sequences or size.num_tokens > self._max_tokens:
            raise ValueError(
                f"a step of {size.num_sequences} sequences and {size.num_tokens} tokens is more than the capacity, "
                f"{self._max_sequences} and {self._max_tokens}"
            )
        kv_slots = np.full(size.num_tokens, -1, np.int32)
        kv_slots[:num_tokens] = batch.kv_slots
        context_lens = np.zeros(size.num_sequences, np.int32)
        slots = np.zeros(size.num_sequences, np.int32)
        context_lens[:num_decodes] = batch.decode_context_lens
        slots[:num_decodes] = batch.decode_slots
        num_rows, longest_chunk = num_decodes, max((chunk.length for chunk in chunks), default=0)
        if shape is not None:
            num_rows, longest_chunk = 0 if self._lists_all(shape) else shape.num_sequences, shape.num_tokens
        num_chunks = size.num_sequences - num_rows
        chunk_starts = np.zeros(0, np.int32)
        if num_chunks:
            sequences = slice(num_decodes, num_decodes + len(chunks))
            context_lens[sequences] = [chunk.start + chunk.length for chunk in chunks]
            slots[sequences] = [chunk.slot for chunk in chunks]
            starts = [*range(num_rows, num_decodes), *(chunk.first for chunk in chunks)]
            chunk_starts = np.full(num_chunks + 1, num_tokens, np.int32)
            chunk_starts[: len(starts)] = starts
        tiles = self._tiles(batch, shape)
        self._table.update(batch)
        sent = self._staging.send(context_lens, slots, kv_slots, tiles, chunk_starts)
        table = self._table.rows
        if self._gathered is not None:
            gathered = self._gathered[: len(slots)]
            table = torch.index_select(table[:, : gathered.shape[1]], 0, sent[1], out=gathered)
        return GpuStep(num_rows, num_chunks, longest_chunk, table, *sent)

    def _lists_all(self, shape: StepShape) -> bool:
        """Return whether all sequences of a step of the shape count as chunks."""
        return self._tile_queries is None and not shape.decodes_only

    def _check(self, size: StepShape, batch: AttentionBatch, shape: StepShape) -> None:
        if size.num_sequences > shape.num_sequences or size.num_tokens > shape.num_tokens:
            raise ValueError(
                f"a step of {size.num_sequences} sequences and {size.num_tokens} tokens is more than {shape}"
            )
        if batch.chunks and shape.decodes_only:
            raise ValueError(f"a step with chunks cannot be padded to {shape}, a shape of decodes only")

    def _tiles(self, batch: AttentionBatch, shape: StepShape | None) -> Int32Array:
        longest = self._tile_queries
        if longest is None:
            return np.zeros((0, 4), np.int32)
        decodes = slice(None) if self._decode_tiles else slice(0)
        tiles = cut(batch.decode_slots[decodes], batch.decode_context_lens[decodes], batch.chunks, longest)
        if shape is None:
            return tiles
        # Each sequence has at most one piece that is shorter than the longest.
        most = shape.num_sequences if self._decode_tiles or not shape.decodes_only else 0
        most += 0 if shape.decodes_only else shape.num_tokens // longest
        padded = np.zeros((most, 4), np.int32)
        padded[: len(tiles)] = tiles
        return padded


def cut(
    decode_slots: Slots, decode_context_lens: npt.NDArray[np.int64], chunks: Sequence[ChunkSpan], tile_queries: int
) -> Int32Array:
    """Cut a step's queries into pieces of at most `tile_queries` tokens of one sequence, those with the most keys
    first: programs start in order, and a long one that starts last is waited for.

    Args:
        decode_slots, decode_context_lens: slots and contexts of the first packed tokens.

    Returns:
        [N, 4]: slot, first packed token, its position, tokens.
    """
    rows = np.arange(len(decode_slots))
    pieces = [np.stack([decode_slots, rows, decode_context_lens - 1, np.ones_like(rows)], 1)]
    for chunk in chunks:
        offsets = np.arange(0, chunk.length, tile_queries)
        lengths = np.minimum(tile_queries, chunk.length - offsets)
        slots = np.full_like(offsets, chunk.slot)
        pieces.append(np.stack([slots, chunk.first + offsets, chunk.start + offsets, lengths], 1))
    tiles = np.concatenate(pieces)
    return tiles[np.argsort(-tiles[:, 2], kind="stable")].astype(np.int32)
