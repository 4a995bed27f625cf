"""Triton kernels for decodes: one query a sequence, its keys read by several programs at once (Flash-Decoding, Dao et
al. 2023).

Queries that share a key/value head are the rows of one matrix product, so keys and values are read once for all of
them. How much each program reads follows from the length of the sequence, which lies in device memory: the same launch,
recorded in a CUDA graph, serves contexts of any length.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from inflight_engine.execution.attention.triton_attend import (
    LOG2_E,
    LOWEST,
    attend_tiles,
    attention_options,
    load_scale,
)
from inflight_engine.execution.attention.triton_tiles import SplitPlan, Tiles

_COMBINED_AT_ONCE = 8


@triton.jit
def split_tiles(
    context: tl.tensor, num_splits: tl.tensor, min_tiles: tl.tensor, WINDOW: tl.constexpr, TILE: tl.constexpr
) -> tl.tensor:
    """Return (first tile that a decode sees, one past the last, tiles of each split)."""
    first = 0
    if WINDOW != 0:
        first = tl.maximum(context - WINDOW, 0) // TILE
    end = tl.cdiv(context, TILE)
    return first, end, tl.maximum(tl.cdiv(end - first, num_splits), min_tiles)


@triton.jit(do_not_specialize=["min_tiles"], do_not_specialize_on_alignment=["kv_scales"])
def decode_kernel(
    queries: tl.tensor,
    cache: tl.tensor,
    kv_scales: tl.tensor,
    block_table: tl.tensor,
    slots: tl.tensor,
    context_lens: tl.tensor,
    out: tl.tensor,
    partials: tl.tensor,
    partial_stats: tl.tensor,
    query_stride: tl.tensor,
    query_head_stride: tl.tensor,
    table_stride: tl.tensor,
    scale: tl.tensor,
    min_tiles: tl.tensor,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """Kernel with programs (key/value head, sequence, split). The only program of a sequence writes `out`, each of
    several its share to `partials`. A padded row has no keys, and nothing is written for it: in a step with chunks, its
    place in `out` belongs to a chunk."""
    kv_head = tl.program_id(0)
    sequence = tl.program_id(1)
    split = tl.program_id(2)
    context = tl.load(context_lens + sequence)
    first, end, tiles = split_tiles(context, tl.num_programs(2), min_tiles, WINDOW, TILE)
    begin = first + split * tiles
    stop = tl.minimum(begin + tiles, end)
    if begin < stop:
        rows = tl.arange(0, ROWS)
        dims = tl.arange(0, PADDED_DIM)
        mask = (rows < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
        heads = kv_head * GROUP + rows
        row_offsets = sequence.to(tl.int64) * query_stride + heads * query_head_stride
        query = tl.load(queries + row_offsets[:, None] + dims[None, :], mask=mask, other=0.0)
        mixed, maximum, total = attend_tiles(
            tl.zeros([ROWS, PADDED_DIM], tl.float32),
            tl.full([ROWS], LOWEST, tl.float32),
            tl.zeros([ROWS], tl.float32),
            query,
            tl.full([ROWS], 0, tl.int32) + (context - 1),
            cache + kv_head * (BLOCK_SIZE * HEAD_DIM),
            block_table + tl.load(slots + sequence).to(tl.int64) * table_stride,
            context,
            begin,
            stop,
            scale * load_scale(kv_scales, kv_head, cache.dtype.element_ty),
            True,
            WINDOW,
            SOFTCAP,
            KV_HEADS,
            BLOCK_SIZE,
            HEAD_DIM,
            TILE,
        )
        mixed = mixed * load_scale(kv_scales + KV_HEADS, kv_head, cache.dtype.element_ty)
        head_rows = sequence.to(tl.int64) * (KV_HEADS * GROUP) + heads
        if end - first > tiles:  # other programs have a share too
            shares = head_rows * tl.num_programs(2) + split
            tl.store(partials + shares[:, None] * HEAD_DIM + dims[None, :], mixed, mask=mask)
            tl.store(partial_stats + shares * 2, maximum, mask=rows < GROUP)
            tl.store(partial_stats + shares * 2 + 1, total, mask=rows < GROUP)
        else:
            mixed = mixed / total[:, None]
            tl.store(out + head_rows[:, None] * HEAD_DIM + dims[None, :], mixed.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["num_splits", "min_tiles"])
def combine_kernel(
    partials: tl.tensor,
    partial_stats: tl.tensor,
    context_lens: tl.tensor,
    out: tl.tensor,
    num_splits: tl.tensor,
    min_tiles: tl.tensor,
    WINDOW: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    TILE: tl.constexpr,
    LANES: tl.constexpr,
) -> None:
    """Kernel with programs (head, sequence) that write the weighted mean of the splits that had keys to read; they
    write nothing where that was one or, in a padded row, none."""
    sequence = tl.program_id(1)
    row = sequence.to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
    first, end, tiles = split_tiles(tl.load(context_lens + sequence), num_splits, min_tiles, WINDOW, TILE)
    used = tl.cdiv(end - first, tiles)
    if used > 1:
        dims = tl.arange(0, PADDED_DIM)
        mixed = tl.zeros([PADDED_DIM], tl.float32)
        maximum = LOWEST
        total = 0.0
        for start in range(0, used, LANES):
            splits = start + tl.arange(0, LANES)
            present = splits < used
            shares = row * num_splits + splits
            maxima = tl.load(partial_stats + shares * 2, mask=present, other=LOWEST)
            totals = tl.load(partial_stats + shares * 2 + 1, mask=present, other=0.0)
            mask = present[:, None] & (dims < HEAD_DIM)[None, :]
            parts = tl.load(partials + shares[:, None] * HEAD_DIM + dims[None, :], mask=mask, other=0.0)
            higher = tl.maximum(maximum, tl.max(maxima, 0))
            weights = tl.math.exp2(maxima - higher)
            decay = tl.math.exp2(maximum - higher)
            mixed = mixed * decay + tl.sum(parts * weights[:, None], 0)
            total = total * decay + tl.sum(totals * weights, 0)
            maximum = higher
        tl.store(out + row * HEAD_DIM + dims, (mixed / total).to(out.dtype.element_ty), mask=dims < HEAD_DIM)


def decode(
    queries: torch.Tensor,
    layer_cache: torch.Tensor,
    layer_scales: torch.Tensor,
    block_table: torch.Tensor,
    slots: torch.Tensor,
    context_lens: torch.Tensor,
    out: torch.Tensor,
    partials: torch.Tensor,
    partial_stats: torch.Tensor,
    *,
    rows: int,
    scale: float,
    window: int,
    softcap: float,
    plan: SplitPlan,
    tiles: Tiles,
) -> None:
    """Attend for the first `rows` packed tokens, each the last of its sequence.

    Args:
        queries: [>= rows, heads, D], the last dimension contiguous.
        layer_cache: [num_blocks, 2, kv_heads, block_size, D], contiguous.
        layer_scales: float32 [2, kv_heads], contiguous: of keys, then of values; read for a cache in fp8 only.
        block_table: int32 [slots, blocks].
        slots: int32 [rows]: each sequence's row of the block table.
        context_lens: int32 [rows]; 0: a padded row, of which no result is written.
        out: [>= rows, heads * D], contiguous.
        partials, partial_stats: float32 scratch of at least rows * heads * plan.num_splits * D, and * 2.
        window, softcap: 0: none.
    """
    heads, head_dim = queries.shape[1:]
    splits = plan.num_splits
    decode_kernel[(layer_cache.shape[2], rows, splits)](
        queries,
        layer_cache,
        layer_scales,
        block_table,
        slots,
        context_lens,
        out,
        partials,
        partial_stats,
        queries.stride(0),
        queries.stride(1),
        block_table.stride(0),
        scale if softcap else scale * LOG2_E.value,
        plan.min_tiles,
        **attention_options(queries, layer_cache, window, softcap, tiles),
    )
    if splits > 1:
        combine_kernel[(heads, rows)](
            partials,
            partial_stats,
            context_lens,
            out,
            splits,
            plan.min_tiles,
            WINDOW=window,
            HEAD_DIM=head_dim,
            PADDED_DIM=triton.next_power_of_2(head_dim),
            TILE=tiles.keys,
            LANES=_COMBINED_AT_ONCE,
            num_warps=2,
            enable_fp_fusion=True,
        )
