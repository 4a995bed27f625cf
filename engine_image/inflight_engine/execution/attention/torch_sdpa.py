"""Paged attention in plain torch, on any device.

The cache of a layer is [num_blocks, block_size, kv_heads, D] for keys and the same for values. Reading copies whole
blocks (`index_select` over the first dimension); gathering token by token costs several times more on a CPU. Decodes
attend as one padded batch with a mask. Heads that share a key/value head are folded into the query dimension, so
grouped-query attention repeats nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from inflight_engine.execution.attention.base import AttentionBackend, AttentionBatch, AttentionSpec, ChunkSpan
from inflight_engine.execution.memory import zeros

_MASKED_QUERIES = 512
"""Queries of a chunk that attend at once: the mask is this many rows by the whole context."""


class TorchSdpaBackend(AttentionBackend):
    """See the module."""

    name = "torch-sdpa"

    @classmethod
    def why_not(cls, spec: AttentionSpec) -> str | None:
        shape = spec.shape
        if shape.softcap is not None or any(shape.sliding_windows):
            return "it has neither sliding windows nor soft caps"
        if spec.cache_dtype != spec.dtype:
            return f"it keeps keys and values in {spec.dtype}, not in {spec.cache_dtype}"
        return None

    def __init__(self, spec: AttentionSpec) -> None:
        shape = spec.shape
        self._block_size = spec.block_size
        self._kv_heads = shape.num_kv_heads
        self._group = shape.num_heads // shape.num_kv_heads
        self._head_dim = shape.head_dim
        self._scale = shape.scale
        self._device = spec.device
        cache_shape = (shape.num_layers, 2, spec.num_blocks, spec.block_size, self._kv_heads, self._head_dim)
        # Zeros, because padding is read and then masked, and a NaN would go through a mask.
        self._cache = zeros(cache_shape, spec.cache_dtype, spec.device)
        self._num_decodes = 0
        self._chunks: list[tuple[ChunkSpan, torch.Tensor]] = []

    def prepare(self, batch: AttentionBatch, num_padded: int = 0) -> None:
        if num_padded:
            raise ValueError(f"{self.name} runs no padded batches")
        self._kv_slots = self._tensor(batch.kv_slots)
        self._num_decodes = len(batch.decode_context_lens)
        if self._num_decodes:
            longest = int(batch.decode_context_lens.max())
            num_blocks = -(-longest // self._block_size)
            self._decode_blocks = self._tensor(batch.decode_block_table[:, :num_blocks].reshape(-1))
            visible = np.arange(num_blocks * self._block_size) < batch.decode_context_lens[:, None]
            self._decode_mask = self._tensor(visible)[:, None, None, :]  # [B, 1, 1, L]
        self._chunks = [(chunk, self._tensor(chunk.block_ids)) for chunk in batch.chunks]

    def forward(self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        key_cache, value_cache = self._cache[layer]
        key_cache.view(-1, self._kv_heads, self._head_dim).index_copy_(0, self._kv_slots, keys)
        value_cache.view(-1, self._kv_heads, self._head_dim).index_copy_(0, self._kv_slots, values)
        parts = []
        if self._num_decodes:
            parts.append(self._decode(queries[: self._num_decodes], key_cache, value_cache))
        for chunk, blocks in self._chunks:
            span = slice(chunk.first, chunk.first + chunk.length)
            if chunk.start == 0:  # nothing before the chunk: its own keys are all there is
                parts.append(self._attend(queries[span], keys[span], values[span], None))
            else:
                parts.append(self._prefill(queries[span], key_cache, value_cache, blocks, chunk.start))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def copy_out(self, block_ids: Sequence[int], host: torch.Tensor, host_block_ids: Sequence[int]) -> None:
        for block, host_block in zip(block_ids, host_block_ids, strict=True):
            self._view(host, host_block).copy_(self._cache[:, :, block], non_blocking=True)

    def copy_in(self, host: torch.Tensor, host_block_ids: Sequence[int], block_ids: Sequence[int]) -> None:
        for block, host_block in zip(block_ids, host_block_ids, strict=True):
            self._cache[:, :, block].copy_(self._view(host, host_block), non_blocking=True)

    def _view(self, host: torch.Tensor, host_block: int) -> torch.Tensor:
        return host[host_block].view(self._cache.dtype).view_as(self._cache[:, :, 0])

    def _decode(self, queries: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor) -> torch.Tensor:
        batch = queries.shape[0]
        shape = (batch, -1, self._kv_heads, self._head_dim)
        keys = key_cache.index_select(0, self._decode_blocks).view(shape).transpose(1, 2)  # [B, kv_heads, L, D]
        values = value_cache.index_select(0, self._decode_blocks).view(shape).transpose(1, 2)
        grouped = queries.reshape(batch, self._kv_heads, self._group, self._head_dim)
        mixed = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=self._decode_mask, scale=self._scale)
        return mixed.reshape(batch, -1)

    def _prefill(
        self,
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
            positions = torch.arange(end, device=self._device)
            mask = positions <= positions[start + first :, None]  # [piece, end], True where a query may look
            parts.append(self._attend(piece, keys[:end], values[:end], mask))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _attend(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        length = queries.shape[0]
        # [kv_heads, group, length, D] against keys and values expanded over the group (a view).
        grouped = queries.view(length, self._kv_heads, self._group, self._head_dim).permute(1, 2, 0, 3)
        shape = (self._kv_heads, self._group, keys.shape[0], self._head_dim)
        mixed = F.scaled_dot_product_attention(
            grouped,
            keys.transpose(0, 1)[:, None].expand(shape),
            values.transpose(0, 1)[:, None].expand(shape),
            attn_mask=mask,
            is_causal=mask is None,
            scale=self._scale,
        )
        return mixed.permute(2, 0, 1, 3).reshape(length, -1)

    def _tensor(self, array: npt.NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)
