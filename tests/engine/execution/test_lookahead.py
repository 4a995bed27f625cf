"""Steps launched before the ones before them are collected give the same tokens."""

import random

import numpy as np
import pytest

from inflight_engine.execution import runner as runner_module
from inflight_engine.request import SamplingParams
from inflight_engine.scheduling.plan import PrefillChunk, SlotStart
from tests.engine.execution.driver import NOT_KNOWN, Driver, make_plan
from tests.engine.execution.test_runner_tiny import mixed_sampling
from tests.engine.execution.tiny_model import SWAP_SPACE, generate, make_model, prompts_for, tiny_runner

GREEDY = SamplingParams(max_tokens=12)
PENALISED = SamplingParams(max_tokens=12, presence_penalty=0.5)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    return make_model(folder, "llama-gqa-untied"), folder


@pytest.fixture(scope="module", params=[[GREEDY] * 24, mixed_sampling(24)], ids=["greedy", "mixed"])
def one_by_one(model, request):
    """Prompts, how they are sampled, and the tokens of steps that wait for each other."""
    prompts = prompts_for(random.Random(5), 24)
    return prompts, request.param, Driver(tiny_runner(model[1], num_kv_blocks=1024)).run(prompts, request.param)


@pytest.mark.parametrize(
    "company",
    [
        {"max_running": 30},
        {"chunk": 5, "max_running": 4, "preempt_every": 7},
        {"chunk": 9, "max_running": 6, "preempt_every": 3, "swap": True},
        {"chunk": 30, "max_running": 5, "cancel_every": 4},
        {"chunk": 7, "max_running": 3, "cancel_every": 3, "preempt_every": 5, "swap": True},
    ],
    ids=["together", "recomputed", "swapped", "cancelled", "all-of-it"],
)
def test_random_plans_give_the_tokens_of_steps_taken_one_by_one(model, one_by_one, company):
    _, folder = model
    prompts, sampling, expected = one_by_one
    runner = tiny_runner(folder, lookahead=True, num_kv_blocks=1024, swap_space=SWAP_SPACE)
    for seed in range(2):
        driver = Driver(runner, rng=random.Random(seed), **company)
        outputs = driver.run(prompts, sampling)
        for sequence, output, whole in zip(driver.sequences, outputs, expected, strict=True):
            if sequence in driver.cancelled:
                assert NOT_KNOWN not in output
                assert output == whole[: len(output)]
            else:
                assert output == whole
        assert bool(driver.cancelled) == ("cancel_every" in company)


def start(slot, tokens, sampling, blocks):
    known = np.array(tokens, np.int32)
    return SlotStart(slot, slot, known, len(known), 0, sampling, np.array(blocks, np.int32), ())


def first_step(slot, tokens, sampling, blocks, releases=()):
    chunk = PrefillChunk(slot, 0, len(tokens), True)
    return make_plan(releases=releases, starts=[start(slot, tokens, sampling, blocks)], prefills=[chunk])


@pytest.mark.parametrize("sampling", [GREEDY, PENALISED], ids=["greedy", "penalised"])
def test_a_slot_started_again_while_its_last_step_runs_is_not_hit_by_the_late_token(model, sampling):
    transformers_model, folder = model
    runner = tiny_runner(folder, lookahead=True)
    first, second = [5, 6, 7], [40, 41]
    expected = Driver(tiny_runner(folder)).run([second], sampling)[0][:3]
    runner.launch(first_step(0, first, sampling, [3, 4]))
    runner.launch(make_plan(decodes=[0]))  # of a request that is over before this is collected
    runner.collect()
    runner.launch(first_step(0, second, sampling, [5, 6], releases=[0]))
    late = runner.collect().token_ids
    runner.launch(make_plan(decodes=[0]))
    tokens = [*runner.collect().token_ids]
    runner.launch(make_plan(decodes=[0]))
    tokens += [*runner.collect().token_ids, *runner.collect().token_ids]
    assert tokens == expected
    if sampling is GREEDY:
        assert expected == generate(transformers_model, second, 3)
        assert late == generate(transformers_model, first, 2)[1:]


class CountedFetch(runner_module.Fetch):
    waits = 0

    def wait(self):
        CountedFetch.waits += 1
        return super().wait()


@pytest.mark.parametrize("sampling", [GREEDY, PENALISED], ids=["greedy", "penalised"])
def test_a_launch_does_not_wait_for_the_step_before(model, sampling, monkeypatch):
    runner = tiny_runner(model[1], lookahead=True)
    monkeypatch.setattr(runner_module, "Fetch", CountedFetch)
    runner.launch(first_step(0, [5, 6, 7], sampling, [3, 4]))
    CountedFetch.waits = 0
    runner.launch(make_plan(decodes=[0]))
    assert CountedFetch.waits == 0


@pytest.mark.parametrize("lookahead", [False, True])
def test_no_more_steps_are_launched_than_may_be(model, lookahead):
    runner = tiny_runner(model[1], lookahead=lookahead)
    runner.launch(first_step(0, [5, 6, 7], GREEDY, [3, 4]))
    if lookahead:
        runner.launch(make_plan(decodes=[0]))
    with pytest.raises(AssertionError, match="launched and not collected"):
        runner.launch(make_plan(decodes=[0]))


def test_a_failed_collection_takes_the_step_behind_it_along(model, monkeypatch):
    runner = tiny_runner(model[1], lookahead=True)

    class Broken(runner_module.Fetch):
        def wait(self):
            raise RuntimeError("the device is gone")

    with monkeypatch.context() as patch:
        patch.setattr(runner_module, "Fetch", Broken)
        runner.launch(first_step(0, [5, 6, 7], GREEDY, [3, 4]))
    runner.launch(make_plan(decodes=[0]))
    with pytest.raises(RuntimeError, match="the device is gone"):
        runner.collect()
    # Both are gone: there is room for two more, and the next result is that of the first of them.
    runner.launch(first_step(0, [9, 8], GREEDY, [3, 4], releases=[0]))
    runner.launch(make_plan(decodes=[0]))
    tokens = [*runner.collect().token_ids, *runner.collect().token_ids]
    assert tokens == generate(model[0], [9, 8], 2)


def test_a_failed_launch_leaves_the_step_before_to_be_collected(model, monkeypatch):
    runner = tiny_runner(model[1], lookahead=True)
    runner.launch(first_step(0, [5, 6, 7], GREEDY, [3, 4]))
    with monkeypatch.context() as patch:
        patch.setattr(runner._forward, "send", None)
        with pytest.raises(TypeError):
            runner.launch(make_plan(decodes=[0]))
    assert runner.collect().token_ids.tolist() == generate(model[0], [5, 6, 7], 1)
