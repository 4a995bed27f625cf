"""The loop over tiles of keys and values that the Triton kernels for decodes and for prefill share.

Softmax is computed as the tiles come (Milakov and Gimelshein 2018; FlashAttention, Dao et al. 2022), in powers of two.
A row starts from a finite maximum far below any score, so a tile of which it sees nothing adds exactly nothing.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from inflight_engine.execution.attention.triton_tiles import Tiles

LOWEST = tl.constexpr(-1.0e30)
LOG2_E = tl.constexpr(1.4426950408889634)


def attention_options(
    queries: torch.Tensor, layer_cache: torch.Tensor, window: int, softcap: float, tiles: Tiles
) -> dict[str, Any]:
    """Return the compile-time arguments of a launch of either kernel.

    Args:
        queries: [rows, heads, D].
        layer_cache: [num_blocks, 2, kv_heads, block_size, D].
    """
    heads, head_dim = queries.shape[1:]
    kv_heads, block_size = layer_cache.shape[2:4]
    return {
        "WINDOW": window,
        "SOFTCAP": softcap,
        "KV_HEADS": kv_heads,
        "GROUP": heads // kv_heads,
        "BLOCK_SIZE": block_size,
        "HEAD_DIM": head_dim,
        "PADDED_DIM": triton.next_power_of_2(head_dim),
        "ROWS": tiles.rows,
        "TILE": tiles.keys,
        "num_warps": tiles.num_warps,
        "num_stages": tiles.num_stages,
        "enable_fp_fusion": True,
    }


@triton.jit
def load_scale(scales: tl.tensor, kv_head: tl.tensor, dtype: tl.constexpr) -> tl.tensor:
    """Return the factor of a head's keys or values in a cache of this dtype; it is 1 for all but fp8."""
    scale = 1.0
    if dtype == tl.float8e4nv:
        scale = tl.load(scales + kv_head)
    return scale


@triton.jit
def load_rows(
    pointers: tl.tensor, inside: tl.tensor, dims: tl.tensor, MASKED: tl.constexpr, HEAD_DIM: tl.constexpr
) -> tl.tensor:
    """Load [rows, dims] of the cache, with zeros where a row is not `inside` and past HEAD_DIM."""
    if MASKED and dims.shape[0] != HEAD_DIM:
        rows = tl.load(pointers, mask=inside[:, None] & (dims < HEAD_DIM)[None, :], other=0.0)
    elif MASKED:
        rows = tl.load(pointers, mask=inside[:, None], other=0.0)
    elif dims.shape[0] != HEAD_DIM:
        rows = tl.load(pointers, mask=(dims < HEAD_DIM)[None, :], other=0.0)
    else:
        rows = tl.load(pointers)
    return rows


@triton.jit
def attend_tiles(
    mixed: tl.tensor,
    maximum: tl.tensor,
    total: tl.tensor,
    queries: tl.tensor,
    query_positions: tl.tensor,
    head_keys: tl.tensor,
    blocks: tl.tensor,
    context: tl.tensor,
    first: tl.tensor,
    end: tl.tensor,
    scale: tl.tensor,
    MASKED: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE: tl.constexpr,
) -> tl.tensor:
    """Go on from (mixed, maximum, total) over the tiles first .. end - 1 of a sequence.

    Args:
        mixed: float32 [R, padded D]: sum of weights times values, the weights relative to `maximum`.
        maximum, total: float32 [R]: highest score in powers of two, sum of the weights.
        queries: [R, padded D]; dimensions past HEAD_DIM are 0.
        query_positions: [R]: position of each query in the sequence.
        head_keys: pointer to the keys of this head in block 0; values of a block follow all its keys.
        blocks: pointer to the sequence's row of the block table.
        context: tokens of the sequence that have keys.
        scale: factor of the scores; without SOFTCAP it includes log2(e).
        MASKED: False when every query sees every key of these tiles.
        WINDOW: tokens that a query sees, itself included; 0: all before it.
        SOFTCAP: 0.0: none.
    """
    dims = tl.arange(0, queries.shape[1])
    head_values = head_keys + KV_HEADS * BLOCK_SIZE * HEAD_DIM
    for tile in range(first, end):
        positions = tile * TILE + tl.arange(0, TILE)
        inside = positions < context
        if MASKED:
            ids = tl.load(blocks + positions // BLOCK_SIZE, mask=inside, other=0)
        else:
            ids = tl.load(blocks + positions // BLOCK_SIZE)
        # Elements before a block can be more than 2^31.
        tokens = ids.to(tl.int64) * (2 * KV_HEADS * BLOCK_SIZE * HEAD_DIM) + (positions % BLOCK_SIZE) * HEAD_DIM
        offsets = tokens[:, None] + dims[None, :]
        keys = load_rows(head_keys + offsets, inside, dims, MASKED, HEAD_DIM).to(queries.dtype)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
        if SOFTCAP != 0.0:
            # tanh(x) = 1 - 2 / (exp(2 x) + 1), which is right at both infinities of exp.
            scores = scores * (2.0 * LOG2_E / SOFTCAP)
            scores = (SOFTCAP * LOG2_E) * (1.0 - 2.0 / (tl.math.exp2(scores) + 1.0))
        if MASKED:
            visible = positions[None, :] <= query_positions[:, None]
            if WINDOW != 0:
                visible = visible & (positions[None, :] > query_positions[:, None] - WINDOW)
            scores = tl.where(visible, scores, float("-inf"))
        higher = tl.maximum(maximum, tl.max(scores, 1))
        weights = tl.math.exp2(scores - higher[:, None])
        decay = tl.math.exp2(maximum - higher)
        total = total * decay + tl.sum(weights, 1)
        # What another sequence left in the rest of a block could be NaN, which a weight of 0 does not remove.
        values = load_rows(head_values + offsets, inside, dims, MASKED, HEAD_DIM).to(queries.dtype)
        mixed = tl.dot(weights.to(queries.dtype), values, mixed * decay[:, None], input_precision="ieee")
        maximum = higher
    return mixed, maximum, total
