"""Checkpoints with integers of a few bits in packed words, in groups that share a scale and a zero point."""

from __future__ import annotations

import torch

from inflight_engine.models.checkpoints.packed_layouts import LAYOUTS, StoredTensors
from inflight_engine.models.checkpoints.quantization_scheme import PackedScheme
from inflight_engine.models.matrices import Matrix


class PackedWeights:
    """Implements `WeightSource` over a checkpoint's tensors: a module that is not quantized is as it is there."""

    def __init__(self, stored: StoredTensors, scheme: PackedScheme) -> None:
        self._stored = stored
        self._scheme = scheme
        self._layout = LAYOUTS[scheme.layout]

    def get(self, name: str, dim: int = 0, part: range | None = None) -> torch.Tensor:
        matrix = self.matrix(name, dim, part)
        return matrix if isinstance(matrix, torch.Tensor) else matrix.dequantized(torch.float32)

    def shape(self, name: str) -> tuple[int, ...]:
        module = self._packed_module(name)
        if module is None:
            return self._stored.shape(name)
        return self._layout.shape(self._stored, module, self._scheme)

    def matrix(self, name: str, dim: int = 0, part: range | None = None) -> Matrix:
        module = self._packed_module(name)
        if module is None:
            return self._stored.get(name, dim, part)
        rows, columns = map(range, self.shape(name))
        if part is not None:
            rows, columns = (part, columns) if dim == 0 else (rows, part)
        return self._layout.read(self._stored, module, self._scheme, rows, columns)

    def _packed_module(self, name: str) -> str | None:
        module, _, kind = name.rpartition(".")
        return module if kind == "weight" and f"{module}.{self._layout.integers_name}" in self._stored else None
