"""Triton kernel that writes packed tokens' keys and values to the cache, in its dtype."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from inflight_engine.models.ops import FP8_MAX

_FP8_MAX = tl.constexpr(FP8_MAX)


@triton.jit
def to_cache(
    x: tl.tensor, scales: tl.tensor, heads: tl.tensor, KV_HEADS: tl.constexpr, dtype: tl.constexpr
) -> tl.tensor:
    """Convert [heads, dims]; to fp8 divided by each head's scale, and what is out of its range is as far as it goes."""
    if dtype == tl.float8e4nv:
        scale = tl.load(scales + heads, mask=heads < KV_HEADS, other=1.0)
        x = tl.clamp(x.to(tl.float32) / scale, -_FP8_MAX, _FP8_MAX)
    return x.to(dtype)


# Scales of a layer begin at any multiple of 4 bytes: one variant for all layers.
@triton.jit(do_not_specialize_on_alignment=["kv_scales"])
def write_kernel(
    keys: tl.tensor,
    values: tl.tensor,
    cache: tl.tensor,
    kv_scales: tl.tensor,
    slots: tl.tensor,
    key_stride: tl.tensor,
    value_stride: tl.tensor,
    key_head_stride: tl.tensor,
    value_head_stride: tl.tensor,
    KV_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_HEADS: tl.constexpr,
    PADDED_DIM: tl.constexpr,
) -> None:
    """Kernel in which each program writes one token."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    if slot >= 0:
        heads = tl.arange(0, PADDED_HEADS)[:, None]
        dims = tl.arange(0, PADDED_DIM)[None, :]
        mask = (heads < KV_HEADS) & (dims < HEAD_DIM)
        key = tl.load(keys + token * key_stride + heads * key_head_stride + dims, mask=mask)
        value = tl.load(values + token * value_stride + heads * value_head_stride + dims, mask=mask)
        block = (slot // BLOCK_SIZE).to(tl.int64)
        to = cache + block * (2 * KV_HEADS * BLOCK_SIZE * HEAD_DIM)
        to += (heads * BLOCK_SIZE + slot % BLOCK_SIZE) * HEAD_DIM + dims
        dtype = cache.dtype.element_ty
        tl.store(to, to_cache(key, kv_scales, heads, KV_HEADS, dtype), mask=mask)
        to += KV_HEADS * BLOCK_SIZE * HEAD_DIM
        tl.store(to, to_cache(value, kv_scales + KV_HEADS, heads, KV_HEADS, dtype), mask=mask)


def write_kv(
    keys: torch.Tensor,
    values: torch.Tensor,
    layer_cache: torch.Tensor,
    layer_scales: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """Write one layer's keys and values.

    Args:
        keys, values: [T, kv_heads, D], the last dimension contiguous.
        layer_cache: [num_blocks, 2, kv_heads, block_size, D], contiguous.
        layer_scales: float32 [2, kv_heads], contiguous: of keys, then of values; read for a cache in fp8 only.
        slots: int32 [T]: block * block_size + offset; -1: not written.
    """
    _, _, kv_heads, block_size, head_dim = layer_cache.shape
    write_kernel[(len(slots),)](
        keys,
        values,
        layer_cache,
        layer_scales,
        slots,
        keys.stride(0),
        values.stride(0),
        keys.stride(1),
        values.stride(1),
        KV_HEADS=kv_heads,
        BLOCK_SIZE=block_size,
        HEAD_DIM=head_dim,
        PADDED_HEADS=triton.next_power_of_2(kv_heads),
        PADDED_DIM=triton.next_power_of_2(head_dim),
        enable_fp_fusion=True,
    )
