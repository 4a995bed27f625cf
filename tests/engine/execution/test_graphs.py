"""Decode graphs: which sizes there are, how a batch is padded to one, and that replays give the eager tokens.

There is no CUDA graph on a CPU. `Recorded` stands in for one: like a graph it is given a function once, at capture, and
at replay gets no arguments: it runs the same function again, over the buffers that were there at capture.
"""

import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from inflight_engine.execution.attention.base import AttentionBatch
from inflight_engine.execution.attention.torch_sdpa import TorchSdpaBackend
from inflight_engine.execution.graphs import ladder, padded_size
from inflight_engine.request import SamplingParams
from tests.engine.execution.driver import Driver
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


class PaddedBackend(TorchSdpaBackend):
    """Plain attention with padding, whose rows use a block of their own. What `forward` reads lies where it always
    does, as a graph needs it: in the widest shape that there can be."""

    def __init__(self, spec):
        super().__init__(spec)
        self._spare = spec.num_blocks
        shape = list(self._cache.shape)
        shape[2] += 1
        self._cache = torch.zeros(shape, dtype=self._cache.dtype)
        self._width = -(-spec.max_model_len // spec.block_size)
        self._fixed = {}

    def prepare(self, batch, num_padded=0):
        if num_padded == 0 and batch.chunks:
            super().prepare(batch)
            return
        rows = len(batch.decode_context_lens) + num_padded
        table = np.full((rows, self._width), self._spare)
        table[: len(batch.decode_block_table), : batch.decode_block_table.shape[1]] = batch.decode_block_table
        lens = np.ones(rows, np.int64)
        lens[: len(batch.decode_context_lens)] = batch.decode_context_lens
        kv_slots = np.full(rows, self._spare * self._block_size)
        kv_slots[: len(batch.kv_slots)] = batch.kv_slots
        longest = np.append(lens, self._width * self._block_size)  # so that the mask is always as wide
        super().prepare(AttentionBatch(np.append(kv_slots, 0), np.vstack([table, table[:1]]), longest, ()))
        self._kv_slots, self._num_decodes = self._kv_slots[:-1], rows
        self._decode_blocks, self._decode_mask = self._decode_blocks[: rows * self._width], self._decode_mask[:-1]
        fixed = self._fixed.setdefault(rows, [self._kv_slots, self._decode_blocks, self._decode_mask])
        for there, now in zip(fixed, [self._kv_slots, self._decode_blocks, self._decode_mask], strict=True):
            there.copy_(now)
        self._kv_slots, self._decode_blocks, self._decode_mask = fixed


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
    for options in ({"backend": PaddedBackend}, {}):  # torch-sdpa itself refuses padding
        caplog.clear()
        runner = tiny_runner(folder, capture=capture, **options)
        assert "no CUDA graphs" in caplog.text
        assert Driver(runner).run(prompts, GREEDY) == expected
