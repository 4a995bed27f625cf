"""The forward pass in the CPU kernels: against transformers, against the torch forward pass, and against itself."""

import errno
import functools
import os
import random
from itertools import pairwise

import numpy as np
import pytest
import torch

from inflight_engine.execution import load
from inflight_engine.execution.attention.base import AttentionBatch, AttentionSpec, ChunkSpan
from inflight_engine.execution.attention.cpu_native import CpuNativeBackend
from inflight_engine.execution.attention.torch_sdpa import TorchSdpaBackend
from inflight_engine.execution.cpu_decoder import NativeDecoder
from inflight_engine.execution.load import load_model
from inflight_engine.models.checkpoints.config import load_model_config
from inflight_engine.models.checkpoints.source import resolve
from inflight_engine.models.llama import LlamaModel
from inflight_engine.models.parallel import SingleProcess
from inflight_engine.native.kept_weights import DESCRIPTOR_VARIABLE
from inflight_engine.native.library import EMULATED, KernelError
from inflight_engine.request import SamplingParams
from inflight_settings.engine import EngineConfig
from tests.engine.execution import tiny_model
from tests.engine.execution.driver import Driver
from tests.engine.execution.tiny_model import SWAP_SPACE, VOCAB, generate, make_model, prompts_for, tiny_runner
from tests.engine.native.variants import VARIANTS, kernels, needs_kernels

pytestmark = needs_kernels
# As in `tiny_model`, but with heads that the kernels take, and sizes that fill no panel and no group.
SIZES = {"hidden_size": 66, "intermediate_size": 74, "head_dim": 16}
BLOCK = 16
CPU = torch.device("cpu")
FASTEST = VARIANTS[0] if VARIANTS else "off"
WITH_TILES = [name for name in VARIANTS if name in (FASTEST, EMULATED)]


@pytest.fixture(autouse=True)
def sizes(monkeypatch):
    kinds = {kind: (family, options | SIZES) for kind, (family, options) in tiny_model.KINDS.items()}
    monkeypatch.setattr(tiny_model, "KINDS", kinds)


@pytest.mark.parametrize("kind", tiny_model.KINDS)
def test_tokens_equal_transformers(tmp_path, kind):
    check_tokens(tmp_path, kind, (FASTEST, "off"))


def test_tokens_equal_transformers_in_every_variant(tmp_path):
    check_tokens(tmp_path, "qwen3", VARIANTS[1:])


def check_tokens(tmp_path, kind, variants):
    model = make_model(tmp_path, kind)
    prompts = prompts_for(random.Random(kind))
    expected = [generate(model, prompt, 10) for prompt in prompts]
    for variant in variants:
        with kernels(variant):
            runner = tiny_runner(tmp_path, block_size=BLOCK, swap_space=SWAP_SPACE)
            assert runner.info.attention_backend == ("torch-sdpa" if variant == "off" else "cpu-native")
            driver = Driver(runner, rng=random.Random(1))
            assert driver.run(prompts, SamplingParams(max_tokens=10)) == expected, variant
            driver = Driver(runner, chunk=9, max_running=3, preempt_every=3, swap=True, rng=random.Random(2))
            assert driver.run(prompts, SamplingParams(max_tokens=10)) == expected, variant


class Bench:
    """A model and the attention it runs with, on sequences of their own blocks."""

    def __init__(self, folder, dtype="float32", quantization="none", variant=FASTEST, native=True, keep="off"):
        number_type = getattr(torch, dtype)
        backend = "auto" if native else "torch-sdpa"
        options = {"quantization": quantization, "block_size": BLOCK, "attention_backend": backend}
        config = EngineConfig(str(folder), **options, keep_weights=keep)
        files = resolve(str(folder), "main")
        model_config = load_model_config(files)
        spec = AttentionSpec(model_config.shape, 64, BLOCK, number_type, number_type, CPU, 32, 512, 256)
        with kernels(variant):
            self.model = load_model(config, files, model_config, number_type, CPU, SingleProcess())
            self.attention = (CpuNativeBackend if native else TorchSdpaBackend)(spec)
        assert isinstance(self.model, NativeDecoder if native else LlamaModel)

    def logits(self, *steps, sampled_rows=None):
        """Logits of every token of the steps, each a list of (sequence, start, token ids), or of some of a step's
        tokens."""
        return [self._step(chunks, sampled_rows) for chunks in steps]

    def _step(self, chunks, sampled_rows):
        ids, positions, slots, spans = [], [], [], []
        for sequence, start, tokens in chunks:
            at = np.arange(start, start + len(tokens))
            blocks = np.arange(sequence * 8, sequence * 8 + -(-(start + len(tokens)) // BLOCK))
            spans.append(ChunkSpan(sequence, len(ids), len(tokens), start))
            slots += list(blocks[at // BLOCK] * BLOCK + at % BLOCK)
            ids += tokens
            positions += list(at)
        none, table = np.zeros(0, np.int64), np.arange(64).reshape(8, 8)
        self.attention.prepare(AttentionBatch(np.array(slots), none, none, tuple(spans), table, none))
        rows = None if sampled_rows is None else torch.tensor(sampled_rows, dtype=torch.int64)
        hidden = self.model.hidden_states(torch.tensor(ids), torch.tensor(positions), self.attention, rows)
        return self.model.logits(hidden).clone()


def tokens(seed, count):
    return [random.Random(seed).randrange(VOCAB) for _ in range(count)]


@pytest.mark.parametrize("kind", ["llama-biases", "qwen3", "llama-mha-tied"])
def test_logits_are_those_of_the_torch_forward_pass(tmp_path, kind):
    make_model(tmp_path, kind)
    step = [(0, 0, tokens(1, 60)), (1, 0, tokens(2, 7))]
    [expected] = Bench(tmp_path, native=False).logits(step)
    for variant in VARIANTS:
        [found] = Bench(tmp_path, variant=variant).logits(step)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * float(expected.std()))


@pytest.mark.parametrize(
    ("dtype", "quantization", "most"),
    [("bfloat16", "none", 0.05), ("float32", "int8", 0.05), ("bfloat16", "int8", 0.07), ("float32", "int4", 0.5)],
)
@pytest.mark.parametrize("variant", VARIANTS)
def test_fewer_bits_move_the_logits_no_further_than_this(tmp_path, dtype, quantization, most, variant):
    """Share of the logits' spread, root mean square; the spread is that of random weights."""
    make_model(tmp_path, "llama-gqa-untied")
    step = [(0, 0, tokens(1, 60))]
    [exact] = Bench(tmp_path, native=False).logits(step)
    [found] = Bench(tmp_path, dtype, quantization, variant).logits(step)
    distance = float((found - exact).pow(2).mean().sqrt() / exact.std())
    assert 0 < distance < most


@pytest.fixture
def memory(monkeypatch):
    """A file for weights that outlive the process, and the times that a model's files were opened."""
    number = os.memfd_create("weights", os.MFD_ALLOW_SEALING)
    monkeypatch.setenv(DESCRIPTOR_VARIABLE, str(number))
    opened, open_weights = [], load.open_weights
    monkeypatch.setattr(load, "open_weights", lambda *of, **how: opened.append(of) or open_weights(*of, **how))
    yield opened
    os.close(number)


@pytest.mark.parametrize("kind", ["llama-biases", "qwen3", "llama-mha-tied"])
@pytest.mark.parametrize(("dtype", "quantization"), [("float32", "none"), ("bfloat16", "int8"), ("float32", "int4")])
def test_weights_that_another_process_kept_are_not_read_and_give_the_same_bits(
    tmp_path, memory, kind, dtype, quantization
):
    make_model(tmp_path, kind)
    step = [(0, 0, tokens(1, 60))]
    [expected] = Bench(tmp_path, dtype, quantization).logits(step)
    memory.clear()
    for _ in range(2):
        assert torch.equal(Bench(tmp_path, dtype, quantization, keep="on").logits(step)[0], expected)
    assert len(memory) == 1


@pytest.mark.parametrize("change", ["quantization", "dtype", "variant", "files", "setting"])
def test_weights_that_would_be_others_are_packed_again(tmp_path, memory, change):
    make_model(tmp_path, "llama-gqa-untied")
    options = {"dtype": "float32", "quantization": "none", "variant": VARIANTS[-1], "keep": "on"}
    Bench(tmp_path, **options)
    others = {"quantization": "int8", "dtype": "bfloat16", "variant": VARIANTS[0], "setting": "off"}
    if change == "files":
        os.utime(tmp_path / "model.safetensors", (0, 0))
    else:
        options[{"setting": "keep"}.get(change, change)] = others[change]
    step = [(0, 0, tokens(1, 60))]
    [found] = Bench(tmp_path, **options).logits(step)
    assert len(memory) == 2
    assert torch.equal(found, Bench(tmp_path, **options | {"keep": "off"}).logits(step)[0])


@pytest.mark.parametrize(
    ("dtype", "quantization"), [("float32", "none"), ("bfloat16", "none"), ("bfloat16", "int8"), ("float32", "int4")]
)
@pytest.mark.parametrize("variant", WITH_TILES)
def test_a_token_is_the_same_bits_in_any_company_and_in_any_chunks(tmp_path, dtype, quantization, variant):
    make_model(tmp_path, "llama-biases")
    mine, others = tokens(3, 100), [tokens(seed, 70) for seed in (4, 5)]
    bench = Bench(tmp_path, dtype, quantization, variant)
    [whole] = bench.logits([(0, 0, mine)])
    parts = bench.logits(
        [(1, 0, others[0][:3]), (0, 0, mine[:40])],
        [(0, 40, mine[40:41])],
        [(0, 41, mine[41:99]), (1, 3, others[0][3:]), (2, 0, others[1])],
        [(2, 70, [1]), (0, 99, mine[99:])],
    )
    rows = [parts[0][3:], parts[1], parts[2][:58], parts[3][1:]]
    assert torch.equal(torch.cat(rows), whole)


@pytest.mark.parametrize(("dtype", "quantization"), [("float32", "none"), ("bfloat16", "none"), ("bfloat16", "int8")])
@pytest.mark.parametrize("variant", WITH_TILES)
def test_the_bits_do_not_depend_on_the_number_of_threads(tmp_path, monkeypatch, dtype, quantization, variant):
    make_model(tmp_path, "qwen3")
    steps = [[(0, 0, tokens(1, 3)), (1, 0, tokens(2, count))] for count in (5, 90, 125)]
    found = []
    for num_threads in (1, 2, 3):
        monkeypatch.setattr("torch.get_num_threads", lambda num_threads=num_threads: num_threads)
        found.append(Bench(tmp_path, dtype, quantization, variant).logits(*steps))
    for others in found[1:]:
        assert all(torch.equal(*pair) for pair in zip(found[0], others, strict=True))


@pytest.mark.parametrize(("native", "num_threads"), [(True, 1), (True, 3), (False, 2)])
@pytest.mark.parametrize("count", [2, 48], ids=["by-columns", "by-rows"])
def test_chunks_attend_to_what_others_of_the_same_step_write(tmp_path, monkeypatch, native, num_threads, count):
    """Full blocks: the prefix that one request computes and others find when they are planned with it."""
    monkeypatch.setattr("torch.get_num_threads", lambda: num_threads)
    make_model(tmp_path, "qwen3")
    prompts = [tokens(seed, 80 + count) for seed in (1, 2, 3)]
    [whole] = Bench(tmp_path, native=native).logits([(i, 0, prompt) for i, prompt in enumerate(prompts)])
    cuts = [0, 3 * BLOCK, 5 * BLOCK, None]
    spans = list(pairwise(cuts))
    parts = [(i, first, prompt[first:end]) for first, end in reversed(spans) for i, prompt in enumerate(prompts)]
    [found] = Bench(tmp_path, native=native).logits(parts)
    rows = iter(found.split([len(each) for *_, each in parts]))
    by_sequence = [next(rows) for _ in parts]
    found = torch.cat([by_sequence[3 * part + i] for i in range(3) for part in reversed(range(3))])
    torch.testing.assert_close(found, whole, rtol=0, atol=0.0 if native else 1e-4 * float(whole.std()))


@pytest.mark.parametrize("kind", ["llama-biases", "qwen3"])
@pytest.mark.parametrize(("native", "num_threads"), [(True, 2), (True, 1), (False, 2)])
def test_only_the_sampled_rows_are_computed_to_the_end_and_every_token_is_kept(
    tmp_path, monkeypatch, kind, native, num_threads
):
    monkeypatch.setattr("torch.get_num_threads", lambda: num_threads)
    make_model(tmp_path, kind)
    mine, others = tokens(3, 30), tokens(4, 100)
    first, second = [(0, 0, mine), (1, 0, others)], [(0, 30, [1]), (1, 100, [2])]
    [whole, after] = Bench(tmp_path, native=native).logits(first, second)
    for rows in ([29, 129], [129, 0, 64], list(range(128)), []):
        bench = Bench(tmp_path, native=native)
        [found] = bench.logits(first, sampled_rows=rows)
        [found_after] = bench.logits(second)
        atol = 0.0 if native else 1e-4 * float(whole.std())  # torch's products of fewer rows are other bits
        torch.testing.assert_close(found, whole[rows], rtol=0, atol=atol)
        torch.testing.assert_close(found_after, after, rtol=0, atol=atol)


def test_what_the_model_does_not_have_is_refused(tmp_path):
    make_model(tmp_path, "llama-mqa")
    bench = Bench(tmp_path)
    for chunk in [(0, 0, [VOCAB]), (0, 0, [-1]), (0, 256, [0])]:
        with pytest.raises(KernelError):
            bench.logits([chunk])
    for row in (-1, 1):
        with pytest.raises(KernelError):
            bench.logits([(0, 0, [0])], sampled_rows=[row])


def test_without_a_choice_the_rows_are_all_or_none(tmp_path):
    make_model(tmp_path, "llama-mqa")
    bench = Bench(tmp_path)
    bench.logits([(0, 0, [0, 0])])
    zeros, positions, out = torch.zeros(2, dtype=torch.int64), torch.arange(2), torch.empty((3, SIZES["hidden_size"]))
    forward = functools.partial(bench.model._kernels.inflight_decoder_forward, bench.model._run, bench.attention.step)
    for num_rows, error in ((0, 0), (1, errno.EINVAL), (2, 0), (3, errno.EINVAL)):
        assert forward(zeros.data_ptr(), positions.data_ptr(), 2, None, num_rows, out.data_ptr()) == error


def test_a_step_that_was_not_prepared_for_these_tokens_is_refused(tmp_path, monkeypatch):
    make_model(tmp_path, "llama-mqa")
    bench = Bench(tmp_path)
    bench.logits([(0, 0, tokens(1, 5))])
    with pytest.raises(KernelError, match="6 tokens"):
        bench.model.hidden_states(torch.zeros(6, dtype=torch.int64), torch.arange(6), bench.attention)
    monkeypatch.setattr("torch.get_num_threads", lambda: 3)
    bench.attention = Bench(tmp_path).attention  # of another team
    with pytest.raises(KernelError, match="5 tokens"):
        bench.logits([(0, 0, tokens(1, 5))])


def test_a_step_without_tokens_and_a_choice_without_rows_are_nothing(tmp_path):
    make_model(tmp_path, "llama-mqa")
    bench = Bench(tmp_path)
    for _ in range(2):
        [logits] = bench.logits([])
        assert logits.shape == (0, VOCAB)
        [logits] = bench.logits([(0, 0, tokens(1, 5))])
        assert logits.isfinite().all()


def test_tokens_and_positions_may_lie_apart(tmp_path):
    make_model(tmp_path, "llama-mqa")
    bench = Bench(tmp_path)
    ids = tokens(1, 60)
    [expected] = bench.logits([(0, 0, ids)])
    both = torch.stack([torch.tensor(ids), torch.arange(60)], dim=1)
    hidden = bench.model.hidden_states(both[:, 0], both[:, 1], bench.attention)
    assert torch.equal(bench.model.logits(hidden), expected)


def test_what_cannot_be_native_says_why(tmp_path):
    make_model(tmp_path, "llama-mqa")
    model_config = load_model_config(resolve(str(tmp_path), "main"))

    def reason(dtype=torch.float32, device=CPU, **options):
        config = EngineConfig(str(tmp_path), **{"block_size": BLOCK} | options)
        return NativeDecoder.why_not(config, model_config, dtype, device)

    assert reason() is None
    assert "torch-sdpa" in reason(attention_backend="torch-sdpa")
    assert "block_size" in reason(block_size=8)
    assert "float16" in reason(dtype=torch.float16)
    assert "tensor_parallel_size" in reason(tensor_parallel_size=2)
    assert "CPU only" in reason(device=torch.device("cuda"))
    with kernels("off"):
        assert "off" in reason()
        config = EngineConfig(str(tmp_path), quantization="int8")
        with pytest.raises(ValueError, match=r"quantization int8.*off"):
            load_model(config, resolve(str(tmp_path), "main"), model_config, torch.float32, CPU, SingleProcess())
