"""Attention with padding for tests of graphs: slow and plain, with everything that a replayed `forward` reads at the
same address in every step of a shape. Each token attends alone, by its sequence's row of the block table."""

import numpy as np
import torch
import torch.nn.functional as F

from inflight_engine.execution.attention.base import AttentionBackend


class PaddedBackend(AttentionBackend):
    """The cache of a layer is [2, num_blocks + 1, block_size, kv_heads, D]; the last block is the padded tokens'."""

    name = "padded"

    @classmethod
    def why_not(cls, spec):
        return None

    def __init__(self, spec):
        shape = spec.shape
        self._spec, self._spare = spec, spec.num_blocks
        size = (shape.num_layers, 2, spec.num_blocks + 1, spec.block_size, shape.num_kv_heads, shape.head_dim)
        self._cache = torch.zeros(size, dtype=spec.cache_dtype)
        self._fixed = {}

    def prepare(self, batch, shape=None):
        rows, lens = [batch.decode_slots], [batch.decode_context_lens]
        for chunk in batch.chunks:
            rows.append(np.full(chunk.length, chunk.slot))
            lens.append(np.arange(chunk.start, chunk.start + chunk.length) + 1)
        table = batch.block_table[np.concatenate(rows)]
        step = [batch.kv_slots, table, np.concatenate(lens)]
        if shape is None:
            self._step = [torch.from_numpy(array) for array in step]
            return
        assert len(batch.decode_slots) + len(batch.chunks) <= shape.num_sequences
        assert not (batch.chunks and shape.decodes_only)
        blocks = -(-self._spec.max_model_len // self._spec.block_size)
        if shape not in self._fixed:
            self._fixed[shape] = [torch.empty(size, dtype=torch.int64) for size in _sizes(shape.num_tokens, blocks)]
        self._step = self._fixed[shape]
        num_tokens = len(batch.kv_slots)
        for fixed, array, padding in zip(
            self._step, step, (self._spare * self._spec.block_size, self._spare, 1), strict=True
        ):
            fixed.fill_(padding)
            fixed[:num_tokens] = torch.from_numpy(array)

    def forward(self, layer, queries, keys, values):
        kv_slots, table, lens = self._step
        self._cache[layer, 0].flatten(0, 1).index_copy_(0, kv_slots, keys)
        self._cache[layer, 1].flatten(0, 1).index_copy_(0, kv_slots, values)
        keys, values = self._cache[layer][:, table].flatten(2, 3).transpose(2, 3)  # [T, kv_heads, L, D] each
        visible = torch.arange(keys.shape[2]) < lens[:, None]
        mixed = F.scaled_dot_product_attention(
            queries[:, :, None],
            keys,
            values,
            attn_mask=visible[:, None, None],
            scale=self._spec.shape.scale,
            enable_gqa=True,
        )
        return mixed[:, :, 0].flatten(1)

    def blocks(self):
        return self._cache.movedim(2, 0)


def _sizes(num_tokens, blocks):
    return (num_tokens,), (num_tokens, blocks), (num_tokens,)
