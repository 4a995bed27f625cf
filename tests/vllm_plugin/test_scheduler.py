"""The live scheduler on a scheduler that stands in for vLLM's."""

import sys
import time
import types
from collections import deque
from threading import Thread
from types import SimpleNamespace

import pytest

from inflight_cost.model import CostModel
from inflight_fit.online import MeasuredCost
from inflight_settings.limits import Limits, LimitsInForce
from inflight_vllm import reports, steps
from inflight_vllm import scheduler as scheduler_module
from inflight_vllm.board import Board
from tests.vllm_plugin.test_steps import ABORTED, FakeRequest

ENGINE = SimpleNamespace(
    scheduler_config=SimpleNamespace(
        async_scheduling=True,
        policy="fcfs",
        scheduler_cls="inflight_vllm",
        get_scheduler_cls=lambda: AsyncScheduler,
        enable_chunked_prefill=True,
        disable_chunked_mm_input=False,
    ),
    parallel_config=SimpleNamespace(data_parallel_size=1, _api_process_count=1),
    cache_config=SimpleNamespace(num_gpu_blocks=100, enable_prefix_caching=True),
    model_config=SimpleNamespace(max_model_len=2048),
    device_config=SimpleNamespace(device_type="cpu"),
)


class Fifo(deque):
    """Stands in for vLLM's queues."""

    add_request, pop_request = deque.append, deque.popleft


class Scheduler:
    """Stands in for vLLM's: admits requests in order under the limits, and generates `length` tokens for each."""

    length = 3

    def __init__(self, vllm_config, block_size=16):
        self.vllm_config, self.block_size = vllm_config, block_size
        self.max_num_running_reqs = self.max_num_active_reqs = 8
        self.max_num_scheduled_tokens = 64
        self.requests, self.running, self.waiting = {}, [], Fifo()
        self.connector = None

    def add_request(self, request):
        self.requests[request.request_id] = request
        self.waiting.add_request(request)

    def schedule(self, throttle_prefills=False):
        while self.waiting and len(self.running) < self.max_num_active_reqs:
            self.running.append(self.waiting.pop_request())
        budget, scheduled, new = self.max_num_scheduled_tokens, {}, []
        for request in self.running:
            wanted = request.num_prompt_tokens + request.num_output_tokens - request.num_computed_tokens
            count = min(wanted, budget)
            if count:
                if not request.num_computed_tokens:
                    new.append(request)
                scheduled[request.request_id] = count
                request.num_computed_tokens += count
                budget -= count
        return SimpleNamespace(
            num_scheduled_tokens=scheduled,
            total_num_scheduled_tokens=sum(scheduled.values()),
            scheduled_new_reqs=new,
            scheduled_cached_reqs=SimpleNamespace(resumed_req_ids=set()),
        )

    def update_from_output(self, scheduler_output, model_runner_output):
        for name in scheduler_output.num_scheduled_tokens:
            request = self.requests[name]
            if request.num_computed_tokens < request.num_prompt_tokens:
                continue
            request.num_output_tokens += 1
            if request.num_output_tokens == self.length:
                request.status = "stopped"
                self.running.remove(request)
                del self.requests[name]
        return {}

    def shutdown(self):
        self.ended = True


class AsyncScheduler(Scheduler):
    """Stands in for vLLM's."""


@pytest.fixture
def live(monkeypatch, tmp_path):
    """The module `inflight_vllm.scheduler`, with the stand-ins in the place of vLLM."""
    content = {
        "vllm.v1.core.sched.async_scheduler": {"AsyncScheduler": AsyncScheduler},
        "vllm.v1.core.sched.scheduler": {"Scheduler": Scheduler},
        "vllm.v1.request": {"RequestStatus": SimpleNamespace(FINISHED_ABORTED=ABORTED)},
    }
    names = {name.rsplit(".", depth)[0] for name in content for depth in range(5)} | set(content)
    for name in names:
        module = types.ModuleType(name)
        module.__dict__.update(content.get(name, {}))
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("INFLIGHT_STATE_FILE", str(tmp_path / "state"))
    monkeypatch.setattr(scheduler_module, "problem", lambda: None)
    monkeypatch.setattr(reports, "_SECONDS", 0.01)
    made, make = [], scheduler_module.LiveScheduler

    def kept(**arguments):
        made.append(make(**arguments))
        return made[-1]

    monkeypatch.setattr(scheduler_module, "LiveScheduler", kept)
    yield scheduler_module
    for scheduler in made:
        scheduler.shutdown()
        assert scheduler.ended
    sys.modules.pop("inflight_vllm.live", None)


def engine(**changes):
    """Returns the configuration with other settings of the scheduler."""
    settings = SimpleNamespace(**{**vars(ENGINE.scheduler_config), **changes})
    return SimpleNamespace(**{**vars(ENGINE), "scheduler_config": settings})


def step(scheduler):
    output = scheduler.schedule()
    scheduler.update_from_output(output, None)
    return output.num_scheduled_tokens


@pytest.fixture
def board(tmp_path):
    return lambda: Board.open(tmp_path / "state")


def until(condition):
    """Returns the first true value of a condition on what the thread beside the steps does."""
    end = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.005)
    return found


def test_it_is_of_the_kind_that_vllm_would_make(live):
    assert isinstance(live.LiveScheduler(vllm_config=ENGINE), AsyncScheduler)
    made = live.LiveScheduler(vllm_config=engine(async_scheduling=False))
    assert isinstance(made, Scheduler)
    assert not isinstance(made, AsyncScheduler)


def test_capacities_are_vllms_own_flags(live, board):
    live.LiveScheduler(vllm_config=ENGINE)
    report = board().report.read()
    assert (report.max_num_seqs, report.max_num_batched_tokens, report.block_size, report.num_blocks) == (
        8,
        64,
        16,
        100,
    )
    assert (report.policy, report.problem) == ("fcfs", None)


def test_limits_hold_from_the_next_step_on_and_never_exceed_the_capacities(live, board):
    scheduler = live.LiveScheduler(vllm_config=ENGINE)
    for number in range(20):
        scheduler.add_request(FakeRequest(str(number), 4))
    api = board()
    api.limits.write(LimitsInForce(Limits(2, 64), 1))
    assert list(step(scheduler)) == ["0", "1"]
    api.limits.write(LimitsInForce(Limits(5, 10), 2))
    found = step(scheduler)
    assert (len(scheduler.running), sum(found.values())) == (5, 10)
    api.limits.write(LimitsInForce(Limits(99, 9999), 3))
    step(scheduler)
    assert (scheduler.max_num_active_reqs, scheduler.max_num_scheduled_tokens) == (8, 64)
    assert scheduler.max_num_running_reqs == 8


def test_running_requests_go_on_when_the_limit_falls(live, board):
    scheduler = live.LiveScheduler(vllm_config=ENGINE)
    for number in range(6):
        scheduler.add_request(FakeRequest(str(number), 4))
    step(scheduler)
    board().limits.write(LimitsInForce(Limits(1, 64), 1))
    assert len(step(scheduler)) == 6


class Cache:
    """Stands in for vLLM's prefix cache, which has `found` tokens of each prompt."""

    found = 0

    def __init__(self):
        self.coordinator = self

    def find_longest_cache_hit(self, block_hashes, most):
        return ([],), min(self.found, most), 0


@pytest.fixture
def by_deadline(live, monkeypatch):
    """A scheduler of requests that have a target."""
    monkeypatch.setenv("INFLIGHT_TTFT_TARGET", "1")
    scheduler = live.LiveScheduler(vllm_config=engine(policy="priority"))
    scheduler.kv_cache_manager = Cache()
    return scheduler


def test_with_targets_a_request_that_is_late_lets_others_pass(by_deadline, board):
    scheduler, now = by_deadline, time.time()
    board().limits.write(LimitsInForce(Limits(1, 64), 1))
    for name, wait in (("late", -5.0), ("second", 31.0), ("first", 30.0)):
        scheduler.add_request(FakeRequest(name, 4, deadline=now + wait))
    order = []
    while scheduler.requests:
        order += [name for name in step(scheduler) if name not in order]
    assert order == ["first", "second", "late"]


def test_what_the_prefix_cache_has_of_a_prompt_takes_no_time(by_deadline, board):
    plugin = by_deadline._inflight
    request = FakeRequest("long", 4001, deadline=time.time() + 30.0)

    def left():
        return request.deadline - plugin.latest_start(request)

    assert left() == pytest.approx(0.0, abs=0.001), "nothing is known of the cost"
    plugin._cost.measured = MeasuredCost(CostModel(0.0, 0.0, 0.01, 0.0, 0.0), 0.1, 100.0)
    assert left() == pytest.approx(40.01 + 0.2, abs=0.001), "a fifth of the target is for others"
    by_deadline.kv_cache_manager.found = 4000
    assert left() == pytest.approx(0.01 + 0.2, abs=0.001)
    request.skip_reading_prefix_cache = True
    assert left() == pytest.approx(40.01 + 0.2, abs=0.001)
    by_deadline.connector = "may have the prompt too"
    assert left() == pytest.approx(0.0, abs=0.001)
    by_deadline.connector = by_deadline.kv_cache_manager = None
    request.skip_reading_prefix_cache = False
    assert left() == pytest.approx(0.0, abs=0.001)
    assert "AttributeError" in until(lambda: board().report.read().problem)


@pytest.mark.parametrize(("policy", "target"), [("fcfs", "1"), ("priority", "")])
def test_without_targets_or_priorities_the_queue_is_vllms(live, monkeypatch, policy, target):
    monkeypatch.setenv("INFLIGHT_TTFT_TARGET", target)
    assert type(live.LiveScheduler(vllm_config=engine(policy=policy)).waiting) is Fifo


def test_demand_steps_and_revision_are_reported(live, board):
    scheduler = live.LiveScheduler(vllm_config=ENGINE)
    board().limits.write(LimitsInForce(Limits(2, 64), 7))
    for number in range(4):
        scheduler.add_request(FakeRequest(str(number), 4))
    count = 0
    while scheduler.requests:
        step(scheduler)
        count += 1
    until(lambda: board().report.read().steps == count)
    report = until(lambda: (found := board().report.read()).output_mean and found)
    assert (report.revision, report.arrived, report.waiting_prompt_tokens) == (7, (4, 16, 64), 0)
    assert report.output_mean == pytest.approx(3, rel=0.05)
    assert min(report.own_seconds, report.beside_seconds, report.step_seconds) > 0


def test_the_cost_is_also_fitted_to_steps_that_ended_before_the_next_fit(live, board):
    scheduler = live.LiveScheduler(vllm_config=ENGINE)
    for number in range(40):
        scheduler.add_request(FakeRequest(str(number), 40))
    while scheduler.requests:
        step(scheduler)
    until(lambda: board().report.read().cost)


def test_a_request_that_ends_without_a_step_is_reported(live, board):
    scheduler = live.LiveScheduler(vllm_config=ENGINE)
    request = FakeRequest("a", 4)
    scheduler.add_request(request)
    until(lambda: board().report.read().waiting_prompt_tokens == 4)
    request.status = ABORTED
    until(lambda: board().report.read().waiting_prompt_tokens == 0)


def test_steps_planned_ahead_are_measured_in_order(live, board, monkeypatch, tmp_path):
    monkeypatch.setenv("INFLIGHT_RECORD_FILE", str(tmp_path / "record"))
    scheduler = live.LiveScheduler(vllm_config=ENGINE)
    scheduler.add_request(FakeRequest("a", 4))
    first = scheduler.schedule()
    second = scheduler.schedule()  # nothing to compute until the first step's token is there
    scheduler.update_from_output(first, None)
    scheduler.update_from_output(second, None)
    while scheduler.requests:
        step(scheduler)
    lines = until(lambda: (found := (tmp_path / "record").read_text().splitlines()[1:])[2:] and found)
    assert [line.split("[")[2].split("]")[0] for line in lines] == ["0, 4, 0, 10, 0", "1, 0, 5, 0, 0", "1, 0, 6, 0, 0"]


def test_vllms_own_limit_of_active_requests_is_the_capacity(live, board, monkeypatch):
    made = Scheduler.__init__

    def fewer(self, **arguments):
        made(self, **arguments)
        self.max_num_active_reqs = 5

    monkeypatch.setattr(Scheduler, "__init__", fewer)
    scheduler = live.LiveScheduler(vllm_config=ENGINE)
    assert board().report.read().max_num_seqs == 5
    board().limits.write(LimitsInForce(Limits(8, 64), 1))
    step(scheduler)
    assert scheduler.max_num_active_reqs == 5


PARTS = {
    "a step's work": (steps.WorkMeter, "work"),
    "a step's seconds": (steps.StepClock, "seconds"),
    "the cost": (steps.CostMeter, "observe"),
    "an arrival": (steps.RequestMeter, "arrive"),
    "the survey": (steps.RequestMeter, "survey"),
    "the limits": (Limits, "at_most"),
    "the start": (Thread, "start"),
}


@pytest.mark.parametrize("part", PARTS)
def test_vllm_goes_on_without_a_plugin_that_fails(live, board, monkeypatch, caplog, part):
    limits = LimitsInForce(Limits(2, 64), 1)

    def fail(*arguments, **named):
        raise ZeroDivisionError

    monkeypatch.setattr(*PARTS[part], fail)
    scheduler = live.LiveScheduler(vllm_config=ENGINE)
    board().limits.write(limits)
    for number in range(4):
        scheduler.add_request(FakeRequest(str(number), 4))
    for _ in range(20):
        step(scheduler)
    assert not scheduler.requests
    until(lambda: board().report.read().problem)
    assert [each.message for each in caplog.records if each.levelname == "ERROR"] == [
        "inflight: the plugin failed; vLLM goes on without it, with the limits as they are"
    ]
    assert "ZeroDivisionError" in board().report.read().problem


def test_a_record_that_cannot_be_written_leaves_the_limits_live_and_says_so(live, board, monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("INFLIGHT_RECORD_FILE", str(tmp_path / "none" / "record"))
    scheduler = live.LiveScheduler(vllm_config=ENGINE)
    board().limits.write(LimitsInForce(Limits(2, 64), 1))
    for number in range(4):
        scheduler.add_request(FakeRequest(str(number), 4))
    assert len(step(scheduler)) == 2
    assert [each.message for each in caplog.records if each.levelname == "WARNING"] == [
        f"inflight: steps cannot be recorded: {tmp_path}/none/record: No such file or directory"
    ]
    assert board().report.read().problem is None


def test_a_configuration_without_what_the_plugin_reads_leaves_vllms_own_scheduler(live, board):
    config = SimpleNamespace(**{**vars(engine()), "parallel_config": SimpleNamespace()})
    assert type(live.LiveScheduler(vllm_config=config)) is AsyncScheduler
    assert "AttributeError" in board().report.read().problem


def test_a_folder_that_cannot_be_written_leaves_vllms_own_scheduler(live, monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("INFLIGHT_STATE_FILE", str(tmp_path / "none" / "state"))
    assert type(live.LiveScheduler(vllm_config=engine())) is AsyncScheduler
    assert "cannot be written" in caplog.text


@pytest.mark.parametrize("changes", [{"enable_chunked_prefill": False}, {"disable_chunked_mm_input": True}])
def test_limits_stay_where_vllm_cannot_split_a_prompt(live, board, changes):
    assert type(live.LiveScheduler(vllm_config=engine(**changes))) is AsyncScheduler
    assert "longer than a limit of tokens" in board().report.read().problem


@pytest.mark.parametrize("reason", ["a version", "several engines", "several API processes"])
def test_what_is_not_supported_runs_vllms_own_scheduler_and_says_why(live, board, monkeypatch, caplog, reason):
    config = ENGINE
    if reason == "a version":
        monkeypatch.setattr(live, "problem", lambda: "vLLM 9.9.9 is not known: a version")
    else:
        engines = 2 if reason == "several engines" else 1
        parallel = SimpleNamespace(data_parallel_size=engines, _api_process_count=3 - engines)
        config = SimpleNamespace(**{**vars(ENGINE), "parallel_config": parallel})
    monkeypatch.setattr(ENGINE.scheduler_config, "scheduler_cls", "this plugin's")
    monkeypatch.delitem(sys.modules, "vllm.v1.request")  # what an unknown vLLM lacks does no harm
    assert type(live.LiveScheduler(vllm_config=config)) is AsyncScheduler
    assert config.scheduler_config.scheduler_cls is None
    assert reason in board().report.read().problem
    assert [reason in each.message for each in caplog.records] == [True]
