"""Tensor parallelism: collective operations of a layer (Megatron-LM, Shoeybi et al. 2019)."""

from __future__ import annotations

from typing import Protocol

import torch


class Parallel(Protocol):
    """This process's place among those that share every layer: columns of the first matrix of a pair and rows of the
    second are cut into `size` equal parts.

    Attributes:
        rank: 0 .. size - 1.
        size: processes; 1 is the usual case.
    """

    rank: int
    size: int

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks, of x's shape; may overwrite x."""

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """[..., n] of each rank, joined in order of rank: [..., size * n]."""

    def broadcast(self, x: torch.Tensor) -> torch.Tensor:
        """Rank 0's x; overwrites the others'."""

    def minimum(self, value: int) -> int:
        """The smallest of all ranks' values; waits for all of them."""


class SingleProcess:
    """A single rank: collective operations return their input."""

    rank = 0
    size = 1

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def broadcast(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def minimum(self, value: int) -> int:
        return value


ALONE = SingleProcess()
