"""How long a step may take: nothing that earlier steps make likely is called too long."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_cost.model import CostModel, StepWork
from inflight_engine import engine_process
from inflight_engine.cache.tiers import Stores
from inflight_engine.engine import Engine
from inflight_engine.execution.parallel import ranks
from inflight_engine.messages import SHORT_STEP_SECONDS, LongStep
from inflight_engine.request import SamplingParams
from inflight_engine.scheduling.plan import PrefillChunk, StepPlan
from inflight_engine.scheduling.scheduler import Scheduler
from inflight_engine.step_times import FIRST_OF_A_SIZE, SAFETY, StepTimes
from inflight_engine.step_work import work_of
from inflight_engine.warm_up import warm_up
from inflight_settings.engine import EngineConfig
from inflight_settings.limits import Limits
from tests.engine.execution.driver import Driver
from tests.engine.execution.tiny_model import generate, make_model, tiny_runner
from tests.engine.test_engine import CONFIG, AheadStandIn, add


def work(tokens, context):
    """A step of so many prompt tokens that attend to so many each, on average; without context, of decodes."""
    return StepWork(0, tokens, 0, tokens * context) if context else StepWork(tokens, 0, 100 * tokens, 0)


def test_work_is_what_decodes_and_chunks_compute_read_and_copy():
    chunks = (PrefillChunk(0, 0, 10, True), PrefillChunk(1, 80, 10, False))
    decodes = np.arange(2, 12)
    plan = StepPlan(0, (), (), (), None, chunks, decodes, 30)
    assert work_of(plan, 500, 16) == StepWork(10, 20, 500, 55 + 855, 0)
    out = Stores(np.arange(2, dtype=np.int32), np.array([4, 5], np.int32))
    assert work_of(StepPlan(0, (), (3,), (), None, (), decodes, 10, stores=out), 500, 16) == StepWork(10, 0, 500, 0, 32)


WORK = st.builds(work, st.integers(1, 8192), st.one_of(st.just(0), st.floats(1, 120_000)))


@given(st.lists(WORK, min_size=1, max_size=20), WORK, st.floats(0, 1), st.floats(1e-6, 0.002), st.floats(1024, 50_000))
def test_any_step_of_a_steady_machine_may_take_what_it_takes_also_the_first_of_its_size(
    earlier, next_one, per_step, per_token, context_like_a_token
):
    def seconds(work):
        tokens = work.decode_seqs + work.prefill_tokens
        return per_step + per_token * (tokens + work.prefill_context_tokens / context_like_a_token)

    times = StepTimes()
    for work in earlier:
        times.observe(work, seconds(work))
    # A step that is not announced may take SHORT_STEP_SECONDS.
    assert max(times.longest(next_one), SHORT_STEP_SECONDS) >= min(seconds(next_one), 600.0)


LARGE = work(8192, 8192)


@pytest.mark.parametrize("seconds", [8.0, 20.0])
def test_first_prefill_of_8192_tokens_on_a_slow_cpu_may_take_its_time(seconds):
    times = StepTimes()
    assert times.longest(LARGE) > seconds  # nothing measured
    for _ in range(100):
        times.observe(work(1, 0), 0.03)
    assert times.longest(LARGE) > seconds  # decodes only
    times.observe(work(100, 100), 100 * seconds / 2 / 8192)  # half of the time of the long one is attention
    assert times.longest(LARGE) > seconds
    times.observe(LARGE, seconds)
    assert times.longest(LARGE) == pytest.approx(SAFETY * seconds)


def test_first_step_of_a_size_may_compile_where_that_happens():
    times = StepTimes(20.0)
    times.observe(work(1, 0), 15.0)  # it compiled
    times.observe(work(1, 0), 0.001)
    assert times.longest(work(1, 0)) < 1
    assert 20 < times.longest(work(8, 0)) < 21


@pytest.mark.parametrize("lookahead", [False, True])
def test_step_that_is_measured_before_requests_come_bounds_the_first_ones_and_leaves_nothing_behind(
    tmp_path, lookahead
):
    model = make_model(tmp_path, "llama-gqa-untied")
    runner = tiny_runner(tmp_path, lookahead=lookahead)
    times = StepTimes(measured=warm_up(runner, 32, runner.info.block_size))
    assert times.longest(work(64, 64)) < StepTimes().longest(work(64, 64)) / 2
    prompts = [[3, 1, 4, 1, 5], [9, 2, 6]]
    expected = [generate(model, prompt, 12) for prompt in prompts]
    assert Driver(runner).run(prompts, SamplingParams(max_tokens=12)) == expected


def test_engine_is_loaded_with_a_measured_step(monkeypatch, tmp_path):
    make_model(tmp_path, "llama-gqa-untied")
    runner = tiny_runner(tmp_path)
    monkeypatch.setattr(ranks, "make_runner", lambda config, grammars: runner)
    engine, _ = engine_process.load(EngineConfig(str(tmp_path), max_num_seqs=4, max_num_batched_tokens=64))
    assert engine._measurements.longest(work(32, 32)) < StepTimes().longest(work(32, 32)) / 2


@pytest.mark.parametrize(("fields", "in_force"), [({}, 2048), ({"max_num_batched_tokens": 8192}, 8192)])
def test_steps_on_a_cpu_have_at_most_2048_tokens_unless_they_may_have_more(tmp_path, fields, in_force):
    make_model(tmp_path, "llama-gqa-untied")
    config = EngineConfig(str(tmp_path), device="cpu", **fields)
    engine, ready = engine_process.load(config)
    assert ready.capacity == engine._scheduler.config.capacity == Limits(256, in_force)
    assert config.capacity("cuda") == Limits(256, 8192)


def test_step_that_was_measured_when_kernels_were_compiled_is_kept():
    assert StepTimes(20.0, (work(8, 8), 0.1)).longest(work(8, 8)) == pytest.approx(SAFETY * 0.1)


def test_slowest_step_fades():
    times = StepTimes()
    times.observe(work(4, 0), 10.0)
    for _ in range(1000):
        times.observe(work(4, 0), 0.1)
    assert times.longest(work(4, 0)) == pytest.approx(SAFETY * 0.1)


def test_with_a_cost_model_a_step_larger_than_any_may_take_what_it_predicts_with_room():
    times = StepTimes()
    times.observe(StepWork(4, 100, 4000, 5000, 0), 0.26)
    before = times.longest(StepWork(4, 400, 4000, 20_000, 0))
    cost = times.cost = CostModel(0.22, 0.001, 0.0003, 1e-6, 0.0)
    larger = StepWork(4, 400, 4000, 20_000, 0)
    assert times.longest(larger) == pytest.approx(FIRST_OF_A_SIZE * SAFETY * cost.seconds(larger))
    assert times.longest(larger) < before


@pytest.mark.parametrize(
    "beyond", [StepWork(4, 500, 4000, 5000), StepWork(4, 400, 4000, 50_000), StepWork(1, 1, 1, 1, 9)]
)
def test_a_cost_model_is_not_asked_for_what_is_far_from_all_that_was_measured(beyond):
    times = StepTimes()
    times.observe(StepWork(4, 100, 4000, 5000, 0), 0.26)
    before = times.longest(beyond)
    times.cost = CostModel(1e-9, 0.0, 0.0, 0.0, 0.0)
    assert times.longest(beyond) == before


@given(st.lists(st.tuples(WORK, st.floats(0.001, 10)), min_size=1, max_size=10), st.floats(0, 1))
def test_no_cost_model_shortens_what_a_step_of_a_measured_size_may_take(steps, base):
    times = StepTimes()
    for each, seconds in steps:
        times.observe(each, seconds)
    bounds = [times.longest(each) for each, _ in steps]
    times.cost = CostModel(base, 0.0, 0.0, 0.0, 0.0)
    assert all(times.longest(each) >= bound for (each, _), bound in zip(steps, bounds, strict=True))


def test_engine_announces_a_step_that_may_take_long_before_it_launches_it():
    times, runner = StepTimes(), AheadStandIn()
    engine = Engine(Scheduler(CONFIG), runner, step_times=times, announce=runner.log.append)
    engine.handle(add(0, [1, 2, 3], max_tokens=3))
    times.observe(work(3, 2), 4.0)  # as slow as this, three tokens may take 12 s
    times.observe(work(1, 0), 0.001)
    while engine.has_work:
        engine.step()
    announced = [said for said in runner.log if isinstance(said, LongStep)]
    assert announced == [LongStep(0, pytest.approx(12.0))]
    assert runner.log[:2] == [announced[0], ("launch", 0)]
