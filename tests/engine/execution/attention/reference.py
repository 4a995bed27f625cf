"""Random mixed steps, and paged attention over them in plain float32 torch, to be read rather than to be fast."""

from dataclasses import dataclass

import numpy as np
import torch

from inflight_engine.execution.attention.base import AttentionBatch, AttentionSpec, ChunkSpan, StepShape
from inflight_engine.models.checkpoints.shape import ModelShape


def make_spec(
    *,
    layers=1,
    heads=4,
    kv_heads=2,
    head_dim=64,
    windows=None,
    scale=None,
    softcap=None,
    num_blocks=40,
    block_size=16,
    dtype=torch.float32,
    cache_dtype=None,
    max_num_seqs=8,
    max_num_batched_tokens=256,
    max_model_len=256,
    batch_invariant=False,
    kv_scales=None,
    device="cpu",
):
    shape = ModelShape(
        "Test", 100, 4096, layers, heads, kv_heads, head_dim, windows or (None,) * layers, scale, softcap
    )
    return AttentionSpec(
        shape,
        num_blocks,
        block_size,
        dtype,
        cache_dtype or dtype,
        torch.device(device),
        max_num_seqs,
        max_num_batched_tokens,
        max_model_len,
        batch_invariant,
        kv_scales,
    )


@dataclass
class Sequence:
    """keys, values: [layers, tokens, kv_heads, D], of the whole sequence; queries likewise."""

    block_ids: np.ndarray
    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor


class Workload:
    """Sequences with blocks of their own, shuffled over the cache. Keys and values are as large as the scales of the
    cache are made for."""

    def __init__(self, spec, lengths, seed=0):
        self.spec = spec
        shape = spec.shape
        ones = torch.ones(shape.num_layers, 2, shape.num_kv_heads)
        self.scales = (ones if spec.kv_scales is None else spec.kv_scales)[:, :, None, :, None]  # [layers, 2, 1, H, 1]
        generator = torch.Generator().manual_seed(seed)
        blocks = np.random.default_rng(seed).permutation(spec.num_blocks)
        self.sequences = []
        taken = 0
        for length in lengths:
            count = -(-length // spec.block_size)
            ids = blocks[taken : taken + count]
            taken += count

            def normal(heads, tokens=length):
                size = (shape.num_layers, tokens, heads, shape.head_dim)
                # What the cache's dtype holds exactly: Triton's interpreter rounds to fp8 unlike the hardware.
                return torch.randn(size, generator=generator).to(spec.cache_dtype).to(spec.dtype)

            queries, keys, values = map(normal, (shape.num_heads, shape.num_kv_heads, shape.num_kv_heads))
            keys, values = (x * self.scales[:, i].to(x.dtype) for i, x in enumerate((keys, values)))
            sequence = Sequence(ids, queries, keys, values)
            assert len(ids) == count, "the cache is too small for the test"
            self.sequences.append(sequence)

    def step(self, backend, decodes, chunks, shape=None):
        """Run one step on every layer and return each layer's result [T, heads, D].

        decodes: {sequence: position}. chunks: {sequence: (start, length)}. shape: (tokens, sequences) with padding.
        """
        spec = self.spec
        batch = self.batch(decodes, chunks)
        backend.prepare(batch, StepShape(*shape) if shape else None)
        num_padded = shape[0] - len(batch.kv_slots) if shape else 0
        results = []
        for layer in range(spec.shape.num_layers):
            rows = [self.packed(layer, name, decodes, chunks, num_padded) for name in ("queries", "keys", "values")]
            results.append(backend.forward(layer, *rows).view(len(rows[0]), spec.shape.num_heads, -1))
        return results

    def fill(self, backend, chunks):
        """Put the chunks' keys and values into a GPU backend's cache without attending, which takes its time."""
        slots = self.batch({}, chunks).kv_slots
        blocks, offsets = slots // self.spec.block_size, slots % self.spec.block_size
        for layer in range(self.spec.shape.num_layers):
            for which, name in enumerate(("keys", "values")):
                rows = self.packed(layer, name, {}, chunks, 0) / self.scales[layer, which]
                backend._cache[layer][blocks, which, :, offsets] = rows.to(self.spec.cache_dtype)

    def batch(self, decodes, chunks):
        slots = [self._slots(sequence, [position]) for sequence, position in decodes.items()]
        longest = max(len(sequence.block_ids) for sequence in self.sequences)
        table = np.zeros((len(self.sequences), longest), np.int64)
        for row, sequence in enumerate(self.sequences):
            table[row, : len(sequence.block_ids)] = sequence.block_ids
        spans = []
        first = len(decodes)
        for sequence, (start, length) in chunks.items():
            spans.append(ChunkSpan(sequence, first, length, start))
            slots.append(self._slots(sequence, range(start, start + length)))
            first += length
        context_lens = np.array([position + 1 for position in decodes.values()], np.int64)
        rows = np.array(list(decodes), np.intp)
        return AttentionBatch(np.concatenate(slots), rows, context_lens, tuple(spans), table, np.arange(table.size))

    def expected(self, layer, sequence, positions):
        """[positions, heads, D] in float32."""
        data = self.sequences[sequence]
        return torch.stack([self._attend(layer, data, position) for position in positions])

    def _attend(self, layer, data, position):
        shape = self.spec.shape
        window = shape.sliding_windows[layer]
        seen = slice(0 if window is None else max(0, position - window + 1), position + 1)
        group = shape.num_heads // shape.num_kv_heads
        keys, values = (kept[layer, seen].float().repeat_interleave(group, 1) for kept in (data.keys, data.values))
        scores = torch.einsum("hd,nhd->hn", data.queries[layer, position].float(), keys)
        scores = scores * (shape.head_dim**-0.5 if shape.scale is None else shape.scale)
        if shape.softcap is not None:
            scores = shape.softcap * torch.tanh(scores / shape.softcap)
        return torch.einsum("hn,nhd->hd", scores.softmax(-1), values)

    def _slots(self, sequence, positions):
        size = self.spec.block_size
        ids = self.sequences[sequence].block_ids
        return np.array([ids[position // size] * size + position % size for position in positions], np.int64)

    def packed(self, layer, name, decodes, chunks, num_padded):
        parts = [
            getattr(self.sequences[sequence], name)[layer, position : position + 1]
            for sequence, position in decodes.items()
        ]
        parts += [
            getattr(self.sequences[sequence], name)[layer, start : start + length]
            for sequence, (start, length) in chunks.items()
        ]
        if num_padded:
            parts.append(torch.full((num_padded, *parts[0].shape[1:]), float("nan"), dtype=parts[0].dtype))
        return torch.cat(parts)
