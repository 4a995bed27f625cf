"""Linear layers over plain and over quantized weights, and the choice between them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from inflight_engine.models.matrices import (
    Fp8Matrix,
    GroupedMatrix,
    Int4Matrix,
    Matrix,
    joined_fp8,
    pack_int4,
    why_not_int4,
)
from inflight_engine.models.ops import Ops

log = logging.getLogger(__name__)

_FP8_MULTIPLE = 16
"""Divisor of the sides of matrices that `torch._scaled_mm` takes."""


class Linear(Protocol):
    """Weights on one device, and the product with them."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, in] -> [T, out], in x's dtype."""


@dataclass(frozen=True, slots=True, eq=False)
class PlainLinear:
    """weight [out, in], bias [out] or None."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    ops: Ops

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.ops.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True, eq=False)
class Fp8Linear:
    """Products of float8 with float8: each token's activations are rounded with a scale of their own.

    Attributes:
        values: float8_e4m3fn [out, in].
        scales: float32 [1, out].
        bias: [out] or None.
    """

    values: torch.Tensor
    scales: torch.Tensor
    bias: torch.Tensor | None
    ops: Ops

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        rows, scales = self.ops.quantize_rows(x)
        # Sums inside tensor cores have fewer bits with `use_fast_accum`, as in vLLM; without, Hopper loses much speed.
        return torch._scaled_mm(
            rows, self.values.t(), scales, self.scales, bias=self.bias, out_dtype=x.dtype, use_fast_accum=True
        )


@dataclass(frozen=True, slots=True, eq=False)
class Int4Linear:
    """Activations in their dtype, weights in 4 bits.

    Attributes:
        order: int64 [in], which of the inputs stand where in the matrix; None: all in their places.
        bias: [out] or None.
    """

    matrix: Int4Matrix
    order: torch.Tensor | None
    bias: torch.Tensor | None
    ops: Ops

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.ops.int4_linear(x if self.order is None else x.index_select(1, self.order), self.matrix, self.bias)


@dataclass(frozen=True, slots=True)
class KeptFormats:
    """Reasons why weights in float8 and in 4 bits do not stay quantized in memory; None: they do."""

    why_not_fp8: str | None
    why_not_int4: str | None


NONE_KEPT = KeptFormats("products with float8 need a GPU", "products with weights of 4 bits need a GPU")


class LinearMaker:
    """Puts weights on a device, in the form in which they are multiplied."""

    def __init__(self, dtype: torch.dtype, device: torch.device, ops: Ops, kept: KeptFormats) -> None:
        self._dtype = dtype
        self._device = device
        self._ops = ops
        self._kept = kept
        self._num_kept = 0
        self._dequantized: Counter[str] = Counter()

    def make(self, matrices: Sequence[Matrix], bias: torch.Tensor | None) -> Linear:
        """Make one layer with the outputs of all matrices, one after the other.

        Args:
            bias: bias of all of them, on the device.
        """
        if any(not isinstance(each, torch.Tensor) for each in matrices):
            linear = self._quantized(matrices, bias)
            if not isinstance(linear, str):
                self._num_kept += 1
                return linear
            self._dequantized[linear] += 1
        plain = [self._plain(each) for each in matrices]
        return PlainLinear(plain[0].contiguous() if len(plain) == 1 else torch.cat(plain), bias, self._ops)

    def log_counts(self) -> None:
        if self._num_kept:
            log.info("%d linear layers keep their quantized weights", self._num_kept)
        for reason, count in self._dequantized.items():
            dtype = str(self._dtype).removeprefix("torch.")
            log.info("quantized weights of %d linear layers are dequantized to %s: %s", count, dtype, reason)

    def _quantized(self, matrices: Sequence[Matrix], bias: torch.Tensor | None) -> Linear | str:
        """Return the layer, or the reason why its weights must be dequantized."""
        fp8 = [each for each in matrices if isinstance(each, Fp8Matrix)]
        if len(fp8) == len(matrices):
            return self._kept.why_not_fp8 or self._fp8(joined_fp8([each.to(self._device) for each in fp8]), bias)
        grouped = [each for each in matrices if isinstance(each, GroupedMatrix)]
        if len(grouped) == len(matrices):
            reason = (self._kept.why_not_int4 if grouped[0].bits == 4 else None) or why_not_int4(grouped)
            if reason is not None:
                return reason
            matrix, order = pack_int4([each.to(self._device) for each in grouped])
            return Int4Linear(matrix, order, bias, self._ops)
        return "only some of the fused projections are quantized"

    def _fp8(self, matrix: Fp8Matrix, bias: torch.Tensor | None) -> Linear | str:
        if any(side % _FP8_MULTIPLE for side in matrix.values.shape):
            return f"their dimensions {list(matrix.values.shape)} are not multiples of {_FP8_MULTIPLE}"
        return Fp8Linear(matrix.values, matrix.scales[None], bias, self._ops)

    def _plain(self, matrix: Matrix) -> torch.Tensor:
        if isinstance(matrix, torch.Tensor):
            return matrix.to(device=self._device, dtype=self._dtype)
        return matrix.to(self._device).dequantized(self._dtype)
