"""Pooled hidden states are those of transformers, whatever else is in a step and however a prompt is cut."""

import random

import numpy as np
import pytest
import torch

from inflight_engine.request import SamplingParams
from tests.engine.execution.driver import Driver
from tests.engine.execution.padded_backend import PaddedBackend
from tests.engine.execution.test_graphs import Recorded
from tests.engine.execution.tiny_model import SWAP_SPACE, make_model, prompts_for, tiny_runner

OPTIONS = {"max_num_seqs": 11, "max_model_len": 128, "num_kv_blocks": 512, "swap_space": SWAP_SPACE}
PROMPTS = prompts_for(random.Random(5), 8)
SAMPLING = [SamplingParams(1, pooled=True) if number % 2 else SamplingParams(9) for number in range(len(PROMPTS))]
POOLED = [number for number in range(len(PROMPTS)) if number % 2]


class Collecting(Driver):
    """Keeps the vectors of each sequence."""

    def _collect(self, leave):
        while len(self.in_flight) > leave:
            sampled = self.in_flight[0][0]
            collect = self.runner.collect

            def kept(collect=collect, sampled=sampled):
                output = collect()
                owners = {slot: sequence for sequence, slot, _ in sampled}
                for each in output.pooled:
                    self.vectors[owners[each.slot].request_id] = np.frombuffer(each.vector, "<f4")
                return output

            self.runner.collect = kept
            try:
                super()._collect(len(self.in_flight) - 1)
            finally:
                del self.runner.collect

    def vectors_of(self, prompts, sampling):
        self.vectors = {}
        self.run(prompts, sampling)
        return self.vectors


@pytest.fixture(scope="module", params=["llama-gqa-untied", "qwen3"])
def made(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    return folder, make_model(folder, request.param)


@pytest.fixture(scope="module")
def expected(made):
    _, model = made
    with torch.inference_mode():
        states = [model.model(torch.tensor([prompt])).last_hidden_state[0, -1].numpy() for prompt in PROMPTS]
    return {number: states[number] for number in POOLED}


@pytest.mark.parametrize(
    "company",
    [
        {},
        {"chunk": 7},
        {"chunk": 9, "preempt_every": 3, "swap": True},
        {"preempt_every": 2, "chunk": 11},
        {"share_prefixes": True, "chunk": 7},
    ],
)
@pytest.mark.parametrize(
    "ahead", [{}, {"lookahead": True, "capture": True, "backend": PaddedBackend}], ids=["plain", "graphs-ahead"]
)
def test_vectors_are_those_of_transformers(made, expected, company, ahead):
    ahead = {**ahead, "capture": Recorded()} if "capture" in ahead else ahead
    runner = tiny_runner(made[0], **ahead, **OPTIONS)
    prompts = [*PROMPTS, *PROMPTS] if company.get("share_prefixes") else PROMPTS
    sampling = SAMPLING * (len(prompts) // len(PROMPTS))
    driver = Collecting(runner, max_running=11, rng=random.Random(1), **company)
    vectors = driver.vectors_of(prompts, sampling)
    assert sorted(vectors) == [number for number in range(len(prompts)) if sampling[number].pooled]
    for number, vector in vectors.items():
        assert vector == pytest.approx(expected[number % len(PROMPTS)], abs=2e-4)
    if company.get("share_prefixes"):
        assert driver.num_hit_tokens
