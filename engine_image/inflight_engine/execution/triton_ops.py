"""The small operators between matrix products as Triton kernels: each reads and writes its tensors once. Products are
in `few_rows` and `int4_matmul`.

A program has one token (or one token's share of the heads), and a row's result follows from the row alone: the sums run
over the row in one order, however many rows there are.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from inflight_engine.execution import few_rows, int4_matmul
from inflight_engine.models.matrices import Int4Matrix
from inflight_engine.models.ops import FP8_LEAST_SCALE, FP8_MAX, TorchOps

_MAX_WARPS = 8
"""Maximum number of warps of a program: a row of 4096 is then 16 elements a thread."""
_COLUMNS = 1024
"""Number of columns that a program of `silu_mul` computes."""
_MOST_COLUMNS = 4096
"""Maximum number of columns that a program of `quantize_rows` has at once; longer rows are read twice."""


@triton.jit
def rms_norm_kernel(
    x: tl.tensor,
    residual: tl.tensor,
    weight: tl.tensor,
    normed: tl.tensor,
    x_stride: tl.tensor,
    eps: tl.tensor,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    ADDS: tl.constexpr,
) -> None:
    """Kernel in which each program norms one row. With ADDS, `residual` is first added to it, and becomes the sum."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, PADDED)
    mask = columns < WIDTH
    values = tl.load(x + row * x_stride + columns, mask=mask, other=0.0)
    if ADDS:
        # Rounded to the tensor's dtype, as adding the tensors does.
        before = tl.load(residual + row * WIDTH + columns, mask=mask, other=0.0)
        values = (values.to(tl.float32) + before.to(tl.float32)).to(residual.dtype.element_ty)
        tl.store(residual + row * WIDTH + columns, values, mask=mask)
    wide = values.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / WIDTH + eps)
    result = wide * scale * tl.load(weight + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(normed + row * WIDTH + columns, result.to(normed.dtype.element_ty), mask=mask)


@triton.jit
def rotary_kernel(
    qkv: tl.tensor,
    positions: tl.tensor,
    table: tl.tensor,
    query_norm: tl.tensor,
    key_norm: tl.tensor,
    qkv_stride: tl.tensor,
    eps: tl.tensor,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    PADDED_HALF: tl.constexpr,
    HEADS_PER_PROGRAM: tl.constexpr,
    NORMS: tl.constexpr,
) -> None:
    """Kernel in which each program normalises and rotates, in place, some heads of one token's queries and keys, which
    lie side by side."""
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS_PER_PROGRAM + tl.arange(0, HEADS_PER_PROGRAM)[:, None]
    pairs = tl.arange(0, PADDED_HALF)[None, :]
    is_pair = pairs < HALF
    mask = (heads < NUM_HEADS + NUM_KV_HEADS) & is_pair
    at = qkv + token * qkv_stride + heads * (2 * HALF) + pairs
    first = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(at + HALF, mask=mask, other=0.0).to(tl.float32)
    if NORMS:
        is_query = heads < NUM_HEADS
        query_first = tl.load(query_norm + pairs, mask=is_pair, other=0.0).to(tl.float32)
        query_second = tl.load(query_norm + HALF + pairs, mask=is_pair, other=0.0).to(tl.float32)
        key_first = tl.load(key_norm + pairs, mask=is_pair, other=0.0).to(tl.float32)
        key_second = tl.load(key_norm + HALF + pairs, mask=is_pair, other=0.0).to(tl.float32)
        squares = tl.sum(first * first + second * second, axis=1)[:, None]
        scale = tl.rsqrt(squares / (2 * HALF) + eps)
        # Rounded in between, as a norm of its own would be.
        first = (first * scale * tl.where(is_query, query_first, key_first)).to(qkv.dtype.element_ty).to(tl.float32)
        second = (second * scale * tl.where(is_query, query_second, key_second)).to(qkv.dtype.element_ty).to(tl.float32)
    position = tl.load(positions + token)
    cos = tl.load(table + position * (2 * HALF) + pairs, mask=is_pair, other=0.0)
    sin = tl.load(table + position * (2 * HALF) + HALF + pairs, mask=is_pair, other=0.0)
    tl.store(at, (first * cos - second * sin).to(qkv.dtype.element_ty), mask=mask)
    tl.store(at + HALF, (second * cos + first * sin).to(qkv.dtype.element_ty), mask=mask)


@triton.jit
def silu_mul_kernel(
    gate_up: tl.tensor, mixed: tl.tensor, gate_up_stride: tl.tensor, WIDTH: tl.constexpr, COLUMNS: tl.constexpr
) -> None:
    """Kernel in which each program computes some columns of one row."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = columns < WIDTH
    at = gate_up + row * gate_up_stride + columns
    gate = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(at + WIDTH, mask=mask, other=0.0).to(tl.float32)
    silu = (gate / (1.0 + tl.exp(-gate))).to(mixed.dtype.element_ty).to(tl.float32)
    tl.store(mixed + row * WIDTH + columns, (silu * up).to(mixed.dtype.element_ty), mask=mask)


@triton.jit
def quantize_rows_kernel(
    x: tl.tensor,
    rows: tl.tensor,
    scales: tl.tensor,
    x_stride: tl.tensor,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    LARGEST: tl.constexpr,
    LEAST_SCALE: tl.constexpr,
) -> None:
    """Kernel in which each program finds the scale of one row and rounds the row."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, COLUMNS)
    from_ = x + row * x_stride
    greatest = tl.zeros((COLUMNS,), tl.float32)
    for start in range(0, WIDTH, COLUMNS):
        values = tl.load(from_ + start + columns, mask=start + columns < WIDTH, other=0.0).to(tl.float32)
        greatest = tl.maximum(greatest, tl.abs(values))
    scale = tl.maximum(tl.max(greatest, axis=0) / LARGEST, LEAST_SCALE)
    tl.store(scales + row, scale)
    for start in range(0, WIDTH, COLUMNS):
        mask = start + columns < WIDTH
        values = tl.load(from_ + start + columns, mask=mask, other=0.0).to(tl.float32)
        rounded = tl.clamp(values / scale, -LARGEST, LARGEST).to(rows.dtype.element_ty)
        tl.store(rows + row * WIDTH + start + columns, rounded, mask=mask)


class TritonOps:
    """See `Ops`. Tensors are on a GPU, their last dimension contiguous.

    Args:
        batch_invariant: products compute a row in one way, however many there are.
    """

    def __init__(self, *, batch_invariant: bool = False) -> None:
        self._batch_invariant = batch_invariant

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return _rms_norm(x, None, weight, eps)

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return _rms_norm(x, residual, weight, eps), residual

    def rotary(
        self,
        qkv: torch.Tensor,
        positions: torch.Tensor,
        table: torch.Tensor,
        num_heads: int,
        num_kv_heads: int,
        norms: tuple[torch.Tensor, torch.Tensor] | None,
        eps: float,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        num_tokens, num_rotated = len(qkv), num_heads + num_kv_heads
        half = qkv.shape[1] // (num_rotated + num_kv_heads) // 2
        heads = qkv.view(num_tokens, num_rotated + num_kv_heads, 2 * half)
        padded = triton.next_power_of_2(half)
        heads_per_program = max(1, min(triton.next_power_of_2(num_rotated), _COLUMNS // padded))
        query_norm, key_norm = norms if norms is not None else (table, table)  # not read without
        if num_tokens:
            rotary_kernel[(num_tokens, triton.cdiv(num_rotated, heads_per_program))](
                qkv,
                positions,
                table,
                query_norm,
                key_norm,
                qkv.stride(0),
                eps,
                NUM_HEADS=num_heads,
                NUM_KV_HEADS=num_kv_heads,
                HALF=half,
                PADDED_HALF=padded,
                HEADS_PER_PROGRAM=heads_per_program,
                NORMS=norms is not None,
                enable_fp_fusion=True,
            )
        return heads[:, :num_heads], heads[:, num_heads:num_rotated], heads[:, num_rotated:]

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        mixed = gate_up.new_empty(rows, width)
        if rows:
            silu_mul_kernel[(rows, triton.cdiv(width, _COLUMNS))](
                gate_up, mixed, gate_up.stride(0), WIDTH=width, COLUMNS=_COLUMNS, enable_fp_fusion=True
            )
        return mixed

    def quantize_rows(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        count, width = x.shape
        rows, scales = x.new_empty(count, width, dtype=torch.float8_e4m3fn), x.new_empty(count, 1, dtype=torch.float32)
        if count:
            columns = min(_MOST_COLUMNS, triton.next_power_of_2(width))
            quantize_rows_kernel[(count,)](
                x,
                rows,
                scales,
                x.stride(0),
                WIDTH=width,
                COLUMNS=columns,
                LARGEST=FP8_MAX,
                LEAST_SCALE=FP8_LEAST_SCALE,
                num_warps=min(_MAX_WARPS, max(1, columns // 512)),
                enable_fp_fusion=True,
            )
        return rows, scales

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if self._batch_invariant or not few_rows.suits(x, weight):
            return F.linear(x, weight, bias)
        return few_rows.linear(x, weight, bias)

    def wide_linear(self, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        if self._batch_invariant or x.dtype == torch.float32 or not x.is_cuda:
            return TorchOps().wide_linear(x, weight, out)
        # A tensor core's sums are float32: nothing is rounded, and converted back by kernels of their own.
        return torch.mm(x, weight.t(), out_dtype=torch.float32, out=out)

    def int4_linear(self, x: torch.Tensor, matrix: Int4Matrix, bias: torch.Tensor | None) -> torch.Tensor:
        return int4_matmul.int4_linear(x, matrix, bias, batch_invariant=self._batch_invariant)


def _rms_norm(x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x: [T, n]. A residual is contiguous, and becomes the sum."""
    width = x.shape[-1]
    normed = torch.empty_like(x, memory_format=torch.contiguous_format)
    if len(x):
        padded = triton.next_power_of_2(width)
        rms_norm_kernel[(len(x),)](
            x,
            x if residual is None else residual,  # not read without
            weight,
            normed,
            x.stride(0),
            eps,
            WIDTH=width,
            PADDED=padded,
            ADDS=residual is not None,
            num_warps=min(_MAX_WARPS, max(1, padded // 512)),
            enable_fp_fusion=True,
        )
    return normed
