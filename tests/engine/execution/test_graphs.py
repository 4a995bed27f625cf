"""Graphs of steps: that replays give the eager tokens, what is captured, and what happens where that fails.

There is no CUDA graph on a CPU. `Recorded` stands in for one: like a graph it is given a function once, at capture, and
at replay gets no arguments: it runs the same function again, over the buffers that were there at capture.
"""

import random
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight_engine.execution.attention.base import StepShape
from inflight_engine.execution.graphs import CudaCapture
from inflight_engine.execution.step_shapes import graph_shapes
from inflight_engine.models.parallel import SingleProcess
from inflight_engine.request import SamplingParams
from inflight_engine.scheduling.plan import PrefillChunk, SlotStart
from tests.engine.execution.driver import Driver, make_plan
from tests.engine.execution.padded_backend import PaddedBackend
from tests.engine.execution.test_runner_tiny import mixed_sampling
from tests.engine.execution.tiny_model import SWAP_SPACE, make_model, prompts_for, tiny_runner

GREEDY = SamplingParams(max_tokens=12)


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


class Counted(PaddedBackend):
    """Counts steps with chunks: those of a fixed shape, and the others."""

    padded = eager = 0

    def prepare(self, batch, shape=None):
        if batch.chunks and shape is None:
            Counted.eager += 1
        elif batch.chunks:
            Counted.padded += 1
        super().prepare(batch, shape)


@pytest.mark.parametrize("lookahead", [False, True])
@pytest.mark.parametrize("sampling", [[GREEDY] * 24, mixed_sampling(24)], ids=["greedy", "mixed"])
def test_replays_give_the_eager_tokens(folder, lookahead, sampling, monkeypatch):
    options = {"max_num_seqs": 19, "max_model_len": 112, "num_kv_blocks": 1024, "swap_space": SWAP_SPACE}
    prompts = prompts_for(random.Random(5), 24)
    expected = Driver(tiny_runner(folder, **options), max_running=19).run(prompts, sampling)
    capture = Recorded()
    runner = tiny_runner(folder, lookahead=lookahead, capture=capture, backend=Counted, **options)
    assert len(capture.captured) == 2 * len(graph_shapes(19, 8192))
    for company in ({}, {"preempt_every": 5, "swap": True, "chunk": 40}, {"chunk": 7}):
        before = capture.num_replays
        monkeypatch.setattr(Counted, "padded", 0)
        monkeypatch.setattr(Counted, "eager", 0)
        driver = Driver(runner, max_running=19, rng=random.Random(2), **company)
        assert driver.run(prompts, sampling) == expected
        assert capture.num_replays - before > 8
        if company:
            assert Counted.padded > 8
            assert Counted.eager == 0
        else:
            assert Counted.eager == 1, "the first step is larger than all graphs"


@st.composite
def companies(draw):
    """How sequences come together: chunks of every length, preemptions by either way, prefixes, cancellations."""
    return {
        "chunk": draw(st.integers(1, 90)),
        "max_running": draw(st.integers(1, 11)),
        "preempt_every": draw(st.sampled_from([0, 2, 3, 7])),
        "swap": draw(st.booleans()),
        "share_prefixes": draw(st.booleans()),
        "rng": random.Random(draw(st.integers(0, 99))),
    }


@pytest.fixture(scope="module")
def eager_and_captured(folder):
    """Expected tokens, and runners with graphs, by whether they look ahead."""
    options = {"max_num_seqs": 11, "max_model_len": 112, "num_kv_blocks": 512, "swap_space": SWAP_SPACE}
    prompts, sampling = prompts_for(random.Random(8), 8), mixed_sampling(8)
    expected = Driver(tiny_runner(folder, **options), max_running=11).run(prompts, sampling)
    runners = [
        tiny_runner(folder, lookahead=lookahead, capture=Recorded(), backend=PaddedBackend, **options)
        for lookahead in (False, True)
    ]
    return prompts, sampling, expected, runners


@settings(max_examples=8, deadline=None)
@given(companies(), st.integers(0, 1))
def test_replays_of_random_plans_give_the_eager_tokens(eager_and_captured, company, lookahead):
    prompts, sampling, expected, runners = eager_and_captured
    assert Driver(runners[lookahead], **company).run(prompts, sampling) == expected


def test_a_step_that_samples_nothing_is_replayed_and_feeds_nobody(folder):
    runner = tiny_runner(folder, capture=Recorded(), backend=Counted, max_num_seqs=4, block_size=16)
    expected = Driver(tiny_runner(folder)).run([[5, 6, 7, 8, 9, 10]], SamplingParams(max_tokens=2))[0]
    tokens = np.array([5, 6, 7, 8, 9, 10], np.int32)
    start = SlotStart(2, 0, tokens, 6, 0, GREEDY, np.array([3], np.int32), ())
    before = Counted.padded
    outputs = []
    for starts, first, last in [([start], 0, 3), ([], 3, 5), ([], 5, 6)]:
        chunk = PrefillChunk(2, first, last - first, samples=last == 6)
        runner.launch(make_plan(starts=starts, prefills=[chunk]))
        outputs.append(runner.collect().token_ids.tolist())
    runner.launch(make_plan(decodes=[2]))
    outputs.append(runner.collect().token_ids.tolist())
    assert outputs == [[], [], expected[:1], expected[1:]]
    assert Counted.padded - before == 3


def test_the_largest_is_captured_first_so_that_its_memory_serves_the_others(folder):
    prepared = []

    class Watched(PaddedBackend):
        def prepare(self, batch, shape=None):
            prepared.append(shape)
            super().prepare(batch, shape)

    tiny_runner(folder, capture=Recorded(), backend=Watched, max_num_seqs=19)
    assert tuple(prepared) == graph_shapes(19, 8192)[::-1]
    assert prepared[0] == StepShape(512, 19)


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
    assert (len(capture.captured), capture.num_replays) == (2 * len(graph_shapes(32, 8192)), 0)


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


def test_a_shapes_two_steps_are_tried_without_waiting_before_they_are_captured(monkeypatch):
    cuda = FakeCuda(monkeypatch)
    capture = CudaCapture()
    capture(cuda.step)()
    first = ["step, 0", "step, error", "capture into pool", "step, 0", "captured"]
    assert cuda.done == [*first, "replay"]
    capture(cuda.step)
    assert cuda.done == [*first, "replay", *first]
    capture(cuda.step)
    assert cuda.done == [*first, "replay", *first, "step, 0", "capture into pool", "step, 0", "captured"]


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
