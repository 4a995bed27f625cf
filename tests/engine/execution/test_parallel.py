"""Ranks that share every layer give the tokens of one process, and none outlives the others."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from inflight_engine.execution.parallel.plan_frames import PlanDecoder, PlanEncoder
from inflight_engine.execution.parallel.process_group import TorchDistributed
from inflight_engine.execution.parallel.ranks import make_runner
from inflight_engine.execution.parallel.worker import serve
from inflight_engine.models.checkpoints.config import load_model_config
from inflight_engine.models.checkpoints.source import ModelFiles
from inflight_engine.models.checkpoints.weights import open_weights
from inflight_engine.models.llama import LlamaModel
from inflight_engine.models.ops import TorchOps
from inflight_engine.models.parallel import ALONE
from inflight_engine.request import SamplingParams
from inflight_engine.scheduling.plan import SlotStart
from inflight_settings.engine import EngineConfig
from tests.engine.execution.driver import make_plan
from tests.engine.execution.parallel_session import generate, load
from tests.engine.execution.tiny_model import VOCAB, make_model, prompts_for
from tests.engine.grammars.ascii import regex

ROOT = Path(__file__).parents[3]
SECONDS_TO_END = 20


class Threads:
    """`Parallel` between threads: each puts its tensor down, and all look at all of them."""

    def __init__(self, rank, size, tensors, barrier):
        self.rank, self.size = rank, size
        self._tensors, self._barrier = tensors, barrier

    def _exchange(self, x):
        self._tensors[self.rank] = x.clone()
        self._barrier.wait()
        everyones = list(self._tensors)
        self._barrier.wait()
        return everyones

    def all_reduce(self, x):
        return sum(self._exchange(x))

    def all_gather(self, x):
        return torch.cat(self._exchange(x), dim=-1)


class Causal:
    def forward(self, layer, queries, keys, values):
        q, k, v = (x.transpose(0, 1)[None] for x in (queries, keys, values))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0].transpose(0, 1).flatten(1)


def logits_of(folder, ids, parallel):
    files = ModelFiles("test", folder)
    config = load_model_config(files)
    weights = open_weights(files, config)
    model = LlamaModel(config, weights, torch.float32, torch.device("cpu"), TorchOps(), 64, parallel)
    with torch.inference_mode():
        return model.logits(model.hidden_states(ids, torch.arange(len(ids)), Causal()))


def logits_of_ranks(folder, ids, size):
    tensors, barrier, results = [None] * size, threading.Barrier(size, timeout=30), [None] * size

    def run(rank):
        results[rank] = logits_of(folder, ids, Threads(rank, size, tensors, barrier))

    threads = [threading.Thread(target=run, args=[rank]) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        ("llama-gqa-untied", 2),
        ("llama-mha-tied", 3),
        ("llama-mqa", 2),  # both have the one key/value head
        ("llama-gqa-untied", 6),  # three have each key/value head
        ("llama-biases", 2),
        ("qwen2", 2),
        ("qwen3", 2),
    ],
)
def test_shared_out_weights_give_the_logits_of_all_of_them(tmp_path, kind, size):
    # 97 tokens and 80 columns of the MLP: the head's parts are never equal; 96 columns are for every size.
    make_model(tmp_path, kind, {"intermediate_size": 96})
    ids = torch.arange(20) % VOCAB
    expected = logits_of(tmp_path, ids, ALONE)
    for logits in logits_of_ranks(tmp_path, ids, size):
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    make_model(folder, "llama-biases")
    return folder


@pytest.mark.parametrize(("batch_invariant", "total"), [(True, 0.0), (False, 1.0)])
def test_sums_of_more_than_two_ranks_are_taken_in_order_where_the_batch_must_not_matter(
    monkeypatch, tmp_path, batch_invariant, total
):
    terms = torch.tensor([[1e8], [1.0], [-1e8]])  # (1e8 + 1) - 1e8 is 0 in float32, (1e8 - 1e8) + 1 is 1
    monkeypatch.setattr(dist, "init_process_group", lambda *arguments, **options: None)
    monkeypatch.setattr(dist, "all_gather_into_tensor", lambda out, x: out.copy_(terms.view_as(out)))
    monkeypatch.setattr(dist, "all_reduce", lambda x: x.copy_(terms[0] + terms[2] + terms[1]))
    ranks = TorchDistributed(1, 3, tmp_path / "store", torch.device("cpu"), batch_invariant=batch_invariant)
    assert ranks.all_reduce(terms[1:2].clone()).item() == total


def config_for(folder, **options):
    sizes = {"max_num_seqs": 8, "max_num_batched_tokens": 24, "block_size": 4, "num_kv_blocks": 40, "kv_headroom": 0.0}
    swapping = {"preemption": "swap", "swap_space": 40 * 4 * 384 * 2}
    return EngineConfig(str(folder), dtype="float32", device="cpu", **sizes | swapping | options)


def requests():
    rng = random.Random(3)
    return [
        (
            prompt,
            SamplingParams(
                max_tokens=12,
                temperature=0.8 * (i % 2),
                seed=i,
                repetition_penalty=1 + 0.3 * (i % 3 == 2),
                prompt_logprobs=i if i % 4 == 0 else None,
                grammar=regex("[0-9]abcdefg[0-9]xyz[a-z]+") if i % 3 == 2 else None,
            ),
        )
        for i, prompt in enumerate(prompts_for(rng, 10))
    ]


def start(module, *arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'common'}:{ROOT / 'engine_image'}:{ROOT}"},
        **options,
    )


@pytest.fixture
def session(folder):
    """`parallel_session` with two ranks."""
    config = config_for(folder, tensor_parallel_size=2, num_threads=2)
    arguments = [msgspec.json.encode(config).decode(), msgspec.json.encode(requests()).decode()]
    module = "tests.engine.execution.parallel_session"
    process = start(module, *arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.wait()


def test_two_processes_give_the_tokens_of_one_chunked_swapped_and_forced_and_end_together(folder, session):
    alone = generate(*load(config_for(folder)), requests())
    shared = json.loads(session.stdout.readline())
    assert shared["outputs"] == alone["outputs"]
    assert sum(map(bool, alone["prompt_logprobs"])) > 1
    for found, expected in zip(shared["prompt_logprobs"], alone["prompt_logprobs"], strict=True):
        assert found == pytest.approx(expected, abs=1e-3)
    assert min(shared["preemptions"], shared["swapped"], shared["chunked"], shared["forced"]) > 0
    assert shared["forced"] == alone["forced"]
    (worker,) = shared["workers"]
    os.kill(worker, signal.SIGKILL)  # nobody computes: rank 0 must notice all the same
    assert session.wait(SECONDS_TO_END) == 1


def test_a_worker_ends_with_rank_0_whatever_it_waits_for(folder, tmp_path):
    lifeline, held = os.pipe()
    config = msgspec.json.encode(config_for(folder, tensor_parallel_size=2)).decode()
    arguments = ["1", "0", str(lifeline), str(tmp_path / "nobody-comes"), config]
    worker = start("inflight_engine.execution.parallel.worker", *arguments, pass_fds=[lifeline])
    os.close(lifeline)
    with pytest.raises(subprocess.TimeoutExpired):
        worker.wait(2)
    os.close(held)  # what the kernel does when the process that holds it ends
    assert worker.wait(SECONDS_TO_END) == 0


@pytest.mark.parametrize(
    ("kind", "options", "sentence"),
    [
        ("llama-gqa-untied", {"tensor_parallel_size": 0}, "tensor_parallel_size must be at least 1, not 0"),
        ("llama-gqa-untied", {"tensor_parallel_size": 4}, "cannot share out 6 attention heads and 2 key/value heads"),
        ("llama-gqa-untied", {"tensor_parallel_size": 3}, "cannot share out 6 attention heads and 2 key/value heads"),
        (
            "llama-gqa-untied",
            {"tensor_parallel_size": 2, "quantization": "int8"},
            "int8 is not supported with tensor_parallel_size 2",
        ),
    ],
)
def test_what_cannot_be_shared_out_is_refused_before_any_process_starts(tmp_path, monkeypatch, kind, options, sentence):
    make_model(tmp_path, kind)
    monkeypatch.setattr(subprocess, "Popen", None)
    with pytest.raises(ValueError, match=sentence):
        make_runner(config_for(tmp_path, **options))


def test_more_ranks_than_gpus_are_refused(folder, monkeypatch):
    from inflight_engine.execution.parallel import ranks

    monkeypatch.setattr(ranks, "choose_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ValueError, match="tensor_parallel_size 2 needs as many GPUs, but there are 1"):
        make_runner(config_for(folder, tensor_parallel_size=2))


def test_plans_come_out_as_they_went_in_and_unchanged_slots_are_the_same_object():
    encoder, decoder = PlanEncoder(), PlanDecoder()
    slots = np.array([1, 5], np.intp)
    plans = [msgspec.structs.replace(make_plan(releases=[step]), decode_slots=slots) for step in range(2)]
    plans.append(make_plan(decodes=[1]))
    out = [decoder.decode(encoder.encode(plan)) for plan in plans]
    assert [plan.releases for plan in out] == [(0,), (1,), ()]
    assert [plan.decode_slots.tolist() for plan in out] == [[1, 5], [1, 5], [1]]
    assert out[0].decode_slots is out[1].decode_slots


def test_other_ranks_are_not_asked_for_log_probabilities():
    asking, plain = (SamplingParams(max_tokens=1, seed=7, logprobs=count) for count in (2, None))
    start = SlotStart(0, 5, np.array([1], np.int32), 1, 0, asking, np.array([3], np.int32), ())
    plan = make_plan(starts=[start, msgspec.structs.replace(start, slot=1, sampling=plain)])
    there = PlanDecoder().decode(PlanEncoder().encode(plan))
    assert [each.sampling for each in there.starts] == [plain, plain]
    assert [each.slot for each in there.starts] == [0, 1]
    assert plan.starts[0].sampling is asking


class Log:
    """A runner that remembers what it was told."""

    def __init__(self, *, lookahead):
        self.lookahead = lookahead
        self.calls = []

    def launch(self, plan):
        self.calls.append(f"launch {plan.releases[0]}")

    def collect(self):
        self.calls.append("collect")


@pytest.mark.parametrize(
    ("lookahead", "calls"),
    [
        (False, ["launch 0", "collect", "launch 1", "collect", "launch 2"]),
        (True, ["launch 0", "launch 1", "collect", "launch 2"]),
    ],
)
def test_a_worker_is_as_far_ahead_as_rank_0(lookahead, calls):
    encoder = PlanEncoder()
    frames = [encoder.encode(make_plan(releases=[step])) for step in range(3)]

    def receive():
        if not frames:
            raise EOFError
        return frames.pop(0)

    runner = Log(lookahead=lookahead)
    serve(runner, receive)
    assert runner.calls == calls
