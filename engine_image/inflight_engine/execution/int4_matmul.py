"""Matrix products with weights of 4 bits (`models.matrices.Int4Matrix`).

A program reads its tile of the weights once, widens it in registers to the activations' dtype, and multiplies by tensor
cores. A byte's two halves are of two runs of inputs, each within one group: so they meet two tiles of the activations,
and nothing is interleaved. torch's own kernel, `_weight_int4pack_mm` (tinygemm), loads the activations again for every
eight outputs (aten/src/ATen/native/cuda/int4mm.cu), so its traffic grows with the rows, and takes bfloat16 alone.

What bounds a product of few rows is not memory alone but the instructions that widen. So an integer becomes a number by
its bits, not by a conversion, of which a multiprocessor does few at once; and a group's scale multiplies the sum of its
products instead of each weight. Weights are the product's left side: on Hopper that is the one that may come from
registers. Where tiles are few, several programs share a tile's inputs, and a second kernel adds up what they found.

The widening is repeated for every tile of rows. With many of them the weights are dequantized once instead, for one
product of cuBLAS, and take memory for as long as it runs. Tiles, splits and the number of rows are those that were
fastest on an H200; `tools/bench/gpu.sh tiles` times them beside others, and beside bfloat16 and tinygemm.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from inflight_engine.models.matrices import Int4Matrix


class Tile(NamedTuple):
    """Rows and outputs that a program computes at once."""

    rows: int
    outputs: int
    num_warps: int
    num_stages: int


MOST_ROWS = 128
"""Maximum number of rows; for more, weights are dequantized for one product of cuBLAS."""
TILES = (Tile(16, 64, 4, 4), Tile(32, 64, 4, 3), Tile(64, 64, 4, 3))
"""The first whose rows are enough or else the last computes a product. The last fits the 163 KiB of shared memory of an
A100."""
_LEAST_PROGRAMS = 220
"""Number of programs below which inputs are split: nearly two on each multiprocessor of an H100."""
_MOST_SPLITS = 8
_LEAST_STEPS = 4
"""Minimum number of steps of a program's loop where inputs are split."""
_ADDED_AT_ONCE = 256
"""Number of outputs that a program adds up."""
_DEQUANTIZED_OUTPUTS = 32


@triton.jit
def exact(integers: tl.tensor, dtype: tl.constexpr) -> tl.tensor:
    """Integers up to 31 plus 2^10 (float16) or 2^7 (bfloat16): the last bits of a number whose last bit means 1."""
    bits = integers.to(tl.int16) | (0x6400 if dtype == tl.float16 else 0x4300)
    return bits.to(dtype, bitcast=True)


@triton.jit
def group_of(
    scales: tl.tensor, zeros: tl.tensor, at: tl.tensor, mask: tl.tensor, dtype: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Return (scale in float32, zero as `exact` has it) of a group's outputs."""
    scale = tl.load(scales + at, mask=mask, other=0.0).to(tl.float32)
    return scale[:, None], exact(tl.load(zeros + at, mask=mask, other=0), dtype)[:, None]


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
    width: tl.tensor,
    a_stride: tl.tensor,
    span: tl.tensor,
    HALF: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    HAS_BIAS: tl.constexpr,
) -> None:
    """Compute c [splits, M, N] = a [M, K] weights [N, K]^T + bias [N], each program one tile of c over `span` bytes of
    each output's `width`. Programs that run together share weights in L2."""
    program = tl.program_id(0)
    tiles_m = tl.cdiv(M, TILE_M)
    rows = (program % tiles_m * TILE_M + tl.arange(0, TILE_M)).to(tl.int64)
    columns = (program // tiles_m * TILE_N + tl.arange(0, TILE_N)).to(tl.int64)
    is_row, is_column = (rows < M)[None, :], columns < N
    run = tl.arange(0, HALF)
    dtype = a.dtype.element_ty
    first = tl.program_id(1) * span
    end = tl.minimum(first + span, width)
    total = tl.zeros((TILE_N, TILE_M), tl.float32)
    weights = packed + columns[:, None] * width + run[None, :]
    activations = a + rows[None, :] * a_stride + run[:, None]
    for start in range(first, end, HALF):
        # Not loaded a step ahead: then the compiler brings widened weights to the tensor cores by shared memory.
        scale, zero = group_of(scales, zeros, 2 * start // GROUP_SIZE * N + columns, is_column, dtype)
        scale_2, zero_2 = group_of(scales, zeros, (2 * start + HALF) // GROUP_SIZE * N + columns, is_column, dtype)
        octets = tl.load(weights + start, mask=is_column[:, None], other=0)
        lower = tl.load(activations + 2 * start, mask=is_row, other=0.0)
        upper = tl.load(activations + 2 * start + HALF, mask=is_row, other=0.0)
        total += tl.dot(exact(octets & 15, dtype) - zero, lower) * scale
        total += tl.dot(exact(octets >> 4, dtype) - zero_2, upper) * scale_2
    if HAS_BIAS:
        total += tl.load(bias + columns, mask=is_column, other=0.0).to(tl.float32)[:, None]
    to = c + (tl.program_id(1) * M + rows)[None, :] * N + columns[:, None]
    tl.store(to, total.to(c.dtype.element_ty), mask=is_row & is_column[:, None])


@triton.jit(do_not_specialize=["M", "splits"])
def add_splits_kernel(
    partials: tl.tensor,
    bias: tl.tensor,
    c: tl.tensor,
    M: tl.tensor,
    N: tl.tensor,
    splits: tl.tensor,
    MOST_SPLITS: tl.constexpr,
    COLUMNS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
) -> None:
    """Compute c [M, N] = the sum of partials [splits, M, N] + bias [N], each program some outputs of one row,
    of which it asks for all splits at once."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = columns < N
    split = tl.arange(0, MOST_SPLITS)[:, None]
    from_ = partials + (split * M + row) * N + columns[None, :]
    total = tl.sum(tl.load(from_, mask=(split < splits) & mask[None, :], other=0.0), axis=0)
    if HAS_BIAS:
        total += tl.load(bias + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(c + row * N + columns, total.to(c.dtype.element_ty), mask=mask)


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
    """Write the weights [N, K] in their dtype, each program 2 HALF inputs of TILE_N outputs. A product is exact in
    float32, so that it is rounded once."""
    start = tl.program_id(0) * (2 * HALF)
    outputs = (tl.program_id(1) * TILE_N + tl.arange(0, TILE_N)).to(tl.int64)
    is_output = outputs < N
    mask = is_output[:, None]
    run = tl.arange(0, HALF)[None, :]
    octets = tl.load(packed + outputs[:, None] * (K // 2) + start // 2 + run, mask=mask, other=0)
    to = weights + outputs[:, None] * K + start + run
    dtype = weights.dtype.element_ty
    scale, zero = group_of(scales, zeros, start // GROUP_SIZE * N + outputs, is_output, dtype)
    tl.store(to, ((exact(octets & 15, dtype) - zero).to(tl.float32) * scale).to(dtype), mask=mask)
    scale, zero = group_of(scales, zeros, (start + HALF) // GROUP_SIZE * N + outputs, is_output, dtype)
    tl.store(to + HALF, ((exact(octets >> 4, dtype) - zero).to(tl.float32) * scale).to(dtype), mask=mask)


def int4_linear(
    x: torch.Tensor, matrix: Int4Matrix, bias: torch.Tensor | None, *, batch_invariant: bool
) -> torch.Tensor:
    """Return [T, out] for x [T, in], its last dimension contiguous; sums are float32.

    Args:
        batch_invariant: a row's result does not depend on how many there are: one tile computes all.
    """
    if batch_invariant:
        return tiled(x, matrix, bias, TILES[-1], 1)
    if len(x) > MOST_ROWS:
        return F.linear(x, dequantized(matrix, x.dtype), bias)
    tile = next((each for each in TILES if each.rows >= len(x)), TILES[-1])
    tiles = triton.cdiv(len(x), tile.rows) * triton.cdiv(matrix.outputs, tile.outputs)
    return tiled(x, matrix, bias, tile, splits_of(matrix, tiles))


def splits_of(matrix: Int4Matrix, tiles: int) -> int:
    """Return the number of programs that share the inputs of each of `tiles`."""
    most = min(_MOST_SPLITS, max(1, matrix.inputs // (2 * matrix.half * _LEAST_STEPS)))
    return min(most, -(-_LEAST_PROGRAMS // max(1, tiles)))


def tiled(x: torch.Tensor, matrix: Int4Matrix, bias: torch.Tensor | None, tile: Tile, splits: int) -> torch.Tensor:
    """Return as `int4_linear`, by one tile.

    Args:
        splits: maximum number of programs that share a tile's inputs.
    """
    rows, outputs, width = len(x), matrix.outputs, matrix.packed.shape[1]
    c = x.new_empty(rows, outputs)
    if not rows:
        return c
    span = triton.cdiv(width // matrix.half, splits) * matrix.half
    splits = triton.cdiv(width, span)
    added = bias if splits == 1 else None
    int4_matmul_kernel[(triton.cdiv(rows, tile.rows) * triton.cdiv(outputs, tile.outputs), splits)](
        x,
        matrix.packed,
        matrix.scales,
        matrix.zeros,
        x if added is None else added,  # not read without
        to := c if splits == 1 else x.new_empty(splits, rows, outputs, dtype=torch.float32),
        rows,
        outputs,
        width,
        x.stride(0),
        span,
        HALF=matrix.half,
        GROUP_SIZE=matrix.group_size,
        TILE_M=tile.rows,
        TILE_N=tile.outputs,
        HAS_BIAS=added is not None,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        enable_fp_fusion=True,
    )
    if splits > 1:
        add_splits_kernel[(rows, triton.cdiv(outputs, _ADDED_AT_ONCE))](
            to,
            x if bias is None else bias,
            c,
            rows,
            outputs,
            splits,
            MOST_SPLITS=_MOST_SPLITS,
            COLUMNS=_ADDED_AT_ONCE,
            HAS_BIAS=bias is not None,
        )
    return c


def dequantized(
    matrix: Int4Matrix, dtype: torch.dtype, tile: int = _DEQUANTIZED_OUTPUTS, num_warps: int = 4
) -> torch.Tensor:
    """Return the weights, [out, in]; `tile`: outputs of a program."""
    weights = matrix.packed.new_empty(matrix.outputs, matrix.inputs, dtype=dtype)
    grid = (matrix.inputs // (2 * matrix.half), triton.cdiv(matrix.outputs, tile))
    int4_dequantize_kernel[grid](
        matrix.packed,
        matrix.scales,
        matrix.zeros,
        weights,
        matrix.outputs,
        matrix.inputs,
        HALF=matrix.half,
        GROUP_SIZE=matrix.group_size,
        TILE_N=tile,
        num_warps=num_warps,
        enable_fp_fusion=False,
    )
    return weights
