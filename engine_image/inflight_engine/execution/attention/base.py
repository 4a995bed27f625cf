"""The attention interface: what a backend is told about a step, and what it does with it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from inflight_engine.models.shape import ModelShape

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """What a backend is made for.

    Attributes:
        shape: of the model; with tensor parallelism its heads are this rank's.
        num_blocks, block_size: of the cache; 0: not chosen yet.
        dtype: of queries, keys, values and the result.
        cache_dtype: in which keys and values are kept; `dtype`, or torch.float8_e4m3fn.
        max_num_seqs, max_num_batched_tokens: capacity: most decodes, most tokens in a step.
        max_model_len: longest sequence in tokens.
        batch_invariant: a sequence's result must not depend on what else is in the batch, bit for bit.
    """

    shape: ModelShape
    num_blocks: int
    block_size: int
    dtype: torch.dtype
    cache_dtype: torch.dtype
    device: torch.device
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    batch_invariant: bool = False


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


class AttentionBatch(msgspec.Struct, frozen=True, eq=False):
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
    """Owns the KV cache of all layers and attends over it: grouped-query, causal, with the sliding window and soft cap
    of the model's shape."""

    name: ClassVar[str]
    preferred_block_size: ClassVar[int] = 16
    """Tokens. Small blocks waste less memory at the end of each sequence, and more prefixes are shared."""

    @classmethod
    @abstractmethod
    def why_not(cls, spec: AttentionSpec) -> str | None:
        """Why this backend cannot serve a spec on this machine, as the end of "... cannot be used: "; None: it can."""

    @classmethod
    def with_block_size(cls, spec: AttentionSpec) -> AttentionSpec:
        """A spec with this backend's block size where none is chosen yet."""
        return spec if spec.block_size else replace(spec, block_size=cls.preferred_block_size)

    @abstractmethod
    def __init__(self, spec: AttentionSpec) -> None: ...

    @abstractmethod
    def prepare(self, batch: AttentionBatch, num_padded: int = 0) -> None:
        """Once a step, before the first layer. What a later `forward` reads on a device lies at the same addresses in
        every step, so that `forward` of a step without chunks can be part of a CUDA graph.

        Args:
            num_padded: rows that follow the batch's decodes when there are no chunks; their keys and values are not
                written, their results are not looked at.
        """

    @abstractmethod
    def forward(self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Write the packed tokens' keys and values to the cache, then attend causally.

        Args:
            queries: [T, heads, D]. keys, values: [T, kv_heads, D].

        Returns:
            [T, heads * D].
        """

    @abstractmethod
    def blocks(self) -> torch.Tensor:
        """[num_blocks, ...]: a view of the cache, its blocks first; how they are laid out is the backend's own affair."""
