"""Triton kernel for prefill chunks, packed one after another.

A program computes a tile of consecutive queries of one chunk for all query heads that share a key/value head, over the
chunk's own keys and all before them, which it reads from the cache: a chunk sees the same keys whether the tokens
before it came in this step or in others.
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
from inflight_engine.execution.attention.triton_tiles import Tiles


@triton.jit(do_not_specialize_on_alignment=["kv_scales"])
def prefill_kernel(
    queries: tl.tensor,
    cache: tl.tensor,
    kv_scales: tl.tensor,
    block_table: tl.tensor,
    query_tiles: tl.tensor,
    out: tl.tensor,
    query_stride: tl.tensor,
    query_head_stride: tl.tensor,
    table_stride: tl.tensor,
    scale: tl.tensor,
    INVARIANT: tl.constexpr,
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
    """Kernel with programs (key/value head, query tile). INVARIANT: one loop for all tiles of keys, so that a query's
    result does not depend on where in a tile of queries it lies. A tile of no tokens from position 0, which is padding,
    runs none of the loops and writes nothing."""
    kv_head = tl.program_id(0)
    query_tile = query_tiles + tl.program_id(1) * 4
    slot = tl.load(query_tile)
    first_token = tl.load(query_tile + 1)
    first_position = tl.load(query_tile + 2)
    num_queries = tl.load(query_tile + 3)

    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, PADDED_DIM)
    index = rows // GROUP
    heads = kv_head * GROUP + rows % GROUP
    mask = (index < num_queries)[:, None] & (dims < HEAD_DIM)[None, :]
    tokens = (first_token + index).to(tl.int64)
    row_offsets = tokens * query_stride + heads * query_head_stride
    query = tl.load(queries + row_offsets[:, None] + dims[None, :], mask=mask, other=0.0)
    positions = first_position + index

    context = first_position + num_queries  # the tile's last query sees itself and all before it
    end = tl.cdiv(context, TILE)
    first = 0
    # Every query of the tile sees every key of the tiles seen_first .. seen_end - 1.
    seen_first = 0
    seen_end = (first_position + 1) // TILE
    if WINDOW != 0:
        first = tl.maximum(first_position - WINDOW + 1, 0) // TILE
        seen_first = tl.cdiv(tl.maximum(context - WINDOW, 0), TILE)
        seen_end = tl.maximum(seen_end, seen_first)
    if INVARIANT:
        seen_first = first
        seen_end = first

    scale = scale * load_scale(kv_scales, kv_head, cache.dtype.element_ty)
    mixed = tl.zeros([ROWS, PADDED_DIM], tl.float32)
    maximum = tl.full([ROWS], LOWEST, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    head_keys = cache + kv_head * (BLOCK_SIZE * HEAD_DIM)
    blocks = block_table + slot.to(tl.int64) * table_stride
    if WINDOW != 0 and not INVARIANT:
        mixed, maximum, total = attend_tiles(
            mixed, maximum, total, query, positions, head_keys, blocks, context, first, seen_first, scale,
            True, WINDOW, SOFTCAP, KV_HEADS, BLOCK_SIZE, HEAD_DIM, TILE
        )  # fmt: skip
    if not INVARIANT:
        mixed, maximum, total = attend_tiles(
            mixed, maximum, total, query, positions, head_keys, blocks, context, seen_first, seen_end, scale,
            False, WINDOW, SOFTCAP, KV_HEADS, BLOCK_SIZE, HEAD_DIM, TILE
        )  # fmt: skip
    mixed, maximum, total = attend_tiles(
        mixed, maximum, total, query, positions, head_keys, blocks, context, seen_end, end, scale,
        True, WINDOW, SOFTCAP, KV_HEADS, BLOCK_SIZE, HEAD_DIM, TILE
    )  # fmt: skip
    mixed = mixed * load_scale(kv_scales + KV_HEADS, kv_head, cache.dtype.element_ty)
    mixed = mixed / tl.where(total > 0.0, total, 1.0)[:, None]
    out_rows = tokens * (KV_HEADS * GROUP) + heads
    tl.store(out + out_rows[:, None] * HEAD_DIM + dims[None, :], mixed.to(out.dtype.element_ty), mask=mask)


def prefill(
    queries: torch.Tensor,
    layer_cache: torch.Tensor,
    layer_scales: torch.Tensor,
    block_table: torch.Tensor,
    query_tiles: torch.Tensor,
    out: torch.Tensor,
    *,
    scale: float,
    window: int,
    softcap: float,
    invariant: bool,
    tiles: Tiles,
) -> None:
    """Attend for the packed tokens that `query_tiles` names.

    Args:
        queries: [T, heads, D], the last dimension contiguous.
        layer_cache: [num_blocks, 2, kv_heads, block_size, D], contiguous.
        layer_scales: float32 [2, kv_heads], contiguous: of keys, then of values; read for a cache in fp8 only.
        block_table: int32 [slots, blocks].
        query_tiles: int32 [N, 4]: slot, first packed token, its position, tokens (at most `tiles.queries(group)`); 0
            tokens: padding.
        out: [T, heads * D], contiguous.
        window, softcap: 0: none.
    """
    prefill_kernel[(layer_cache.shape[2], len(query_tiles))](
        queries,
        layer_cache,
        layer_scales,
        block_table,
        query_tiles,
        out,
        queries.stride(0),
        queries.stride(1),
        block_table.stride(0),
        scale if softcap else scale * LOG2_E.value,
        INVARIANT=invariant,
        **attention_options(queries, layer_cache, window, softcap, tiles),
    )
