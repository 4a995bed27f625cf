"""The whole GPU path on CPU tensors, in Triton's interpreter: fused operators, paged attention, graphs of steps (by the
stand-in of `test_graphs`), and a step ahead. Run as `interpreted_ops` is, with a model in the folder TINY_MODEL."""

import os
import random

import numpy as np
import pytest

from inflight_engine.execution import load
from inflight_engine.execution.attention.triton_paged import TritonBackend
from inflight_engine.execution.triton_ops import TritonOps
from inflight_engine.request import SamplingParams
from tests.engine.execution.driver import Driver
from tests.engine.execution.test_graphs import Recorded
from tests.engine.execution.tiny_model import tiny_runner

SAMPLING = [SamplingParams(max_tokens=3, prompt_logprobs=1), SamplingParams(max_tokens=3, temperature=0.7, seed=1)]


def test_tokens_are_those_of_plain_torch(monkeypatch):
    folder = os.environ["TINY_MODEL"]
    options = {"max_num_seqs": 2, "max_model_len": 64, "max_num_batched_tokens": 32, "block_size": 16}
    prompts = [[5, 6, 7], [(i * 7) % 50 for i in range(18)]]
    plain = tiny_runner(folder, attention_backend="torch-sdpa", **options)
    on_plain = Driver(plain, max_running=2)
    expected = on_plain.run(prompts, SAMPLING)
    monkeypatch.setattr(load, "_operators", lambda config, device: TritonOps())
    capture = Recorded()
    runner = tiny_runner(folder, lookahead=True, capture=capture, backend=TritonBackend, **options)
    driver = Driver(runner, chunk=16, max_running=2, rng=random.Random(1))
    assert driver.run(prompts, SAMPLING) == expected
    assert capture.num_replays > 1
    scores, plain_scores = (
        np.frombuffer(each.sequences[0].prompt_logprobs[0].logprobs, np.float32) for each in (driver, on_plain)
    )
    assert scores == pytest.approx(plain_scores, abs=1e-4)
