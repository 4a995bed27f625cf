"""Matrix products with few rows and small weights, as in a decode of few sequences with a small model.

Such a product is over before memory is busy: what counts is that all weights are asked for at once. So a program holds
whole rows of the weights in registers, each loaded by one instruction after the other with nothing in between, and
multiplies them by each row of activations. cuBLAS goes through its inputs in steps, and adds up in a second kernel
where it has split them.

A row's result does not depend on how many there are. `tools/bench/gpu.sh tiles` times the split among threads beside
others and cuBLAS.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

MOST_BYTES = {1: 256 << 20, 2: 50 << 20, 3: 7 << 20, 4: 7 << 20}
"""Maximum size of the weights for a number of rows. Up to there this was faster than cuBLAS on an H200, or for a few
shapes slower by less than a tenth; three rows were not measured."""
MOST_ROWS = max(MOST_BYTES)
_MOST_INPUTS = 16384
"""More do not fit a program's registers."""


class Threads(NamedTuple):
    """Split of a program's weights among its threads. elements: weights that a thread holds."""

    num_warps: int
    elements: int


THREADS = Threads(4, 32)


@triton.jit(do_not_specialize=["M"])
def few_rows_kernel(
    a: tl.tensor,
    weights: tl.tensor,
    bias: tl.tensor,
    c: tl.tensor,
    M: tl.tensor,
    N: tl.tensor,
    a_stride: tl.tensor,
    K: tl.constexpr,
    PADDED_K: tl.constexpr,
    ROWS: tl.constexpr,
    TILE_N: tl.constexpr,
    HAS_BIAS: tl.constexpr,
) -> None:
    """Compute c [M, N] = a [M, K] weights [N, K]^T + bias [N], each program TILE_N outputs of up to ROWS rows."""
    outputs = (tl.program_id(0) * TILE_N + tl.arange(0, TILE_N)).to(tl.int64)
    is_output = outputs < N
    inputs = tl.arange(0, PADDED_K)
    from_ = weights + outputs[:, None] * K + inputs[None, :]
    tile = tl.load(from_, mask=is_output[:, None] & (inputs < K)[None, :], other=0.0)
    added = tl.zeros((TILE_N,), tl.float32)
    if HAS_BIAS:
        added = tl.load(bias + outputs, mask=is_output, other=0.0).to(tl.float32)
    for index in tl.static_range(ROWS):
        row = tl.minimum(index, M - 1)  # past the last, the last is computed again
        x = tl.load(a + row * a_stride + inputs, mask=inputs < K, other=0.0)
        total = tl.sum(tile.to(tl.float32) * x.to(tl.float32)[None, :], axis=1) + added
        tl.store(c + row * N + outputs, total.to(c.dtype.element_ty), mask=is_output)


def suits(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Return whether `linear` computes a product faster than cuBLAS."""
    return weight.nbytes <= MOST_BYTES.get(len(x), 0) and x.shape[1] <= _MOST_INPUTS


def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, threads: Threads = THREADS
) -> torch.Tensor:
    """Return [T, out] for x [T, in], its last dimension contiguous, and weight [out, in], contiguous; sums are
    float32."""
    rows, (outputs, inputs) = len(x), weight.shape
    padded = triton.next_power_of_2(inputs)
    tile = max(1, 32 * threads.num_warps * threads.elements // padded)
    c = x.new_empty(rows, outputs)
    few_rows_kernel[(triton.cdiv(outputs, tile),)](
        x,
        weight,
        x if bias is None else bias,  # not read without
        c,
        rows,
        outputs,
        x.stride(0),
        K=inputs,
        PADDED_K=padded,
        ROWS=triton.next_power_of_2(rows),
        TILE_N=tile,
        HAS_BIAS=bias is not None,
        num_warps=threads.num_warps,
        enable_fp_fusion=True,
    )
    return c
