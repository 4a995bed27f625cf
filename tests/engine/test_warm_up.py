"""The steps before requests come: of every kind, within the capacity, and without a trace."""

import random

import pytest

from inflight_engine.request import SamplingParams
from inflight_engine.warm_up import reach_kernels
from inflight_settings.limits import Limits
from tests.engine.execution.driver import Driver
from tests.engine.execution.test_runner_tiny import mixed_sampling
from tests.engine.execution.tiny_model import make_model, prompts_for, tiny_runner


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    make_model(folder, "llama-gqa-untied")
    return folder


class Watched:
    """A runner, and what each of its steps was: tokens in chunks, decodes."""

    def __init__(self, runner):
        self.runner, self.steps = runner, []

    def launch(self, plan):
        self.steps.append((sum(chunk.length for chunk in plan.prefills), len(plan.decode_slots)))
        self.runner.launch(plan)

    def collect(self):
        return self.runner.collect()


@pytest.mark.parametrize("lookahead", [False, True])
def test_every_kind_of_step_is_run_and_leaves_nothing_behind(folder, lookahead):
    prompts, sampling = prompts_for(random.Random(3)), mixed_sampling(7)
    expected = Driver(tiny_runner(folder)).run(prompts, sampling)
    runner = tiny_runner(folder, lookahead=lookahead)
    watched = Watched(runner)
    reach_kernels(watched, runner.info, Limits(32, 8192))
    assert watched.steps == [(254, 0), (0, 1), (254, 1), (0, 0)]
    assert Driver(runner).run(prompts, sampling) == expected


@pytest.mark.parametrize(
    ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "steps"),
    [
        (1, 100, 100, [(98, 0), (0, 1), (0, 0)]),
        (2, 100, 256, [(100, 0), (0, 1), (99, 1), (0, 0)]),
        (2, 1, 256, [(1, 0), (0, 1), (0, 0)]),
        (2, 100, 3, [(1, 0), (0, 1), (1, 1), (0, 0)]),
        (2, 100, 2, []),
    ],
)
def test_it_keeps_to_the_capacity(folder, max_num_seqs, max_num_batched_tokens, max_model_len, steps):
    options = {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": max_num_batched_tokens}
    runner = tiny_runner(folder, max_model_len=max_model_len, **options)
    watched = Watched(runner)
    reach_kernels(watched, runner.info, Limits(max_num_seqs, max_num_batched_tokens))
    assert watched.steps == steps
    one = [5] * (max_model_len - 1)
    fresh = tiny_runner(folder, max_model_len=max_model_len, **options)
    expected, got = (
        Driver(each, max_running=1, chunk=max_num_batched_tokens).run([one], SamplingParams(max_tokens=1))
        for each in (fresh, runner)
    )
    assert got == expected
