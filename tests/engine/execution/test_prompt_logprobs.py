"""Log-probabilities of prompt tokens, on every way a prompt can be computed."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from inflight_engine.execution.sampling import logprobs
from inflight_engine.request import SamplingParams
from tests.engine.execution.driver import Driver
from tests.engine.execution.padded_backend import PaddedBackend
from tests.engine.execution.test_graphs import Recorded
from tests.engine.execution.tiny_model import SWAP_SPACE, VOCAB, make_model, prompts_for, tiny_runner

COUNT = 3
SCORED = SamplingParams(max_tokens=3, prompt_logprobs=COUNT)
NATIVE = {"block_size": 16, "swap_space": SWAP_SPACE}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model that the CPU kernels can compute, too."""
    folder = tmp_path_factory.mktemp("model")
    return make_model(folder, "llama-wide-heads"), folder


def by_position(sequence, *, once=True):
    """(log-probability, rank, top ids, top log-probabilities) of each token that was reported, by its position."""
    found = {}
    for report in sequence.prompt_logprobs:
        values = np.frombuffer(report.logprobs, np.float32)
        ids = np.frombuffer(report.top_token_ids, np.int32).reshape(len(values), -1)
        top = np.frombuffer(report.top_logprobs, np.float32).reshape(len(values), -1)
        rows = zip(
            values.tolist(), np.frombuffer(report.ranks, np.int32).tolist(), ids.tolist(), top.tolist(), strict=True
        )
        for position, row in enumerate(rows, report.first):
            assert not once or position not in found
            found[position] = row
    assert sorted(found) == list(range(1, len(sequence.prompt)))
    return found


def scores(runner, prompts, sampling=SCORED, *, once=True, **company):
    driver = Driver(runner, **company)
    driver.run(prompts, sampling)
    return [by_position(sequence, once=once) for sequence in driver.sequences]


@pytest.mark.parametrize("backend", ["cpu-native", "torch-sdpa"])
def test_they_are_those_of_transformers(model, backend):
    reference, folder = model
    prompts = prompts_for(random.Random(3))
    found = scores(tiny_runner(folder, attention_backend=backend, **NATIVE), prompts)
    assert found[0] == {}, "the only token of a prompt has none"
    for prompt, of_prompt in zip(prompts, found, strict=True):
        with torch.inference_mode():
            expected = reference(torch.tensor([prompt])).logits[0].log_softmax(dim=-1)
        for position, (logprob, rank, top_ids, top) in of_prompt.items():
            row = expected[position - 1]
            own = row[prompt[position]]
            assert logprob == pytest.approx(own.item(), abs=1e-3)
            assert (row > own + 1e-3).sum() < rank <= (row > own - 1e-3).sum()
            assert top == pytest.approx(row.topk(COUNT).values.tolist(), abs=1e-3)
            assert row[top_ids].tolist() == pytest.approx(top, abs=1e-3)
            assert prompt[position] not in top_ids or top_ids.index(prompt[position]) == rank - 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_chunks_company_preemption_and_slices_of_logits_change_no_bit(model, monkeypatch, dtype):
    _, folder = model
    runner = tiny_runner(folder, dtype=dtype, **NATIVE)
    prompts = prompts_for(random.Random(4))
    whole = [scores(runner, [prompt])[0] for prompt in prompts]
    monkeypatch.setattr(logprobs, "_CHUNK_BYTES", 5 * logprobs._BYTES_PER_LOGIT * VOCAB)
    assert scores(runner, prompts, chunk=9, max_running=3) == whole
    swapped = {"chunk": 9, "max_running": 3, "preempt_every": 3, "swap": True}
    assert scores(runner, prompts, once=False, **swapped) == whole, "a swapped prompt goes on behind its full blocks"
    assert scores(runner, prompts, once=False, chunk=7, max_running=3, preempt_every=4) == whole


def test_of_two_that_ask_each_gets_as_many_likeliest_tokens_as_it_asks_for(model):
    _, folder = model
    prompts = [[5, 6, 7, 8], [9, 10, 11]]
    found = scores(tiny_runner(folder, **NATIVE), prompts, [SCORED, replace(SCORED, prompt_logprobs=0)])
    assert [[len(ids) for _, _, ids, _ in each.values()] for each in found] == [[COUNT] * 3, [0] * 2]


def test_log_probabilities_of_sampled_tokens_are_as_without(model):
    _, folder = model
    runner = tiny_runner(folder, **NATIVE)
    found = []
    for prompt_logprobs in (None, 2):
        driver = Driver(runner)
        sampling = SamplingParams(max_tokens=3, logprobs=2, prompt_logprobs=prompt_logprobs)
        driver.run(prompts_for(random.Random(6)), sampling)
        found.append([sequence.logprobs for sequence in driver.sequences])
    assert found[0] == found[1]


def test_a_steps_other_tokens_and_graphs_are_as_without(model):
    """The step is full: the staged inputs have their largest size."""
    _, folder = model
    prompts = prompts_for(random.Random(5))
    sampling = [SamplingParams(max_tokens=6, logprobs=2, prompt_logprobs=2 if i % 3 == 0 else None) for i in range(7)]
    plain = [replace(each, prompt_logprobs=None) for each in sampling]
    options = {"max_num_seqs": 4, "max_num_batched_tokens": 16, "max_model_len": 112, **NATIVE}
    alone = Driver(tiny_runner(folder, attention_backend="torch-sdpa", **options), max_running=4)
    expected = alone.run(prompts, plain)
    capture = Recorded()
    runner = tiny_runner(folder, lookahead=True, capture=capture, backend=PaddedBackend, **options)
    driver = Driver(runner, chunk=12, max_running=4)
    assert driver.run(prompts, sampling) == expected
    assert capture.num_replays > 5
    for sequence, other in zip(driver.sequences, alone.sequences, strict=True):
        assert [each.top_token_ids for each in sequence.logprobs] == [each.top_token_ids for each in other.logprobs]
        if sequence.sampling.prompt_logprobs is None:
            assert not sequence.prompt_logprobs
        else:
            assert len(by_position(sequence)) == len(sequence.prompt) - 1
