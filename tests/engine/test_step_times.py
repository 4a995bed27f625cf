"""How long a step may take: nothing that earlier steps make likely is called too long."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_engine import engine_process
from inflight_engine.config import EngineConfig
from inflight_engine.engine import Engine
from inflight_engine.execution import ranks
from inflight_engine.messages import SHORT_STEP_SECONDS, LongStep
from inflight_engine.request import SamplingParams
from inflight_engine.scheduling.plan import PrefillChunk, StepPlan
from inflight_engine.scheduling.scheduler import Scheduler
from inflight_engine.step_times import SAFETY, StepTimes, Work, work_of
from inflight_engine.warm_up import warm_up
from tests.engine.execution.driver import Driver
from tests.engine.execution.tiny_model import generate, make_model, tiny_runner
from tests.engine.test_engine import CONFIG, AheadStandIn, add


def test_work_is_tokens_and_what_they_attend_to():
    chunks = (PrefillChunk(0, 0, 10, True), PrefillChunk(1, 80, 10, False))
    decodes = np.arange(2, 12)
    assert work_of(StepPlan(0, (), (), (), None, chunks, decodes, 30)) == Work(30, (100 + 900) / 30)
    assert work_of(StepPlan(0, (), (), (), None, (), decodes, 10)) == Work(10, 0.0)


WORK = st.builds(Work, st.integers(1, 8192), st.floats(0, 120_000))


@given(st.lists(WORK, min_size=1, max_size=20), WORK, st.floats(0, 1), st.floats(1e-6, 0.002), st.floats(1024, 50_000))
def test_any_step_of_a_steady_machine_may_take_what_it_takes_also_the_first_of_its_size(
    earlier, next_one, per_step, per_token, context_like_a_token
):
    def seconds(work):
        return per_step + per_token * work.tokens * (1 + work.context / context_like_a_token)

    times = StepTimes()
    for work in earlier:
        times.observe(work, seconds(work))
    # A step that is not announced may take SHORT_STEP_SECONDS.
    assert max(times.longest(next_one), SHORT_STEP_SECONDS) >= min(seconds(next_one), 600.0)


LARGE = Work(8192, 8192)


@pytest.mark.parametrize("seconds", [8.0, 20.0])
def test_first_prefill_of_8192_tokens_on_a_slow_cpu_may_take_its_time(seconds):
    times = StepTimes()
    assert times.longest(LARGE) > seconds  # nothing measured
    for _ in range(100):
        times.observe(Work(1, 0), 0.03)
    assert times.longest(LARGE) > seconds  # decodes only
    times.observe(Work(100, 100), 100 * seconds / 2 / 8192)  # half of the time of the long one is attention
    assert times.longest(LARGE) > seconds
    times.observe(LARGE, seconds)
    assert times.longest(LARGE) == pytest.approx(SAFETY * seconds)


def test_first_step_of_a_size_may_compile_where_that_happens():
    times = StepTimes(20.0)
    times.observe(Work(1, 0), 15.0)  # it compiled
    times.observe(Work(1, 0), 0.001)
    assert times.longest(Work(1, 0)) < 1
    assert 20 < times.longest(Work(8, 0)) < 21


@pytest.mark.parametrize("lookahead", [False, True])
def test_step_that_is_measured_before_requests_come_bounds_the_first_ones_and_leaves_nothing_behind(
    tmp_path, lookahead
):
    model = make_model(tmp_path, "llama-gqa-untied")
    runner = tiny_runner(tmp_path, lookahead=lookahead)
    times = StepTimes(measured=warm_up(runner, 32, runner.info.block_size))
    assert times.longest(Work(64, 64)) < StepTimes().longest(Work(64, 64)) / 2
    prompts = [[3, 1, 4, 1, 5], [9, 2, 6]]
    expected = [generate(model, prompt, 12) for prompt in prompts]
    assert Driver(runner).run(prompts, SamplingParams(max_tokens=12)) == expected


def test_engine_is_loaded_with_a_measured_step(monkeypatch, tmp_path):
    make_model(tmp_path, "llama-gqa-untied")
    runner = tiny_runner(tmp_path)
    monkeypatch.setattr(ranks, "make_runner", lambda config: runner)
    engine, _ = engine_process.load(EngineConfig(str(tmp_path), max_num_seqs=4, max_num_batched_tokens=64))
    assert engine._step_times.longest(Work(32, 32)) < StepTimes().longest(Work(32, 32)) / 2


def test_step_that_was_measured_when_kernels_were_compiled_is_kept():
    assert StepTimes(20.0, (Work(8, 8), 0.1)).longest(Work(8, 8)) == pytest.approx(SAFETY * 0.1)


def test_slowest_step_fades():
    times = StepTimes()
    times.observe(Work(4, 0), 10.0)
    for _ in range(1000):
        times.observe(Work(4, 0), 0.1)
    assert times.longest(Work(4, 0)) == pytest.approx(SAFETY * 0.1)


def test_engine_announces_a_step_that_may_take_long_before_it_launches_it():
    times, runner = StepTimes(), AheadStandIn()
    engine = Engine(Scheduler(CONFIG), runner, step_times=times, announce=runner.log.append)
    engine.handle(add(0, [1, 2, 3], max_tokens=3))
    times.observe(Work(3, 3), 4.0)  # as slow as this, three tokens may take 12 s
    times.observe(Work(1, 0), 0.001)
    while engine.has_work:
        engine.step()
    announced = [said for said in runner.log if isinstance(said, LongStep)]
    assert announced == [LongStep(0, pytest.approx(12.0))]
    assert runner.log[:2] == [announced[0], ("launch", 0)]
