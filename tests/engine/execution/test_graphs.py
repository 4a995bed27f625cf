"""Decode graphs: which sizes there are, how a batch is padded to one, and that replays give the eager tokens.

There is no CUDA graph on a CPU. `Recorded` stands in for one: like a graph it is given a function once, at capture, and
at replay gets no arguments: it runs the same function again, over the buffers that were there at capture.
"""

import random
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from inflight_engine.execution.graphs import CudaCapture, ladder, padded_size
from inflight_engine.models.parallel import SingleProcess
from inflight_engine.request import SamplingParams
from tests.engine.execution.driver import Driver
from tests.engine.execution.padded_backend import PaddedBackend
from tests.engine.execution.test_runner_tiny import mixed_sampling
from tests.engine.execution.tiny_model import SWAP_SPACE, make_model, prompts_for, tiny_runner

GREEDY = SamplingParams(max_tokens=12)


@given(st.integers(1, 2000), st.data())
def test_every_batch_has_a_size_that_holds_it_with_little_padding(max_num_seqs, data):
    sizes = ladder(max_num_seqs)
    assert list(sizes) == sorted(set(sizes))
    assert sizes[-1] == max_num_seqs
    num_decodes = data.draw(st.integers(1, max_num_seqs))
    size = padded_size(sizes, num_decodes)
    assert size == min(s for s in sizes if s >= num_decodes)
    assert size - num_decodes <= (7 if num_decodes <= 56 else 15 if num_decodes <= 256 else 31)


def test_the_sizes_that_are_documented():
    assert len(ladder(256)) == 23
    assert ladder(1) == (1,)
    assert ladder(20) == (1, 2, 4, 8, 16, 20)
    assert padded_size(ladder(256), 257) is None


class Recorded:
    """Captures: see the module."""

    def __init__(self):
        self.captured, self.num_replays = [], 0

    def __call__(self, step):
        self.captured.append(step)

        def replay():
            self.num_replays += 1
            step()

        return replay


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    make_model(folder, "llama-gqa-untied")
    return folder


@pytest.mark.parametrize("lookahead", [False, True])
@pytest.mark.parametrize("sampling", [[GREEDY] * 24, mixed_sampling(24)], ids=["greedy", "mixed"])
def test_replays_give_the_eager_tokens(folder, lookahead, sampling):
    options = {"max_num_seqs": 19, "max_model_len": 112, "num_kv_blocks": 1024, "swap_space": SWAP_SPACE}
    prompts = prompts_for(random.Random(5), 24)
    expected = Driver(tiny_runner(folder, **options), max_running=19).run(prompts, sampling)
    capture = Recorded()
    runner = tiny_runner(folder, lookahead=lookahead, capture=capture, backend=PaddedBackend, **options)
    assert len(capture.captured) == len(ladder(19))
    for company in ({}, {"preempt_every": 5, "swap": True}, {"chunk": 60}):
        before = capture.num_replays
        driver = Driver(runner, max_running=19, rng=random.Random(2), **company)
        assert driver.run(prompts, sampling) == expected
        assert capture.num_replays - before > 8


def test_the_largest_is_captured_first_so_that_its_memory_serves_the_others(folder):
    sizes = []

    def capture(step):
        step()
        sizes.append(prepared[-1])
        return step

    prepared = []

    class Watched(PaddedBackend):
        def prepare(self, batch, num_padded=0):
            prepared.append(num_padded)
            super().prepare(batch, num_padded)

    tiny_runner(folder, capture=capture, backend=Watched, max_num_seqs=19)
    assert sizes == [19, 16, 8, 4, 2, 1]


def test_a_model_that_cannot_be_captured_runs_eagerly_and_says_so(folder, caplog):
    def capture(step):
        raise RuntimeError("operation not permitted when stream is capturing")

    prompts = prompts_for(random.Random(5), 6)
    expected = Driver(tiny_runner(folder)).run(prompts, GREEDY)
    runner = tiny_runner(folder, capture=capture, backend=PaddedBackend)
    assert "no CUDA graphs" in caplog.text
    assert "not permitted when stream is capturing" in caplog.text
    assert Driver(runner).run(prompts, GREEDY) == expected


def test_no_rank_has_graphs_unless_all_have(folder, monkeypatch):
    prompts = prompts_for(random.Random(5), 6)
    expected = Driver(tiny_runner(folder)).run(prompts, GREEDY)
    # Of the other rank: as many blocks, but 0 where this one captured.
    monkeypatch.setattr(SingleProcess, "minimum", lambda self, value: 0 if value == 1 else value)
    capture = Recorded()
    runner = tiny_runner(folder, capture=capture, backend=PaddedBackend)
    assert Driver(runner).run(prompts, GREEDY) == expected
    assert (len(capture.captured), capture.num_replays) == (len(ladder(32)), 0)


class FakeCuda:
    """torch.cuda as far as `CudaCapture` uses it, and what was done with it."""

    def __init__(self, monkeypatch):
        self.done, self.mode, self.stream_now = [], 0, "default"
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
        monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: self.mode)
        monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", self.set_mode)
        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: self.done.append("replay")))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: self.stream_now)
        monkeypatch.setattr(torch.cuda, "stream", self.stream)
        monkeypatch.setattr(torch.cuda, "graph", self.graph)

    def set_mode(self, mode):
        self.mode = mode

    @contextmanager
    def stream(self, stream):
        before, self.stream_now = self.stream_now, stream
        try:
            yield
        finally:
            self.stream_now = before

    @contextmanager
    def graph(self, graph, *, pool, capture_error_mode):
        self.done.append(f"capture into {pool}")
        self.stream_now = "capture"
        yield  # as before torch 2.15: on an error everything stays as it is
        self.stream_now = "default"
        self.done.append("captured")

    def step(self):
        self.done.append(f"step, {self.mode}")


def test_one_step_is_tried_without_waiting_before_any_is_captured(monkeypatch):
    cuda = FakeCuda(monkeypatch)
    capture = CudaCapture()
    capture(cuda.step)()
    first = ["step, 0", "step, error", "capture into pool", "step, 0", "captured", "replay"]
    assert cuda.done == first
    capture(cuda.step)
    assert cuda.done == [*first, "step, 0", "capture into pool", "step, 0", "captured"]


def test_a_step_that_waits_is_not_captured(monkeypatch):
    cuda = FakeCuda(monkeypatch)

    def step():
        if cuda.mode == "error":
            raise RuntimeError("called a synchronizing CUDA operation")

    with pytest.raises(RuntimeError, match="synchronizing"):
        CudaCapture()(step)
    assert (cuda.done, cuda.mode) == ([], 0)


def test_a_capture_that_fails_leaves_the_stream_as_it_was(monkeypatch):
    cuda = FakeCuda(monkeypatch)

    def step():
        if cuda.stream_now == "capture":
            raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(RuntimeError, match="not permitted"):
        CudaCapture()(step)
    assert cuda.stream_now == "default"
