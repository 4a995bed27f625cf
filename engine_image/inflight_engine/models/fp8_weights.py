"""Checkpoints with weights in float8_e4m3fn, dequantized as they are read.

Three producers, one form: beside `NAME.weight` lies its scale, by which it is multiplied:
- compressed-tensors and fbgemm_fp8: `NAME.weight_scale`, one number, one for each row or one for each block;
- fp8: `NAME.weight_scale`, one number, or with `weight_block_size` (DeepSeek-V3, Qwen3-FP8) `NAME.weight_scale_inv`,
  one for each block of rows and columns; by name it is the inverse of what quantized.
Scales of activations (`input_scale`) are not used: activations stay in the engine's dtype.
"""

from __future__ import annotations

from typing import Any

import torch

from inflight_engine.models.weight_source import WeightSource

_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


class Fp8Weights:
    """Implements `WeightSource` over another: what is float8 there is float32 here.

    Args:
        quantization: `quantization_config` of config.json.
    """

    def __init__(self, stored: WeightSource, quantization: dict[str, Any]) -> None:
        self._stored = stored
        self._block: list[int] | None = quantization.get("weight_block_size")
        self._suffix = "_scale" if self._block is None else "_scale_inv"
        for group in quantization.get("config_groups", {}).values():
            self._block = group["weights"].get("block_structure") or self._block

    def get(self, name: str) -> torch.Tensor:
        tensor = self._stored.get(name)
        if tensor.dtype not in _FLOAT8:
            return tensor
        return tensor.float() * self._scale(name, tensor.shape)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._stored.shape(name)

    def part(self, name: str, dim: int, start: int, end: int) -> torch.Tensor:
        part = self._stored.part(name, dim, start, end)
        if part.dtype not in _FLOAT8:
            return part
        scale = self._scale(name, self.shape(name)).expand(self.shape(name))
        return part.float() * (scale[start:end] if dim == 0 else scale[:, start:end])

    def _scale(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """float32, broadcast over `shape` [rows, columns]."""
        scale_name = name + self._suffix
        scale = self._stored.get(scale_name).float()
        if scale.numel() == 1 or scale.numel() == len(scale) == shape[0]:
            return scale.reshape(-1, 1)
        rows, columns = self._block or (1, 1)
        if tuple(scale.shape) != (-(-shape[0] // rows), -(-shape[1] // columns)):
            raise ValueError(f"tensor {scale_name} has the shape {list(scale.shape)}, which does not fit {list(shape)}")
        return scale.repeat_interleave(rows, 0)[: shape[0]].repeat_interleave(columns, 1)[:, : shape[1]]
