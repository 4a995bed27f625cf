"""Checkpoints with weights in float8_e4m3fn.

Three producers, one form: beside `NAME.weight` lies its scale, by which it is multiplied:
- compressed-tensors and fbgemm_fp8: `NAME.weight_scale`, one number, one for each row or one for each block;
- fp8: `NAME.weight_scale`, one number, or with `weight_block_size` (DeepSeek-V3, Qwen3-FP8) `NAME.weight_scale_inv`,
  one for each block of rows and columns; by name it is the inverse of what quantized.
Scales of activations (`input_scale`) and bounds of them are not used: where activations are rounded, each token has a
scale of its own.
"""

from __future__ import annotations

import logging

import torch

from inflight_engine.models.checkpoints.packed_layouts import StoredTensors
from inflight_engine.models.checkpoints.quantization_scheme import Fp8Scheme
from inflight_engine.models.matrices import Fp8Matrix

log = logging.getLogger(__name__)

_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


class Fp8Weights:
    """Implements `WeightSource` over a checkpoint's tensors: what is float8 there is float32 here. Matrices stay float8
    where their scales are of rows."""

    def __init__(self, stored: StoredTensors, scheme: Fp8Scheme) -> None:
        self._stored = stored
        self._scheme = scheme
        if scheme.block is not None:
            log.info("float8 weights are dequantized: each block of them has a scale")
        elif not scheme.rounds_activations:
            log.info("float8 weights are dequantized: the checkpoint was made for activations that are not quantized")

    def get(self, name: str, dim: int = 0, part: range | None = None) -> torch.Tensor:
        matrix = self.matrix(name, dim, part)
        return matrix.dequantized(torch.float32) if isinstance(matrix, Fp8Matrix) else matrix

    def shape(self, name: str) -> tuple[int, ...]:
        return self._stored.shape(name)

    def matrix(self, name: str, dim: int = 0, part: range | None = None) -> torch.Tensor | Fp8Matrix:
        values = self._stored.get(name, dim, part)
        if values.dtype not in _FLOAT8:
            return values
        shape = self.shape(name)
        part = range(shape[dim]) if part is None else part
        scale = self._scale(name, shape)
        is_of_rows = scale.shape[1] == 1
        scale = scale.expand(shape)
        scale = scale[part.start : part.stop] if dim == 0 else scale[:, part.start : part.stop]
        if is_of_rows and values.dtype == torch.float8_e4m3fn and self._scheme.rounds_activations:
            return Fp8Matrix(values, scale[:, 0])
        return values.float() * scale

    def _scale(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """float32, broadcast over `shape` [rows, columns]."""
        scale_name = name + self._scheme.scale_suffix
        scale = self._stored.get(scale_name).float()
        if scale.numel() == 1 or scale.numel() == len(scale) == shape[0]:
            return scale.reshape(-1, 1)
        rows, columns = self._scheme.block or (1, 1)
        if tuple(scale.shape) != (-(-shape[0] // rows), -(-shape[1] // columns)):
            raise ValueError(f"tensor {scale_name} has the shape {list(scale.shape)}, which does not fit {list(shape)}")
        return scale.repeat_interleave(rows, 0)[: shape[0]].repeat_interleave(columns, 1)[:, : shape[1]]
