"""Paged attention in plain torch, on any device.

The cache of a layer is [num_blocks, block_size, kv_heads, D] for keys and the same for values. Reading copies whole
blocks (`index_select` over the first dimension); gathering token by token costs several times more on a CPU. Decodes
attend as one padded batch with a mask. Heads that share a key/value head are folded into the query dimension, so
grouped-query attention repeats nothing. Scores with a soft cap are computed in the open, all others by torch's fused
attention.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from inflight_engine.execution.attention.base import (
    AttentionBackend,
    AttentionBatch,
    AttentionSpec,
    ChunkSpan,
    StepShape,
)
from inflight_engine.execution.memory.zeros import zeros

_MASKED_QUERIES = 512
"""Queries of a chunk that attend at once: the mask is this many rows by the whole context."""


class TorchSdpaBackend(AttentionBackend):
    """See the module."""

    name = "torch-sdpa"

    @classmethod
    def why_not(cls, spec: AttentionSpec) -> str | None:
        if spec.cache_dtype != spec.dtype:
            return f"it keeps keys and values in {spec.dtype}, not in {spec.cache_dtype}"
        if spec.batch_invariant:
            return "its sums are as long as the longest sequence of the batch"
        return None

    def __init__(self, spec: AttentionSpec) -> None:
        shape = spec.shape
        self._block_size = spec.block_size
        self._kv_heads = shape.num_kv_heads
        self._group = shape.num_heads // shape.num_kv_heads
        self._head_dim = shape.head_dim
        self._scale = shape.head_dim**-0.5 if shape.scale is None else shape.scale
        self._softcap = shape.softcap
        self._windows = shape.sliding_windows
        self._device = spec.device
        cache_shape = (shape.num_layers, 2, spec.num_blocks, spec.block_size, self._kv_heads, self._head_dim)
        self._cache = zeros(cache_shape, spec.cache_dtype, spec.device)
        self._num_decodes = 0
        self._chunks: list[tuple[ChunkSpan, torch.Tensor]] = []

    def prepare(self, batch: AttentionBatch, shape: StepShape | None = None) -> None:
        if shape is not None:
            raise ValueError(f"{self.name} runs no padded batches")
        self._kv_slots = self._tensor(batch.kv_slots)
        self._num_decodes = len(batch.decode_context_lens)
        if self._num_decodes:
            longest = int(batch.decode_context_lens.max())
            num_blocks = -(-longest // self._block_size)
            self._decode_blocks = self._tensor(batch.decode_blocks(self._block_size).reshape(-1))
            positions, ends = np.arange(num_blocks * self._block_size), batch.decode_context_lens[:, None]
            self._decode_masks = {
                window: self._tensor((positions < ends) & (positions >= ends - (window or longest)))[:, None, None, :]
                for window in set(self._windows)
            }  # [B, 1, 1, L] each
            self._decode_padding = self._tensor(positions >= ends)[:, :, None, None]  # [B, L, 1, 1]
        self._chunks = [(chunk, self._tensor(batch.chunk_blocks(chunk, self._block_size))) for chunk in batch.chunks]

    def forward(self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        key_cache, value_cache = self._cache[layer]
        key_cache.view(-1, self._kv_heads, self._head_dim).index_copy_(0, self._kv_slots, keys)
        value_cache.view(-1, self._kv_heads, self._head_dim).index_copy_(0, self._kv_slots, values)
        parts = []
        if self._num_decodes:
            parts.append(self._decode(layer, queries[: self._num_decodes], key_cache, value_cache))
        for chunk, blocks in self._chunks:
            span = slice(chunk.first, chunk.first + chunk.length)
            window = self._windows[layer] or chunk.length
            if chunk.start == 0 and chunk.length <= window and self._softcap is None:
                # Nothing before the chunk: its own keys are all there is.
                parts.append(self._attend(queries[span], keys[span], values[span], None))
            else:
                parts.append(self._prefill(layer, queries[span], key_cache, value_cache, blocks, chunk.start))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def blocks(self) -> torch.Tensor:
        return self._cache.movedim(2, 0)

    def _decode(
        self, layer: int, queries: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor
    ) -> torch.Tensor:
        batch = queries.shape[0]
        shape = (batch, -1, self._kv_heads, self._head_dim)
        # What another request left in the padding may be no number, which no mask takes away.
        keys, values = (
            cache.index_select(0, self._decode_blocks).view(shape).masked_fill_(self._decode_padding, 0).transpose(1, 2)
            for cache in (key_cache, value_cache)
        )  # [B, kv_heads, L, D] each
        grouped = queries.reshape(batch, self._kv_heads, self._group, self._head_dim)
        mixed = self._mix(grouped, keys, values, self._decode_masks[self._windows[layer]])
        return mixed.reshape(batch, -1)

    def _prefill(
        self,
        layer: int,
        queries: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        blocks: torch.Tensor,
        start: int,
    ) -> torch.Tensor:
        shape = (-1, self._kv_heads, self._head_dim)
        keys = key_cache.index_select(0, blocks).view(shape)  # [>= start + length, kv_heads, D]
        values = value_cache.index_select(0, blocks).view(shape)
        parts = []
        for first in range(0, queries.shape[0], _MASKED_QUERIES):
            piece = queries[first : first + _MASKED_QUERIES]
            end = start + first + piece.shape[0]
            window = self._windows[layer] or end
            begin = max(0, start + first + 1 - window)
            seen = torch.arange(begin, end, device=self._device)
            own = torch.arange(start + first, end, device=self._device)[:, None]
            mask = (seen <= own) & (seen > own - window)  # [piece, end - begin], True where a query may look
            parts.append(self._attend(piece, keys[begin:end], values[begin:end], mask))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _attend(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        length = queries.shape[0]
        # [kv_heads, group, length, D] against keys and values expanded over the group (a view).
        grouped = queries.view(length, self._kv_heads, self._group, self._head_dim).permute(1, 2, 0, 3)
        shape = (self._kv_heads, self._group, keys.shape[0], self._head_dim)
        mixed = self._mix(
            grouped,
            keys.transpose(0, 1)[:, None].expand(shape),
            values.transpose(0, 1)[:, None].expand(shape),
            mask,
        )
        return mixed.permute(2, 0, 1, 3).reshape(length, -1)

    def _mix(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """Attend with [..., queries, D] over [..., keys, D]; without a mask causally, which needs no soft cap."""
        if self._softcap is None or mask is None:
            return F.scaled_dot_product_attention(
                queries, keys, values, attn_mask=mask, is_causal=mask is None, scale=self._scale
            )
        scores = (queries @ keys.transpose(-1, -2)).float() * self._scale
        scores = self._softcap * torch.tanh(scores / self._softcap)
        weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
        return weights.to(values.dtype) @ values

    def _tensor(self, array: npt.NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)
