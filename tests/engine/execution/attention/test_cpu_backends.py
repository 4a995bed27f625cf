"""The CPU backends, the kernels in every variant: against plain attention in float32, and against themselves."""

import random
from dataclasses import replace

import pytest
import torch

from inflight_engine.execution.attention import choose_backend
from inflight_engine.execution.attention.cpu_native import CpuNativeBackend
from inflight_engine.execution.attention.torch_sdpa import TorchSdpaBackend
from inflight_engine.execution.block_copies import DirectCopies
from tests.engine.execution.attention.reference import Workload, make_spec
from tests.engine.native.variants import VARIANTS, kernels, needs_kernels

PIECE = 256
"""Tokens of one softmax in the kernels (`kPiece`)."""
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}


@pytest.fixture(params=[*VARIANTS, "torch-sdpa"])
def backend(request):
    """A function that makes the backend of a spec; bfloat16 on torch rounds weights too."""
    if request.param == "torch-sdpa":
        yield TorchSdpaBackend
    else:
        with kernels(request.param):
            yield CpuNativeBackend


@pytest.fixture(params=VARIANTS)
def native(request):
    with kernels(request.param):
        yield CpuNativeBackend


def random_spec(rng, block_sizes=(16, 32, 48)):
    kv_heads, windows = rng.choice([1, 2, 3]), (None, rng.choice([1, 5, 40, 300]))
    return make_spec(
        layers=2,
        heads=kv_heads * rng.choice([1, 2, 3, 4, 5, 6, 7, 8, 13]),
        kv_heads=kv_heads,
        head_dim=rng.choice([16, 32, 48, 64, 80, 128, 256]),
        windows=rng.choice([(None, None), windows, windows[::-1]]),
        scale=rng.choice([None, 0.3]),
        softcap=rng.choice([None, None, 2.0, 50.0]),
        num_blocks=160,
        block_size=rng.choice(block_sizes),
        dtype=rng.choice([torch.float32, torch.bfloat16]),
    )


def random_steps(rng, lengths):
    """Steps (decodes, chunks) after which every position of every sequence has been computed once, in order."""
    done = [0] * len(lengths)
    while any(at < length for at, length in zip(done, lengths, strict=True)):
        decodes, chunks = {}, {}
        for i in rng.sample(range(len(lengths)), len(lengths)):
            left = lengths[i] - done[i]
            if not left or rng.random() < 0.2:
                continue
            if rng.random() < 0.5:
                decodes[i] = done[i]
                done[i] += 1
            else:
                count = min(left, rng.choice([1, 2, 7, 16, 60, 400]))
                chunks[i] = (done[i], count)
                done[i] += count
        if decodes or chunks:
            yield decodes, chunks


def run(work, backend, steps):
    """Each layer's results of each sequence, [tokens, heads, D], by steps that compute every position."""
    shape = work.spec.shape
    results = [
        torch.full((shape.num_layers, len(sequence.queries[0]), shape.num_heads, shape.head_dim), torch.nan)
        for sequence in work.sequences
    ]
    for decodes, chunks in steps:
        for layer, rows in enumerate(work.step(backend, decodes, chunks)):
            counts = [1] * len(decodes) + [length for _, length in chunks.values()]
            spans = [*decodes.items(), *((sequence, start) for sequence, (start, _) in chunks.items())]
            for (sequence, start), part in zip(spans, rows.float().split(counts), strict=True):
                results[sequence][layer, start : start + len(part)] = part
    return results


def whole_prompts(lengths):
    return [({}, {i: (0, length)}) for i, length in enumerate(lengths)]


@pytest.mark.parametrize("seed", range(12))
def test_mixed_steps_give_plain_attention(backend, seed):
    rng = random.Random(seed)
    spec = random_spec(rng)
    lengths = [rng.choice([1, 2, 15, 17, 63, 100]), rng.choice([PIECE - 1, PIECE, PIECE + 1, 2 * PIECE + 90])]
    work = Workload(spec, lengths, seed)
    results = run(work, backend(spec), random_steps(rng, lengths))
    for sequence, length in enumerate(lengths):
        positions = sorted({0, length - 1, *rng.choices(range(length), k=12)})
        for layer, got in enumerate(results[sequence]):
            expected = work.expected(layer, sequence, positions)
            torch.testing.assert_close(got[positions], expected, rtol=TOLERANCE[spec.dtype], atol=TOLERANCE[spec.dtype])


def test_a_chunk_attends_to_the_blocks_that_another_of_the_same_step_fills(backend):
    spec = make_spec(layers=2, block_size=16, num_blocks=40)
    work = Workload(spec, [300])
    work.sequences.append(work.sequences[0])  # a second request with the same blocks
    for layer, rows in enumerate(work.step(backend(spec), {}, {1: (288, 12), 0: (0, 288)})):
        expected = work.expected(layer, 1, range(288, 300))
        torch.testing.assert_close(rows[:12], expected, rtol=TOLERANCE[spec.dtype], atol=TOLERANCE[spec.dtype])


@pytest.mark.parametrize("seed", range(8))
def test_the_bits_depend_neither_on_chunks_nor_on_the_batch_nor_on_threads(native, seed, monkeypatch):
    rng = random.Random(seed)
    spec = random_spec(rng)
    lengths = [rng.choice([1, 33, 100]), rng.choice([PIECE - 1, PIECE + 1, 3 * PIECE + 7]), 50]
    work = Workload(spec, lengths, seed)
    monkeypatch.setattr("torch.get_num_threads", lambda: 3)
    together = run(work, native(spec), random_steps(rng, lengths))
    monkeypatch.setattr("torch.get_num_threads", lambda: 1)
    alone = run(work, native(spec), whole_prompts(lengths))
    for mixed, whole in zip(together, alone, strict=True):
        assert torch.equal(mixed, whole)


def spoil(backend):
    """Every element of the cache becomes no number."""
    backend._cache.fill_(255 if backend._cache.dtype == torch.uint8 else torch.nan)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("softcap", [None, 5.0])
def test_what_others_left_in_a_block_reaches_no_result(backend, dtype, softcap):
    spec = make_spec(layers=2, windows=(None, 9), dtype=dtype, softcap=softcap, num_blocks=80)
    rng = random.Random(3)
    lengths = [1, 16, 17, 40, 300]
    work = Workload(spec, lengths)
    made = backend(spec)
    spoil(made)
    assert all(result.isfinite().all() for result in run(work, made, random_steps(rng, lengths)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_blocks_go_to_host_memory_and_come_back_elsewhere(backend, dtype):
    spec = make_spec(layers=2, dtype=dtype, num_blocks=20)
    work = Workload(spec, [40])
    made = backend(spec)
    sequence = work.sequences[0]
    work.step(made, {}, {0: (0, 39)})
    stayed = [result.clone() for result in work.step(made, {0: 39}, {})]
    host = torch.zeros(5, spec.shape.kv_bytes_per_token(dtype.itemsize) * spec.block_size, dtype=torch.uint8)
    copies = DirectCopies(made.blocks(), host)
    copies.copy_out(sequence.block_ids.tolist(), [4, 0, 2])
    spoil(made)
    sequence.block_ids = (sequence.block_ids + 1) % spec.num_blocks
    copies.copy_in([4, 0, 2], sequence.block_ids.tolist())
    for result, before in zip(work.step(made, {0: 39}, {}), stayed, strict=True):
        assert torch.equal(result, before)


@pytest.mark.parametrize("seed", range(3))
def test_torch_serves_what_the_kernels_do_not(seed):
    rng = random.Random(seed)
    spec = random_spec(rng, block_sizes=(4, 10))
    spec = replace(spec, shape=replace(spec.shape, head_dim=24))
    work = Workload(spec, [30, 9], seed)
    results = run(work, choose_backend("auto", spec)(spec), random_steps(rng, [30, 9]))
    for sequence, length in enumerate([30, 9]):
        for layer, got in enumerate(results[sequence]):
            expected = work.expected(layer, sequence, range(length))
            torch.testing.assert_close(got, expected, rtol=TOLERANCE[spec.dtype], atol=TOLERANCE[spec.dtype])


@needs_kernels
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"block_size": 24}, "block_size is 24"),
        ({"head_dim": 72}, "head_dim is 72"),
        ({"head_dim": 272}, "head_dim is 272"),
        ({"dtype": torch.float16}, "not in torch.float16"),
        ({"cache_dtype": torch.float8_e4m3fn}, "not in torch.float8_e4m3fn"),
        ({"device": "meta"}, "CPU only"),
    ],
)
def test_the_kernels_say_what_they_cannot_serve(change, reason):
    assert CpuNativeBackend.why_not(make_spec()) is None
    assert reason in CpuNativeBackend.why_not(make_spec(**change))
    with pytest.raises(ValueError, match=f"cpu-native cannot be used: .*{reason}"):
        choose_backend("cpu-native", make_spec(**change))


def test_without_the_kernels_torch_attends():
    with kernels("off"):
        assert "off" in CpuNativeBackend.why_not(make_spec())
        assert choose_backend("auto", make_spec()) is TorchSdpaBackend


def test_padded_batches_are_refused(backend):
    work = Workload(make_spec(), [3])
    with pytest.raises(ValueError, match="no padded batches"):
        work.step(backend(work.spec), {}, {0: (0, 3)}, shape=(4, 2))
