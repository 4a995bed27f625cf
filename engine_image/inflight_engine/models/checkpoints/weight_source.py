"""Interface for reading a model's weights."""

from __future__ import annotations

from typing import Protocol

import torch

from inflight_engine.models.matrices import Matrix


def check_shape(name: str, found: tuple[int, ...], expected: tuple[int, ...]) -> None:
    """Check a tensor's shape against the configuration's.

    Raises:
        ValueError: they differ.
    """
    if found != expected:
        raise ValueError(
            f"tensor {name} has the shape {list(found)}, but the model's configuration asks for {list(expected)}: "
            "weights and configuration are of different models"
        )


class WeightSource(Protocol):
    """Where a model's tensors come from, one at a time, so that no second copy of the model is ever in memory."""

    def get(self, name: str, dim: int = 0, part: range | None = None) -> torch.Tensor:
        """The tensor of a Hugging Face parameter name, on CPU, in the file's dtype; float32 where that is quantized.

        Args:
            part: rows (`dim` 0) or columns (`dim` 1) that are read alone; None: all.

        Raises:
            ValueError: there is none; the message names it and the file.
        """

    def shape(self, name: str) -> tuple[int, ...]:
        """Raises ValueError as `get`."""

    def matrix(self, name: str, dim: int = 0, part: range | None = None) -> Matrix:
        """A product's weights, or a part of them, as the file has them: quantized ones stay so where a product can read
        them. Raises ValueError as `get`."""
        return self.get(name, dim, part)
