"""A step's numbers on a GPU, as its attention backends need them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from inflight_engine.execution.attention.base import AttentionBatch, AttentionSpec, ChunkSpan
from inflight_engine.execution.memory.staging import Staging, staged_bytes

Int32Array = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class GpuStep:
    """Int32 tensors on the device: R rows that decode (padded ones included), then C chunks.

    Attributes:
        num_rows: R.
        num_chunks: C.
        longest_chunk: tokens.
        table_width: [1]: columns of the block table.
        context_lens: [R + C]: tokens that each sequence has in the cache after the step; 0: padded.
        kv_slots: [T]: where each packed token's key and value go; -1: nowhere.
        query_tiles: [N, 4]: pieces of the chunks, and each decode where that was asked for, see `cut`; else empty.
        block_table: [R + C, table_width].
        chunk_starts: [C + 1]: packed tokens before each chunk, and after the last; empty without chunks.
        chunk_contexts: [C + 1]: the chunks' context lengths, summed up; empty without chunks.
    """

    num_rows: int
    num_chunks: int
    longest_chunk: int
    table_width: torch.Tensor
    context_lens: torch.Tensor
    kv_slots: torch.Tensor
    query_tiles: torch.Tensor
    block_table: torch.Tensor
    chunk_starts: torch.Tensor
    chunk_contexts: torch.Tensor


class StepStaging:
    """Brings each step's numbers to the device. Without chunks, all tensors of two steps with the same number of rows
    are at the same addresses.

    Args:
        full_table: the block table always has room for the longest sequence in each row; else it is as wide as the
            step needs, and its width is read on the device.
        tile_queries: longest piece that chunks are cut into; None: `query_tiles` stays empty.
        decode_tiles: decodes are among the `query_tiles`.
    """

    def __init__(
        self, spec: AttentionSpec, *, full_table: bool, tile_queries: int | None = None, decode_tiles: bool = False
    ) -> None:
        self._max_rows = spec.max_num_seqs
        self._max_tokens = max(spec.max_num_batched_tokens, spec.max_num_seqs)
        self._full_width = -(-spec.max_model_len // spec.block_size)
        self._full_table = full_table
        self._tile_queries = tile_queries
        self._decode_tiles = decode_tiles
        sequences = self._max_rows
        num_tiles = 0 if tile_queries is None else self._max_tokens // tile_queries + sequences
        sizes = (1, sequences, self._max_tokens, sequences * self._full_width, sequences + 1, sequences + 1)
        capacity = staged_bytes(*(4 * size for size in (*sizes, 4 * num_tiles)))
        # On CPU too: what is tested there is what runs on a GPU.
        self._staging = Staging(capacity, spec.device, copies=True)

    def send(self, batch: AttentionBatch, num_padded: int) -> GpuStep:
        """See `AttentionBackend.prepare`.

        Raises:
            ValueError: more rows or tokens than the engine's capacity, or padded rows beside chunks.
        """
        num_decodes, chunks = len(batch.decode_context_lens), batch.chunks
        rows = num_decodes + num_padded
        sequences = rows + len(chunks)
        num_tokens = len(batch.kv_slots) + num_padded
        if num_padded and chunks:
            raise ValueError("only a step without chunks can be padded")
        if sequences > self._max_rows or num_tokens > self._max_tokens:
            raise ValueError(
                f"a step of {sequences} sequences and {num_tokens} tokens is more than the capacity, "
                f"{self._max_rows} and {self._max_tokens}"
            )
        context_lens = np.zeros(sequences, np.int32)
        context_lens[:num_decodes] = batch.decode_context_lens
        context_lens[rows:] = [chunk.start + chunk.length for chunk in chunks]
        kv_slots = np.full(num_tokens, -1, np.int32)
        kv_slots[: len(batch.kv_slots)] = batch.kv_slots
        table = self._block_table(batch, rows)
        chunk_starts = np.zeros(0, np.int32)
        chunk_contexts = np.zeros(0, np.int32)
        if chunks:
            chunk_starts = np.array([*(chunk.first for chunk in chunks), num_tokens], np.int32)
            chunk_contexts = np.concatenate([[0], np.cumsum(context_lens[rows:])]).astype(np.int32)
        tiles = np.zeros((0, 4), np.int32)
        if self._tile_queries is not None:
            tiles = cut(context_lens[: rows if self._decode_tiles else 0], chunks, rows, self._tile_queries)
        width = np.array([table.shape[1]], np.int32)
        return GpuStep(
            rows,
            len(chunks),
            max((chunk.length for chunk in chunks), default=0),
            *self._staging.send(width, context_lens, kv_slots, tiles, table, chunk_starts, chunk_contexts),
        )

    def _block_table(self, batch: AttentionBatch, rows: int) -> Int32Array:
        decodes, chunks = batch.decode_block_table, batch.chunks
        width = self._full_width
        if not self._full_table:
            width = max(decodes.shape[1], max((len(chunk.block_ids) for chunk in chunks), default=0))
        table = np.zeros((rows + len(chunks), width), np.int32)
        table[: len(decodes), : decodes.shape[1]] = decodes
        for row, chunk in enumerate(chunks, rows):
            table[row, : len(chunk.block_ids)] = chunk.block_ids
        return table


def cut(
    decode_context_lens: Int32Array, chunks: Sequence[ChunkSpan], first_chunk_row: int, tile_queries: int
) -> Int32Array:
    """Cut a step's queries into pieces of at most `tile_queries` tokens of one sequence, those with the most keys
    first: programs start in order, and a long one that starts last is waited for.

    Args:
        decode_context_lens: of the first rows; 0: padded, a piece of no tokens.
        first_chunk_row: the first chunk's row in the block table.

    Returns:
        [N, 4]: row of the block table, first packed token, its position, tokens.
    """
    rows = np.arange(len(decode_context_lens), dtype=np.int32)
    pieces = [np.stack([rows, rows, np.maximum(decode_context_lens - 1, 0), np.minimum(decode_context_lens, 1)], 1)]
    for row, chunk in enumerate(chunks, first_chunk_row):
        offsets = np.arange(0, chunk.length, tile_queries, dtype=np.int32)
        lengths = np.minimum(tile_queries, chunk.length - offsets)
        pieces.append(np.stack([np.full_like(offsets, row), chunk.first + offsets, chunk.start + offsets, lengths], 1))
    tiles = np.concatenate(pieces)
    return tiles[np.argsort(-tiles[:, 2], kind="stable")].astype(np.int32)
