"""Attention with padding for tests of decode graphs: slow and plain, with everything that a replayed `forward` reads at
the same address in every step."""

import numpy as np
import torch
import torch.nn.functional as F

from inflight_engine.execution.attention.base import AttentionBackend


class PaddedBackend(AttentionBackend):
    """The cache of a layer is [2, num_blocks + 1, block_size, kv_heads, D]; the last block is the padded rows'."""

    name = "padded"

    @classmethod
    def why_not(cls, spec):
        return None

    def __init__(self, spec):
        shape = spec.shape
        self._spec, self._spare = spec, spec.num_blocks
        size = (shape.num_layers, 2, spec.num_blocks + 1, spec.block_size, shape.num_kv_heads, shape.head_dim)
        self._cache = torch.zeros(size, dtype=spec.cache_dtype)
        self._width = -(-spec.max_model_len // spec.block_size)
        self._fixed = {}

    def prepare(self, batch, num_padded=0):
        decodes = len(batch.decode_context_lens)
        rows = decodes + num_padded
        table = np.full((rows, self._width), self._spare)
        table[:decodes, : batch.decode_block_table.shape[1]] = batch.decode_block_table
        lens = np.ones(rows, np.int64)
        lens[:decodes] = batch.decode_context_lens
        kv_slots = np.full(len(batch.kv_slots) + num_padded, self._spare * self._spec.block_size)
        kv_slots[: len(batch.kv_slots)] = batch.kv_slots
        step = [torch.from_numpy(array) for array in (kv_slots, table, lens)]
        self._chunks = batch.chunks
        if not batch.chunks:
            fixed = self._fixed.setdefault(rows, step)
            for there, now in zip(fixed, step, strict=True):
                there.copy_(now)
            step = fixed
        self._kv_slots, self._table, self._lens = step

    def forward(self, layer, queries, keys, values):
        self._cache[layer, 0].flatten(0, 1).index_copy_(0, self._kv_slots, keys)
        self._cache[layer, 1].flatten(0, 1).index_copy_(0, self._kv_slots, values)
        rows = len(self._table)
        visible = torch.arange(self._width * self._spec.block_size) < self._lens[:, None]
        parts = [self._attend(layer, queries[:rows, None], self._table, visible[:, None])[:, 0]]
        for chunk in self._chunks:
            blocks = torch.from_numpy(chunk.block_ids)[None]
            ends = torch.arange(chunk.start, chunk.start + chunk.length)[:, None]
            visible = torch.arange(blocks.shape[1] * self._spec.block_size) <= ends
            chunk_queries = queries[None, chunk.first : chunk.first + chunk.length]
            parts.append(self._attend(layer, chunk_queries, blocks, visible[None])[0])
        return torch.cat(parts)

    def _attend(self, layer, queries, table, visible):
        """queries [B, Q, heads, D], table [B, W], visible [B, Q, W * block_size] -> [B, Q, heads * D]."""
        keys, values = self._cache[layer][:, table].flatten(2, 3).transpose(2, 3)  # [B, kv_heads, L, D] each
        mixed = F.scaled_dot_product_attention(
            queries.transpose(1, 2),
            keys,
            values,
            attn_mask=visible[:, None],
            scale=self._spec.shape.scale,
            enable_gqa=True,
        )
        return mixed.transpose(1, 2).flatten(2)

    def _block(self, block_id):
        return self._cache[:, :, block_id]
