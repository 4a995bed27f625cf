"""Matrix products with weights of 4 bits (`models.matrices.Int4Matrix`).

A program reads its tile of the weights once, widens it in registers to the activations' dtype, and multiplies by tensor
cores. A byte's two halves are of two runs of inputs, each within one group: so they meet two tiles of the activations,
and nothing is interleaved. torch's own kernel, `_weight_int4pack_mm` (tinygemm), loads the activations again for every
eight outputs (aten/src/ATen/native/cuda/int4mm.cu), so its traffic grows with the rows, and takes bfloat16 alone.

The widening is repeated for every tile of rows. With many of them the weights are dequantized once instead, for one
product of cuBLAS, and take memory for as long as it runs. Tiles and the number of rows are estimates, not measured yet;
`tools/bench/gpu.sh correctness` times these products beside bfloat16 and tinygemm.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from inflight_engine.models.matrices import Int4Matrix

MOST_ROWS = 256
"""Maximum number of rows; for more, weights are dequantized for one product of cuBLAS."""
_TILES = ((16, 32), (32, 64), (64, 64))
"""Rows and outputs of a tile, the first whose rows are enough or else the last. With few rows a product reads little
but weights, and many small tiles read them faster."""


@triton.jit
def widened(
    integers: tl.tensor,
    scales: tl.tensor,
    zeros: tl.tensor,
    group: tl.tensor,
    N: tl.tensor,
    columns: tl.tensor,
    mask: tl.tensor,
    dtype: tl.constexpr,
) -> tl.tensor:
    """Weights [inputs, outputs] of one group, rounded to `dtype` once."""
    at = group * N + columns
    scale = tl.load(scales + at, mask=mask, other=0.0).to(tl.float32)
    zero = tl.load(zeros + at, mask=mask, other=0).to(tl.float32)
    return ((integers.to(tl.float32) - zero) * scale).to(dtype)


@triton.jit(do_not_specialize=["M"])
def int4_matmul_kernel(
    a: tl.tensor,
    packed: tl.tensor,
    scales: tl.tensor,
    zeros: tl.tensor,
    bias: tl.tensor,
    c: tl.tensor,
    M: tl.tensor,
    N: tl.tensor,
    K: tl.tensor,
    a_stride: tl.tensor,
    HALF: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    HAS_BIAS: tl.constexpr,
) -> None:
    """Compute c [M, N] = a [M, K] weights [N, K]^T + bias [N], each program one tile of c. Programs that run together
    share weights in L2."""
    program = tl.program_id(0)
    tiles_m = tl.cdiv(M, TILE_M)
    rows = (program % tiles_m * TILE_M + tl.arange(0, TILE_M)).to(tl.int64)[:, None]
    columns = (program // tiles_m * TILE_N + tl.arange(0, TILE_N)).to(tl.int64)[None, :]
    is_row, is_column = rows < M, columns < N
    run = tl.arange(0, HALF)
    total = tl.zeros((TILE_M, TILE_N), tl.float32)
    for start in range(0, K, 2 * HALF):
        octets = tl.load(packed + columns * (K // 2) + start // 2 + run[:, None], mask=is_column, other=0)
        from_ = a + rows * a_stride + start + run[None, :]
        lower, upper = tl.load(from_, mask=is_row, other=0.0), tl.load(from_ + HALF, mask=is_row, other=0.0)
        dtype = a.dtype.element_ty
        first = widened(octets & 15, scales, zeros, start // GROUP_SIZE, N, columns, is_column, dtype)
        total = tl.dot(lower, first, total)
        second = widened(octets >> 4, scales, zeros, (start + HALF) // GROUP_SIZE, N, columns, is_column, dtype)
        total = tl.dot(upper, second, total)
    if HAS_BIAS:
        total += tl.load(bias + columns, mask=is_column, other=0.0).to(tl.float32)
    tl.store(c + rows * N + columns, total.to(c.dtype.element_ty), mask=is_row & is_column)


@triton.jit
def int4_dequantize_kernel(
    packed: tl.tensor,
    scales: tl.tensor,
    zeros: tl.tensor,
    weights: tl.tensor,
    N: tl.tensor,
    K: tl.tensor,
    HALF: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    TILE_N: tl.constexpr,
) -> None:
    """Write the weights [N, K] in their dtype, each program 2 HALF inputs of TILE_N outputs."""
    start = tl.program_id(0) * (2 * HALF)
    outputs = (tl.program_id(1) * TILE_N + tl.arange(0, TILE_N)).to(tl.int64)[:, None]
    mask = outputs < N
    run = tl.arange(0, HALF)[None, :]
    octets = tl.load(packed + outputs * (K // 2) + start // 2 + run, mask=mask, other=0)
    to = weights + outputs * K + start + run
    dtype = weights.dtype.element_ty
    tl.store(to, widened(octets & 15, scales, zeros, start // GROUP_SIZE, N, outputs, mask, dtype), mask=mask)
    upper = widened(octets >> 4, scales, zeros, (start + HALF) // GROUP_SIZE, N, outputs, mask, dtype)
    tl.store(to + HALF, upper, mask=mask)


def int4_linear(
    x: torch.Tensor, matrix: Int4Matrix, bias: torch.Tensor | None, *, batch_invariant: bool
) -> torch.Tensor:
    """Return [T, out] for x [T, in], its last dimension contiguous; sums are float32.

    Args:
        batch_invariant: a row's result does not depend on how many there are: one tile computes all.
    """
    if len(x) > MOST_ROWS and not batch_invariant:
        return F.linear(x, dequantized(matrix, x.dtype), bias)
    enough = [tile for tile in _TILES if tile[0] >= len(x) and not batch_invariant]
    tile_m, tile_n = (*enough, _TILES[-1])[0]
    c = x.new_empty(len(x), matrix.outputs)
    if len(x):
        int4_matmul_kernel[(triton.cdiv(len(x), tile_m) * triton.cdiv(matrix.outputs, tile_n),)](
            x,
            matrix.packed,
            matrix.scales,
            matrix.zeros,
            x if bias is None else bias,  # not read without
            c,
            len(x),
            matrix.outputs,
            matrix.inputs,
            x.stride(0),
            HALF=matrix.half,
            GROUP_SIZE=matrix.group_size,
            TILE_M=tile_m,
            TILE_N=tile_n,
            HAS_BIAS=bias is not None,
            num_warps=4,
            num_stages=3,
            enable_fp_fusion=True,
        )
    return c


def dequantized(matrix: Int4Matrix, dtype: torch.dtype) -> torch.Tensor:
    """Return the weights, [out, in]."""
    weights = matrix.packed.new_empty(matrix.outputs, matrix.inputs, dtype=dtype)
    grid = (matrix.inputs // (2 * matrix.half), triton.cdiv(matrix.outputs, _TILES[0][1]))
    int4_dequantize_kernel[grid](
        matrix.packed,
        matrix.scales,
        matrix.zeros,
        weights,
        matrix.outputs,
        matrix.inputs,
        HALF=matrix.half,
        GROUP_SIZE=matrix.group_size,
        TILE_N=_TILES[0][1],
        num_warps=4,
        enable_fp_fusion=False,
    )
    return weights
