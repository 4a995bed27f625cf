"""The Triton backend in Triton's interpreter against plain float32 attention. `test_triton_interpreted` runs this file
in a process of its own, because whether Triton interprets is settled when it is imported."""

import random
from dataclasses import replace
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from triton.runtime import interpreter

from inflight_engine.execution import block_copies
from inflight_engine.execution.attention.base import AttentionBatch, StepShape
from inflight_engine.execution.attention.triton_paged import TritonBackend
from inflight_engine.execution.attention.triton_tiles import Tiles
from inflight_engine.execution.block_copies import StagedCopies
from tests.engine.execution.attention.reference import Workload, make_spec

TOLERANCES = {torch.float32: 2e-5, torch.float16: 4e-3}
FP8_SCALES = torch.tensor([[[512.0, 64.0], [2.0**-12, 2.0**-9]], [[0.25, 1024.0], [2.0**-14, 8.0]]])
"""[layers, 2, kv_heads]: without them keys of some 2,000 would be 448, and values of 0.001 would be 0. Powers of two
give exact quotients, which `Workload` needs."""
FP8_SCALED = {
    "layers": 2,
    "head_dim": 16,
    "scale": 2.0**-11,
    "cache_dtype": torch.float8_e4m3fn,
    "kv_scales": FP8_SCALES,
}


def small_tiles(backend):
    """Tiles so small that short sequences have many of them."""
    group = backend._group
    backend._decode_tiles = backend._prefill_tiles = Tiles(rows=16, keys=16, num_warps=4, num_stages=1)
    backend._staging._tile_queries = backend._prefill_tiles.queries(group)


def make_backend(spec, poison=True):
    assert TritonBackend.why_not(spec) is None
    backend = TritonBackend(spec)
    if poison:  # nothing that was not written may be looked at
        backend._cache.fill_(float("nan"))
    return backend


def check(workload, results, decodes, chunks):
    tolerance = TOLERANCES[workload.spec.dtype]
    for layer, result in enumerate(results):
        row = 0
        for sequence, position in decodes.items():
            expected = workload.expected(layer, sequence, [position])
            torch.testing.assert_close(result[row : row + 1].float(), expected, atol=tolerance, rtol=tolerance)
            row += 1
        for sequence, (start, length) in chunks.items():
            expected = workload.expected(layer, sequence, range(start, start + length))
            torch.testing.assert_close(result[row : row + length].float(), expected, atol=tolerance, rtol=tolerance)
            row += length


def run_mixed_steps(spec, tiles=None):
    """Prompts in chunks of many sizes, beside decodes, until all sequences are through."""
    rng = random.Random(7)
    lengths = [2, 18, 35]
    workload = Workload(spec, lengths)
    backend = make_backend(spec)
    if tiles is not None:
        tiles(backend)
    computed = [0] * len(lengths)
    prompts = [1, 17, 33]
    while computed != lengths:
        decodes = {s: n for s, n in enumerate(computed) if prompts[s] <= n < lengths[s]}
        chunks = {}
        for sequence, n in enumerate(computed):
            if n < prompts[sequence] and (rng.random() < 0.7 or not decodes):
                chunks[sequence] = (n, rng.randint(1, prompts[sequence] - n))
        check(workload, workload.step(backend, decodes, chunks), decodes, chunks)
        for sequence in decodes:
            computed[sequence] += 1
        for sequence, (_, length) in chunks.items():
            computed[sequence] += length


@pytest.mark.parametrize(
    "options",
    [
        {"heads": 6, "kv_heads": 2, "block_size": 48},
        {"heads": 3, "kv_heads": 3, "head_dim": 16, "windows": (11,)},
        {"heads": 7, "kv_heads": 1, "head_dim": 80, "softcap": 0.7},
        {"kv_heads": 1, "head_dim": 96, "scale": 0.3},
        {"heads": 2, "kv_heads": 1, "head_dim": 256, "block_size": 256, "num_blocks": 6},
        {"kv_heads": 1, "head_dim": 16, "windows": (1, 25), "layers": 2, "softcap": 3.0, "scale": 0.5},
        {"kv_heads": 1, "head_dim": 128, "dtype": torch.float16},
        {"kv_heads": 1, "head_dim": 32, "dtype": torch.float16, "cache_dtype": torch.float8_e4m3fn, "windows": (20,)},
        {"kv_heads": 1, "head_dim": 32, "cache_dtype": torch.float8_e4m3fn, "batch_invariant": True},
    ],
    ids=str,
)
def test_mixed_steps_equal_plain_attention(options):
    run_mixed_steps(make_spec(**options), small_tiles)


def test_a_chunk_attends_to_the_blocks_that_another_of_the_same_step_fills():
    workload = Workload(make_spec(head_dim=16), [40])
    workload.sequences.append(workload.sequences[0])  # a second request with the same blocks
    chunks = {1: (32, 8), 0: (0, 32)}
    check(workload, workload.step(make_backend(workload.spec), {}, chunks), {}, chunks)


def test_a_decode_split_over_programs_equals_plain_attention():
    spec = make_spec(heads=4, kv_heads=1, head_dim=32, max_model_len=4096, max_num_seqs=4, num_blocks=80)
    workload = Workload(spec, [300, 1, 129, 600])
    backend = make_backend(spec)
    chunks = {sequence: (0, len(data.keys[0]) - 1) for sequence, data in enumerate(workload.sequences)}
    del chunks[1]
    workload.fill(backend, chunks)
    decodes = {3: 599, 1: 0, 0: 299, 2: 128}
    assert backend._plan(4).num_splits > 1
    check(workload, workload.step(backend, decodes, {}), decodes, {})


@pytest.fixture
def products_of_rows(monkeypatch):
    """A row of a product does not depend on where in the matrix it lies, as on a GPU; in numpy's BLAS it does on some
    CPUs."""

    def dot(self, a, b, d, input_precision, max_num_imprecise_acc):
        product = np.einsum("...mk,...kn->...mn", a.data, b.data, dtype=d.data.dtype)
        return interpreter.TensorHandle(product + d.data, d.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", dot)


@pytest.mark.usefixtures("products_of_rows")
@pytest.mark.parametrize("window", [None, 17])
def test_batch_invariant_results_are_the_same_bits_however_a_token_came(window):
    spec = make_spec(head_dim=16, windows=(window,), num_blocks=30, batch_invariant=True)
    workload = Workload(spec, [1, 44, 33, 100])
    alone, together = make_backend(spec), make_backend(spec)
    for backend in (alone, together):
        small_tiles(backend)
        workload.fill(backend, {1: (0, 43), 2: (0, 32), 3: (0, 99)})
    decodes = {0: 0, 1: 43, 2: 32, 3: 99}
    (company,) = workload.step(together, decodes, {}, shape=(5, 5))
    for row, (sequence, position) in enumerate(decodes.items()):
        (decoded,) = workload.step(alone, {sequence: position}, {})
        assert torch.equal(decoded[0], company[row])
    (whole,) = workload.step(alone, {}, {1: (20, 24)})
    (first,) = workload.step(together, {}, {1: (20, 17)})
    (rest,) = workload.step(together, {0: 0}, {1: (37, 7)})
    assert torch.equal(torch.cat([first, rest[1:]]), whole)
    assert torch.equal(whole[-1], company[1])


def test_padded_rows_are_not_written_and_change_nothing():
    spec = make_spec(head_dim=16, layers=2)
    workload = Workload(spec, [20, 35])
    backend, padded = make_backend(spec), make_backend(spec)
    for each in (backend, padded):
        workload.fill(each, {0: (0, 19), 1: (0, 34)})
    before = padded._cache.clone()
    expected = workload.step(backend, {0: 19, 1: 34}, {})
    results = workload.step(padded, {0: 19, 1: 34}, {}, shape=(7, 7))
    for layer in range(2):
        # Their queries are NaN, which must reach nobody.
        torch.testing.assert_close(results[layer][:2], expected[layer], atol=1e-6, rtol=1e-6)
    changed = (padded._cache != before) & ~(padded._cache.isnan() & before.isnan())
    assert int(changed.sum()) == 2 * 2 * 2 * 2 * 16  # layers, sequences, keys and values, heads, dimensions


@pytest.mark.parametrize("batch_invariant", [False, True])
def test_what_a_graph_captured_serves_later_steps_of_the_same_rows(batch_invariant):
    spec = make_spec(head_dim=16, batch_invariant=batch_invariant)
    workload = Workload(spec, [2, 100, 30])
    backend = make_backend(spec)
    workload.fill(backend, {0: (0, 1), 1: (0, 99), 2: (0, 29)})
    backend.prepare(workload.batch({0: 1}, {}), StepShape(3, 3))
    captured = backend._step  # all that a graph's kernels know: addresses, and the number of rows
    workload.step(backend, {1: 99}, {2: (3, 20)})
    decodes = {1: 99, 2: 29}
    backend.prepare(workload.batch(decodes, {}), StepShape(3, 3))
    backend._step = captured
    parts = [workload.packed(0, name, decodes, {}, 1) for name in ("queries", "keys", "values")]
    check(workload, [backend.forward(0, *parts).view(3, 4, 16)], decodes, {})


@pytest.mark.parametrize(
    "options", [{}, {"batch_invariant": True}, {"windows": (9,), "softcap": 2.0}, {"max_model_len": 4096}], ids=str
)
def test_what_a_graph_captured_of_a_step_with_chunks_serves_all_steps_of_its_shape(options):
    spec = make_spec(head_dim=16, heads=2, kv_heads=1, **options)
    workload = Workload(spec, [1, 100, 30, 41])
    backend = make_backend(spec)
    small_tiles(backend)
    workload.fill(backend, {1: (0, 99), 2: (0, 29)})
    shape, nobody = StepShape(24, 4), np.zeros(0, np.int64)
    backend.prepare(AttentionBatch(nobody, nobody, nobody, (), nobody[:, None], nobody), shape)
    captured = backend._step  # all that a graph's kernels know: addresses and sizes
    before = backend._cache.clone()
    nothing = [torch.full((24, heads, 16), float("nan")) for heads in (2, 1, 1)]
    backend.forward(0, *nothing)
    assert torch.equal(backend._cache.nan_to_num(7), before.nan_to_num(7))
    for decodes, chunks in [
        ({1: 99, 2: 29}, {3: (0, 17), 0: (0, 1)}),
        ({}, {3: (17, 24)}),
        ({1: 99, 0: 0}, {2: (28, 2)}),
    ]:
        batch = workload.batch(decodes, chunks)
        backend.prepare(batch, shape)
        backend._step = captured
        num_padded = 24 - len(batch.kv_slots)
        parts = [workload.packed(0, name, decodes, chunks, num_padded) for name in ("queries", "keys", "values")]
        check(workload, [backend.forward(0, *parts).view(24, 2, 16)], decodes, chunks)


def test_blocks_copied_out_and_in_again_hold_the_same_bytes(monkeypatch):
    monkeypatch.setattr(block_copies, "_Streams", MagicMock())
    spec = make_spec(head_dim=16, layers=2, cache_dtype=torch.float8_e4m3fn)
    workload = Workload(spec, [40])
    backend = make_backend(spec)
    workload.step(backend, {}, {0: (0, 39)})
    block_bytes = spec.shape.kv_bytes_per_token(1) * spec.block_size
    host = torch.zeros(4, block_bytes, dtype=torch.uint8)
    ids = workload.sequences[0].block_ids.tolist()
    copies = StagedCopies(backend.blocks(), host)
    copies.copy_out(ids, [3, 0, 1])
    free = [block for block in range(spec.num_blocks) if block not in ids][:3]
    copies.copy_in([3, 0, 1], free)
    workload.sequences[0].block_ids[:] = free
    decodes = {0: 39}
    check(workload, workload.step(backend, decodes, {}), decodes, {})


def distances_of_heads(workload, results, spans):
    """[layers, heads]: relative to each head's own values, of which some are a thousand times others."""
    distances = []
    for layer, result in enumerate(results):
        expected = torch.cat([workload.expected(layer, sequence, positions) for sequence, positions in spans])
        distances.append(((result - expected).norm(dim=-1) / expected.norm(dim=-1)).amax(0))
    return torch.stack(distances)


@pytest.mark.parametrize(
    ("options", "decodes", "num_splits"),
    [({}, {0: 18}, 2), ({}, {0: 18, 2: 3}, 1), ({"softcap": 0.7, "batch_invariant": True}, {0: 18}, 2)],
    ids=str,
)
def test_keys_and_values_far_from_1_survive_fp8_by_their_scales(options, decodes, num_splits):
    spec = make_spec(**FP8_SCALED | options)
    workload = Workload(spec, [19, 6, 4])
    backend = make_backend(spec)
    small_tiles(backend)
    assert backend._plan(len(decodes)).num_splits == num_splits
    workload.fill(backend, {0: (0, 18), 2: (0, 3)})
    results = workload.step(backend, decodes, {1: (0, 6)})
    spans = [(sequence, [position]) for sequence, position in decodes.items()]
    assert (distances_of_heads(workload, results, [*spans, (1, range(6))]) < 1e-4).all()


def test_keys_and_values_far_from_1_do_not_survive_fp8_without_scales():
    spec = make_spec(**FP8_SCALED)
    workload = Workload(spec, [6])
    results = workload.step(make_backend(replace(spec, kv_scales=None)), {}, {0: (0, 6)})
    assert (distances_of_heads(workload, results, [(0, range(6))]) > 0.05).all()


def test_fp8_keeps_what_is_out_of_its_range_as_its_largest():
    spec = make_spec(head_dim=16, cache_dtype=torch.float8_e4m3fn)
    workload = Workload(spec, [3])
    workload.sequences[0].keys.fill_(1e4)
    workload.sequences[0].values.fill_(-1e4)
    backend = make_backend(spec)
    workload.step(backend, {}, {0: (0, 3)})
    block = backend._cache[0, workload.sequences[0].block_ids[0], :, :, :3].float()
    assert (block[0] == 448).all()
    assert (block[1] == -448).all()


def test_keys_and_values_may_be_parts_of_one_projection():
    spec = make_spec(heads=2, kv_heads=2, head_dim=16)
    workload = Workload(spec, [9])
    backend = make_backend(spec)
    backend.prepare(workload.batch({}, {0: (0, 9)}))
    data = workload.sequences[0]
    projection = torch.cat([data.queries[0], data.keys[0], data.values[0]], dim=1)  # [9, 6, 16]
    result = backend.forward(0, projection[:, :2], projection[:, 2:4], projection[:, 4:]).view(9, 2, 16)
    torch.testing.assert_close(result, workload.expected(0, 0, range(9)), atol=2e-5, rtol=2e-5)


def test_the_runner_gives_transformers_tokens(tmp_path):
    from inflight_engine.request import SamplingParams
    from tests.engine.execution.driver import Driver
    from tests.engine.execution.tiny_model import SWAP_SPACE, generate, make_model, tiny_runner

    model = make_model(tmp_path, "qwen3")
    prompts = [[5, 6, 7], [11] * 2 + [3, 9, 40, 2] * 4]
    runner = tiny_runner(tmp_path, attention_backend="triton", block_size=16, swap_space=SWAP_SPACE)
    assert runner.info.attention_backend == "triton"
    driver = Driver(runner, chunk=15, max_running=2, preempt_every=3, swap=True, rng=random.Random(2))
    assert driver.run(prompts, SamplingParams(max_tokens=4)) == [generate(model, prompt, 4) for prompt in prompts]
    assert driver.num_swaps > 0
