"""The attention interface: what a backend is told about a step, and what it does with it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch

from inflight_engine.models.config import DecoderConfig

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ChunkSpan:
    """One prefill chunk within the packed tokens.

    Attributes:
        first: index of its first token in the packed sequence.
        length: its tokens.
        start: position of its first token in its own sequence.
        block_ids: int64 [ceil((start + length) / block_size)]: the blocks that hold positions 0 to start + length - 1.
    """

    first: int
    length: int
    start: int
    block_ids: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class AttentionBatch:
    """What is packed in one step: first one token of each decode, then the chunks.

    Attributes:
        kv_slots: int64 [T]: where each packed token's key and value go, block * block_size + offset.
        decode_block_table: int64 [num_decodes, >= blocks of the longest]: entries past a sequence's blocks are
            any valid block.
        decode_context_lens: int64 [num_decodes]: tokens each decode looks at, its own included.
        chunks: in packed order.
    """

    kv_slots: IntArray
    decode_block_table: IntArray
    decode_context_lens: IntArray
    chunks: tuple[ChunkSpan, ...]


class AttentionBackend(ABC):
    """Owns the KV cache of all layers and attends over it.

    Args:
        num_blocks, block_size: of the cache.
    """

    name: ClassVar[str]

    @staticmethod
    @abstractmethod
    def runs_on(device: torch.device) -> bool:
        """Whether this backend works on a device."""

    @abstractmethod
    def __init__(
        self, config: DecoderConfig, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None: ...

    @abstractmethod
    def prepare(self, batch: AttentionBatch) -> None:
        """Once a step, before the first layer."""

    @abstractmethod
    def forward(self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Write the packed tokens' keys and values to the cache, then attend causally.

        Args:
            queries: [T, heads, D]. keys, values: [T, kv_heads, D].

        Returns:
            [T, heads * D].
        """

    @abstractmethod
    def copy_out(self, block_ids: Sequence[int], host: torch.Tensor, host_block_ids: Sequence[int]) -> None:
        """Copy whole blocks of the cache to host memory, one to one. On a GPU in the order of its current stream: the
        copies are done when a later `copy_in` or `forward` of the same stream needs them to be.

        Args:
            host: [num_host_blocks, layers, 2 (keys, values), block_size, kv_heads, D], on CPU, pinned for a GPU.
        """

    @abstractmethod
    def copy_in(self, host: torch.Tensor, host_block_ids: Sequence[int], block_ids: Sequence[int]) -> None:
        """Copy blocks of host memory into the cache, one to one; the reverse of `copy_out`."""
