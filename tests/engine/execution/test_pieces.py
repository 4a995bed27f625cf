"""Steps for which there is no memory at once give the tokens of steps for which there is."""

import random

import numpy as np
import pytest
import torch

from inflight_engine.execution import pieces as pieces_module
from inflight_engine.execution.pieces import Pieces, piece_of
from inflight_engine.request import SamplingParams
from inflight_engine.scheduling.plan import PrefillChunk, SlotStart
from tests.engine.execution.driver import Driver, make_plan
from tests.engine.execution.test_prompt_logprobs import scores
from tests.engine.execution.test_runner_tiny import mixed_sampling
from tests.engine.execution.tiny_model import make_model, prompts_for, tiny_runner

LEAST = 4
POISON = 77
"""A token that no piece has memory for."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    make_model(folder, "llama-gqa-untied")
    return folder


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch):
    monkeypatch.setattr(pieces_module, "LEAST_TOKENS", LEAST)


class LittleMemory:
    """Stand-in for a runner's model: fails for many tokens or logits at once, for one token, and now and then."""

    def __init__(self, runner, monkeypatch, most_tokens, most_logits=10**9, poison=-1, every=10**9):
        self.model = runner._model
        self.every = every
        self.most_tokens, self.most_logits, self.poison = most_tokens, most_logits, poison
        self.attempts = self.failures = 0
        for name in ("hidden_states", "logits"):
            monkeypatch.setattr(self.model, name, getattr(self, name)(getattr(self.model, name)))

    def hidden_states(self, compute):
        def limited(token_ids, positions, attention, sampled_rows=None):
            self.attempts += 1
            hidden = compute(token_ids, positions, attention, sampled_rows)  # a failed attempt has written, too
            self._require(len(token_ids) <= self.most_tokens and self.poison not in token_ids.tolist())
            self._require(self.attempts % self.every)
            return hidden

        return limited

    def logits(self, compute):
        def limited(hidden):
            self._require(len(hidden) <= self.most_logits)
            return compute(hidden)

        return limited

    def _require(self, enough):
        if not enough:
            self.failures += 1
            raise torch.OutOfMemoryError("made to fail")


@pytest.mark.parametrize(
    ("limits", "lookahead"),
    [((17, 10**9), False), ((40, 5), True), ((4, 4), True)],
    ids=["tokens", "logits", "least"],
)
def test_tokens_are_those_of_a_run_with_memory(folder, monkeypatch, limits, lookahead):
    prompts = prompts_for(random.Random(5), 12)
    sampling = mixed_sampling(12)
    company = {"max_running": 8, "chunk": 120, "share_prefixes": True}
    prompts[7] = prompts[4] + [3, 1]
    options = {"num_kv_blocks": 1024, "max_num_seqs": 16, "lookahead": lookahead}
    whole = Driver(tiny_runner(folder, **options), rng=random.Random(1), **company)
    expected = whole.run(prompts, sampling)
    runner = tiny_runner(folder, **options)
    memory = LittleMemory(runner, monkeypatch, *limits)
    driver = Driver(runner, rng=random.Random(1), **company)
    assert driver.run(prompts, sampling) == expected
    assert memory.failures > 0
    assert driver.num_hit_tokens == whole.num_hit_tokens > 0
    for sequence, other in zip(driver.sequences, whole.sequences, strict=True):
        for report, same in zip(sequence.logprobs, other.logprobs, strict=True):
            assert report.top_token_ids == same.top_token_ids


def test_tokens_are_those_of_a_run_with_memory_where_a_step_fails_once(folder, monkeypatch):
    monkeypatch.setattr(pieces_module, "_STEPS_UNTIL_LARGER", 1)
    prompts = prompts_for(random.Random(5))
    sampling = [SamplingParams(max_tokens=12)] * len(prompts)
    expected = Driver(tiny_runner(folder), rng=random.Random(1), max_running=LEAST).run(prompts, sampling)
    runner = tiny_runner(folder)
    memory = LittleMemory(runner, monkeypatch, 10**9, every=5)
    assert Driver(runner, rng=random.Random(1), max_running=LEAST).run(prompts, sampling) == expected
    assert memory.failures > 5


def test_prompts_are_scored_in_pieces_as_in_whole_steps(folder, monkeypatch):
    prompts = prompts_for(random.Random(4))
    expected = scores(tiny_runner(folder), prompts, max_running=3)
    runner = tiny_runner(folder)
    memory = LittleMemory(runner, monkeypatch, 17)
    found = scores(runner, prompts, max_running=3)
    assert memory.failures > 0
    for of_prompt, whole in zip(found, expected, strict=True):
        for position, (logprob, rank, top_ids, _) in of_prompt.items():
            assert (rank, top_ids) == whole[position][1:3]
            assert logprob == pytest.approx(whole[position][0], abs=1e-4)


def first_step(prompts, decodes=(), prompt_logprobs=None):
    """Slots start with these prompts, beside others that decode."""
    starts, chunks, block = [], [], 0
    for slot, prompt in prompts.items():
        blocks = np.arange(block, block + 10, dtype=np.int32)
        block += 10
        sampling = SamplingParams(max_tokens=9, prompt_logprobs=prompt_logprobs)
        starts.append(SlotStart(slot, slot, np.array(prompt, np.int32), len(prompt), 0, sampling, blocks, ()))
        chunks.append(PrefillChunk(slot, 0, len(prompt), True))
    return make_plan(starts=starts, prefills=chunks, decodes=decodes)


def collected(runner, plan):
    runner.launch(plan)
    return runner.collect()


def test_a_chunk_that_fails_alone_is_told_and_the_others_are_computed(folder, monkeypatch):
    prompts = {0: [5] * 9, 1: [6] * 6 + [POISON] * 7, 2: [7] * 8}
    good = {slot: prompt for slot, prompt in prompts.items() if slot != 1}
    expected = collected(tiny_runner(folder), first_step(good)).token_ids
    runner = tiny_runner(folder)
    memory = LittleMemory(runner, monkeypatch, 10**9, poison=POISON)
    output = collected(runner, first_step(prompts, prompt_logprobs=0))
    assert (output.failed_slots, output.out_of_memory) == ((1,), True)
    assert [scored.slot for scored in output.prompt_logprobs for _ in scored.ranks[::4]] == [0] * 8 + [2] * 7
    assert output.token_ids[[0, 2]].tolist() == expected.tolist()
    assert memory.failures < 8
    after = collected(runner, make_plan(decodes=[0, 2]))
    assert not after.out_of_memory
    assert len(after.token_ids) == 2


@pytest.mark.parametrize("decodes", [False, True])
def test_a_step_of_which_nothing_can_be_computed_raises_after_few_attempts(folder, monkeypatch, decodes):
    runner = tiny_runner(folder)
    slots = {slot: [slot + 1] * 7 for slot in range(5)}
    plan = first_step(slots)
    if decodes:
        collected(runner, plan)
        plan = make_plan(decodes=list(slots))
    memory = LittleMemory(runner, monkeypatch, 0)
    with pytest.raises(MemoryError, match="made to fail"):
        runner.launch(plan)
    assert memory.attempts < 12


def test_what_fails_after_tokens_are_fed_is_not_computed_again(folder, monkeypatch):
    runner = tiny_runner(folder)
    memory = LittleMemory(runner, monkeypatch, 10**9)

    def fail(slots, token_ids):
        raise torch.OutOfMemoryError("made to fail")

    monkeypatch.setattr(runner._sampler, "count", fail)
    with pytest.raises(MemoryError, match="no memory to take in sampled tokens"):
        runner.launch(first_step({0: [1] * 9}))
    assert memory.attempts == 1


def step_plan(*lengths):
    """Four decodes, and chunks of these lengths, the first of which begins at token 30 of its sequence."""
    chunks = [PrefillChunk(8 + index, 0 if index else 30, length, True) for index, length in enumerate(lengths)]
    return make_plan(prefills=chunks, decodes=range(4))


@pytest.mark.parametrize("size", [1, 3, 7, 50])
def test_pieces_together_are_the_step(size):
    plan = step_plan(13, 1, 9)
    total = plan.num_tokens
    pieces = [piece_of(plan, first, min(first + size, total)) for first in range(0, total, size)]
    assert [piece.num_tokens for piece in pieces[:-1]] == [size] * (len(pieces) - 1)
    assert sum(piece.num_tokens for piece in pieces) == total
    for piece in pieces:
        assert len(piece.decode_slots) + sum(chunk.length for chunk in piece.prefills) == piece.num_tokens
    assert np.concatenate([piece.decode_slots for piece in pieces]).tolist() == plan.decode_slots.tolist()
    assert np.concatenate([piece.sampled_slots for piece in pieces]).tolist() == plan.sampled_slots.tolist()
    computed = {chunk.slot: [] for chunk in plan.prefills}
    for piece in pieces:
        for chunk in piece.prefills:
            computed[chunk.slot] += range(chunk.start, chunk.start + chunk.length)
    assert computed == {each.slot: [*range(each.start, each.start + each.length)] for each in plan.prefills}


def test_a_long_step_is_cut_into_no_more_pieces_than_it_may_be(monkeypatch):
    monkeypatch.setattr(pieces_module, "_MOST_PIECES", 5)
    attempts, pieces = [], Pieces(lambda: None)

    def compute(piece):
        attempts.append(piece.num_tokens)
        if piece.prefills:
            raise torch.OutOfMemoryError

    assert list(pieces.compute(step_plan(56, 40), compute)) == [None]
    assert pieces.failed_slots == [8, 9]
    assert attempts == [100, 4, 50, 25, 20, 20]


def test_pieces_stay_small_for_a_while_and_become_larger_again(monkeypatch):
    monkeypatch.setattr(pieces_module, "_STEPS_UNTIL_LARGER", 3)
    plan, given_back = step_plan(60), []
    pieces = Pieces(lambda: given_back.append(True))

    def sizes(most):
        def compute(piece):
            if piece.num_tokens > most:
                raise torch.OutOfMemoryError
            return piece.num_tokens

        return list(pieces.compute(plan, compute))

    assert sizes(30) == [4, 16, 16, 16, 12]
    assert (pieces.ran_out, len(given_back)) == (True, 2)
    assert sizes(10**9) == [4, 16, 16, 16, 12]
    assert not pieces.ran_out
    assert [max(sizes(10**9)) for _ in range(8)] == [16, 32, 32, 32, 64, 64, 64, 64]
