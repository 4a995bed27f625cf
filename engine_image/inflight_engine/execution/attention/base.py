"""The attention interface: the description of a step, and the operations of a backend."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from inflight_engine.models.checkpoints.shape import ModelShape
from inflight_engine.scheduling.plan import Slots

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Everything that a backend depends on.

    Attributes:
        shape: the model's shape; with tensor parallelism, its heads are this rank's.
        num_blocks, block_size: size of the cache; 0: not chosen yet.
        dtype: dtype of queries, keys, values and the result.
        cache_dtype: dtype of the keys and values in the cache: `dtype`, or torch.float8_e4m3fn.
        max_num_seqs, max_num_batched_tokens: capacity: most decodes, most tokens in a step.
        max_model_len: longest sequence in tokens.
        batch_invariant: a sequence's result must not depend on what else is in the batch, bit for bit.
        kv_scales: scales of a cache in torch.float8_e4m3fn: float32 [layers, 2, kv_heads] on the device, for keys, then
            for values; the cache holds them divided by their scale. None: all are 1.
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
    kv_scales: torch.Tensor | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ChunkSpan:
    """A prefill chunk within the packed tokens.

    Attributes:
        slot: slot of its sequence, the row of the block table.
        first: index of its first token in the packed sequence.
        length: its tokens.
        start: position of its first token in its own sequence.
    """

    slot: int
    first: int
    length: int
    start: int


class AttentionBatch(msgspec.Struct, frozen=True, eq=False):
    """The packed tokens of a step: one token of each decode, then the chunks.

    Attributes:
        kv_slots: int64 [T]: where each packed token's key and value go, block * block_size + offset.
        decode_slots: intp [num_decodes]: rows of the block table.
        decode_context_lens: int64 [num_decodes]: tokens each decode looks at, its own included.
        chunks: in packed order.
        block_table: int64 [max_num_seqs, blocks of the longest sequence]: rows of all slots; entries past a sequence's
            blocks are any valid block. It changes after the step is launched.
        changed_cells: int64: indices into the flattened block table of the cells that differ from the batch before,
            none twice.
    """

    kv_slots: IntArray
    decode_slots: Slots
    decode_context_lens: IntArray
    chunks: tuple[ChunkSpan, ...]
    block_table: IntArray
    changed_cells: IntArray

    def decode_blocks(self, block_size: int) -> IntArray:
        """Return the decodes' rows of the block table, int64 [num_decodes, blocks of the longest]."""
        longest = int(self.decode_context_lens.max(initial=0))
        return self.block_table[:, : -(-longest // block_size)][self.decode_slots]

    def chunk_blocks(self, chunk: ChunkSpan, block_size: int) -> IntArray:
        """Return the blocks that hold positions 0 to the chunk's last, int64; a view."""
        return self.block_table[chunk.slot, : -(-(chunk.start + chunk.length) // block_size)]


class StepShape(NamedTuple):
    """Size of a step that a CUDA graph runs, padding included.

    Attributes:
        num_tokens: number of packed tokens.
        num_sequences: number of decodes and chunks. If it equals `num_tokens`, the step has decodes only.
    """

    num_tokens: int
    num_sequences: int

    @property
    def decodes_only(self) -> bool:
        return self.num_tokens == self.num_sequences


class AttentionBackend(ABC):
    """Owns the KV cache of all layers and attends over it: grouped-query, causal, with the sliding window and soft cap
    of the model's shape."""

    name: ClassVar[str]

    @classmethod
    @abstractmethod
    def why_not(cls, spec: AttentionSpec) -> str | None:
        """Return why this backend cannot serve a spec on this machine, as the end of "... cannot be used: "; None: it
        can."""

    @abstractmethod
    def __init__(self, spec: AttentionSpec) -> None: ...

    @abstractmethod
    def prepare(self, batch: AttentionBatch, shape: StepShape | None = None) -> None:
        """Prepare a step; called once, before its first layer.

        Args:
            shape: the batch is padded to it. All that `forward` launches depends on the shape alone, and what it reads
                on a device lies at the same addresses in every step of the shape, so that a CUDA graph can hold it.
                Keys and values of padded tokens are not written; their results are not looked at. None: not padded.

        Raises:
            ValueError: the batch is larger than the shape, or the backend runs no batches of that shape.
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
        """Return a view of the cache, [num_blocks, ...]; the backend decides the layout of a block."""
