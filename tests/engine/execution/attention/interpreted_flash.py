"""The backend on FlashAttention's kernels, which need a GPU: a stand-in with their parameters, layouts and conditions
computes in plain torch what they are documented to compute. The kernel that writes the cache is Triton's, interpreted,
so `test_triton_interpreted` runs this file in a process of its own."""

import itertools
import types

import pytest
import torch

from inflight_engine.execution.attention import flash_attn_3
from inflight_engine.execution.attention.base import StepShape
from inflight_engine.execution.attention.flash_attn_3 import FlashAttn3Backend
from tests.engine.execution.attention.reference import Workload, make_spec

CHECKED = 8
"""Queries of a chunk, the last ones, that are computed and looked at: plain torch takes its time."""


def paged(query, position, keys, values, blocks, scale, window, softcap):
    """[H, D] of one query [H, D]; keys and values: [num_blocks, block_size, kv_heads, D]."""
    group = query.shape[0] // keys.shape[2]
    first = 0 if window[0] < 0 else max(0, position - window[0])
    seen = [(blocks[n // keys.shape[1]], n % keys.shape[1]) for n in range(first, position + 1)]
    key, value = (
        torch.stack([cache[block, offset] for block, offset in seen]).float().repeat_interleave(group, 1)
        for cache in (keys, values)
    )
    scores = torch.einsum("hd,nhd->hn", query.float(), key) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    return torch.einsum("hn,nhd->hd", scores.softmax(-1), value).to(query.dtype)


def check_cache(keys, values, block_table, *int_tensors):
    for cache in (keys, values):
        assert cache.stride(-1) == 1
    for tensor in (block_table, *int_tensors):
        assert tensor.dtype == torch.int32
        assert tensor.stride(-1) == 1


def packed(q, keys, values, starts, contexts, block_table, scale, window, softcap):
    """Outputs of sequences packed one after another, NaN elsewhere; contexts: tokens of each; with 0, its rows are
    0."""
    out = torch.full_like(q, float("nan"))
    for row, context in enumerate(contexts):
        length = starts[row + 1] - starts[row]
        out[starts[row] : starts[row + 1]] = 0.0
        for i in range(length)[-CHECKED:] if context else ():
            at = (context - length + i, keys, values, block_table[row].tolist(), scale, window, softcap)
            out[starts[row] + i] = paged(q[starts[row] + i], *at)
    return out


def flash_attn_with_kvcache(
    q,
    k_cache,
    v_cache,
    *,
    cache_seqlens,
    page_table,
    cu_seqlens_q=None,
    max_seqlen_q=None,
    softmax_scale,
    causal,
    window_size=(-1, -1),
    softcap=0.0,
):
    """Without cu_seqlens_q, q is [batch, length, H, D], else packed."""
    check_cache(k_cache, v_cache, page_table, cache_seqlens)
    assert causal
    assert page_table.shape[1] * k_cache.shape[1] == 1024, "a graph's launches have the width they were captured with"
    batch = len(cache_seqlens)
    assert len(page_table) == batch
    if cu_seqlens_q is None:
        assert q.shape[:2] == (batch, 1)
        starts = list(range(batch + 1))
    else:
        check_cache(k_cache, v_cache, cu_seqlens_q)
        starts = cu_seqlens_q.tolist()
        assert len(starts) == batch + 1
        assert max(b - a for a, b in itertools.pairwise(starts)) <= max_seqlen_q
    rows = q.flatten(0, -3)
    contexts = cache_seqlens.tolist()
    out = packed(rows, k_cache, v_cache, starts, contexts, page_table, softmax_scale, window_size, softcap)
    return out.view_as(q)


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch):
    library = types.SimpleNamespace(flash_attn_with_kvcache=flash_attn_with_kvcache)
    monkeypatch.setattr(flash_attn_3, "_library", lambda: library)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"block_size": 16, "num_blocks": 80},
        {"windows": (None, 9), "layers": 2, "softcap": 2.0, "scale": 0.7},
        {"kv_heads": 4},
    ],
    ids=str,
)
def test_steps_equal_plain_attention(options):
    spec = make_spec(**{"head_dim": 16, "block_size": 256, "num_blocks": 5, "max_model_len": 1024} | options)
    workload = Workload(spec, [21, 14, 260])
    backend = FlashAttn3Backend(spec)
    workload.fill(backend, {2: (0, 252)})
    for decodes, chunks, shape in [
        ({}, {0: (0, 20), 1: (0, 6)}, None),
        ({0: 20}, {1: (6, 7), 2: (252, 7)}, None),
        ({1: 13, 2: 259}, {}, (5, 5)),
        ({0: 20}, {1: (6, 7), 2: (252, 7)}, (18, 5)),
    ]:
        results = workload.step(backend, decodes, chunks, shape)
        for layer, result in enumerate(results):
            spans = {sequence: (position, 1) for sequence, position in decodes.items()} | chunks
            row = 0
            for sequence, (start, length) in spans.items():
                checked = range(start, start + length)[-CHECKED:]
                expected = workload.expected(layer, sequence, checked)
                got = result[row : row + length][-CHECKED:]
                torch.testing.assert_close(got, expected, atol=2e-5, rtol=2e-5)
                row += length


def test_what_a_graph_captured_serves_later_steps_of_the_same_rows():
    spec = make_spec(head_dim=16, block_size=256, num_blocks=5, max_model_len=1024)
    workload = Workload(spec, [3, 262, 1])
    backend = FlashAttn3Backend(spec)
    workload.fill(backend, {0: (0, 2), 1: (0, 261)})
    backend.prepare(workload.batch({2: 0}, {}), StepShape(3, 3))
    captured = backend._step
    decodes = {1: 261, 0: 2}
    backend.prepare(workload.batch(decodes, {}), StepShape(3, 3))
    backend._step = captured
    parts = [workload.packed(0, name, decodes, {}, 1) for name in ("queries", "keys", "values")]
    result = backend.forward(0, *parts).view(3, 4, 16)
    for row, (sequence, position) in enumerate(decodes.items()):
        torch.testing.assert_close(result[row], workload.expected(0, sequence, [position])[0], atol=2e-5, rtol=2e-5)
