from dataclasses import replace
from functools import partial
from itertools import count

import msgspec
import numpy as np
import pytest
from msgspec import structs

from inflight_cost.model import CostModel, StepWork
from inflight_engine.cache import arriving, prefix
from inflight_engine.cache.block_pool import BlockPool
from inflight_engine.cache.loading import LoadRates
from inflight_engine.cache.prefix import block_hashes, root_hash
from inflight_engine.engine import MAX_CONSECUTIVE_FAILURES, Engine
from inflight_engine.load_rates import LoadRateMeter
from inflight_engine.messages import (
    AddRequest,
    CancelRequest,
    Configure,
    Configured,
    FlushRecord,
    RecordFlushed,
    Sleep,
    Starting,
    StepCost,
)
from inflight_engine.output import StepOutput, TokenLogprobs
from inflight_engine.recording.lines import CacheForgotten, LimitsChanged, TimePassed, WeightsChanged
from inflight_engine.recording.reader import Recording
from inflight_engine.recording.recorder import Recorder
from inflight_engine.recording.replay import Survey, replay
from inflight_engine.request import FinishReason, SamplingParams, Scheduling
from inflight_engine.scheduling.config import SchedulerConfig
from inflight_engine.scheduling.scheduler import Scheduler
from inflight_engine.step_times import StepTimes
from inflight_settings.limits import Limits, LimitsInForce
from inflight_settings.scheduling import ServiceClass
from tests.engine.scheduling.model_runner import reference_output


class StandIn:
    """A stand-in for the runner: each token is a hash of those before it. Raises in the steps it is told to."""

    lookahead = False

    def __init__(self, failing_steps):
        self.failing_steps = failing_steps
        self.tokens = {}
        self.num_freed = 0

    def launch(self, plan):
        for start in plan.starts:
            self.tokens[start.slot] = start.token_ids.tolist()
        sampled = []
        for slot in plan.sampled_slots.tolist():
            sampled += reference_output(self.tokens[slot], 1)
            self.tokens[slot].append(sampled[-1])
        if plan.step in self.failing_steps:
            raise RuntimeError("made to fail")
        logprobs = [TokenLogprobs(slot, -0.5, [1], [-0.5]) for slot in plan.sampled_slots.tolist()]
        self.output = StepOutput(np.array(sampled, np.int32), logprobs)

    def collect(self):
        return self.output

    def free_cache(self):
        self.num_freed += 1


class AheadStandIn(StandIn):
    """A stand-in whose steps overlap: tokens are there when they are collected, and a step may fail then instead.

    Attributes:
        log: its calls, in order.
    """

    lookahead = True

    def __init__(self, failing_launches=frozenset(), failing_collections=frozenset()):
        super().__init__(failing_launches)
        self.failing_collections = failing_collections
        self.launched = []
        self.log = []

    def launch(self, plan):
        assert len(self.launched) < 2
        self.log.append(("launch", plan.step))
        super().launch(plan)
        self.launched.append((plan.step, self.output))

    def collect(self):
        step, output = self.launched.pop(0)
        self.log.append(("collect", step))
        if step in self.failing_collections:
            self.launched.clear()
            raise RuntimeError("made to fail")
        return output


CONFIG = SchedulerConfig(
    Limits(4, 32), num_blocks=64, block_size=4, max_model_len=64, classes=(ServiceClass("a"), ServiceClass("b"))
)
IN_FORCE = LimitsInForce(CONFIG.capacity)


ROOT = root_hash("", "")
SWAPPING = replace(CONFIG, num_blocks=8, block_size=2, max_model_len=16, preemption="swap", num_host_blocks=16)


class Watched(StandIn):
    """Raises in the first step that `breaks(plan)` is true of."""

    def __init__(self, breaks):
        super().__init__(frozenset())
        self.breaks = breaks
        self.broken = None

    def launch(self, plan):
        if self.broken is None and self.breaks(plan):
            self.broken = plan
            raise RuntimeError("made to fail")
        super().launch(plan)


def swapping_engine(breaks):
    """An engine that is short of blocks, with requests whose blocks go to host memory and come back."""
    scheduler, runner = Scheduler(SWAPPING), Watched(breaks)
    engine = Engine(scheduler, runner)
    for request_id in range(4):
        engine.handle(add(request_id, [request_id] * 3, max_tokens=10))
    return engine, scheduler, runner


def make_engine(failing_steps=frozenset(), record=None, runner=None, config=CONFIG, **parts):
    scheduler = Scheduler(config)
    if record is not None:
        parts["recorder"] = Recorder.to_file(str(record), config, scheduler.is_cached)
    return Engine(scheduler, StandIn(failing_steps) if runner is None else runner, **parts)


def run(engine):
    """All reports until nothing is left to do."""
    reports = []
    while engine.has_work:
        reports.append(engine.step())
    return reports


def outputs(reports):
    """Tokens of each request, as an API process reads the reports."""
    owners, found = {}, {}
    for report in reports:
        owners |= {admission.slot: admission.request_id for admission in report.admitted}
        for slot, token in tokens(report).items():
            found.setdefault(owners[slot], []).append(token)
    return found


def add(request_id, prompt, max_tokens=4, stop=()):
    sampling = SamplingParams(max_tokens=max_tokens, stop_token_ids=stop)
    return AddRequest(request_id, np.array(prompt, np.int32).tobytes(), sampling, 0.0, Scheduling("a"))


def tokens(report):
    slots, token_ids = np.frombuffer(report.slots, np.int32), np.frombuffer(report.token_ids, np.int32)
    return dict(zip(slots.tolist(), token_ids.tolist(), strict=True))


def test_what_happens_to_the_prefix_cache_is_told_once_and_only_where_it_is_recorded():
    events = []
    scheduler = Scheduler(CONFIG, make_pool=partial(BlockPool, events=events))
    engine, silent = Engine(scheduler, StandIn(frozenset()), block_events=events), make_engine()
    prompt = [*range(2 * CONFIG.block_size)]
    for each in (engine, silent):
        each.handle(add(0, prompt, max_tokens=1))
        run(each)
    changed = engine.blocks_changed()
    assert changed is not None
    assert [event.token_ids for event in changed.events] == [np.array(prompt, np.int32).tobytes()]
    assert engine.blocks_changed() is None
    assert silent.blocks_changed() is None


def test_a_request_is_admitted_answered_and_finished_through_reports():
    engine = make_engine()
    engine.handle(add(7, [1, 2, 3]))
    reports = []
    while engine.has_work:
        reports.append(engine.step())
    (admission,) = reports[0].admitted
    assert admission.request_id == 7
    assert [tokens(report)[admission.slot] for report in reports] == reference_output([1, 2, 3], 4)
    assert [(f.request_id, f.reason) for f in reports[-1].finished] == [(7, FinishReason.LENGTH)]
    assert reports[0].stats.work == StepWork(0, 3, 0, 1 + 2 + 3)
    assert reports[1].stats.work == StepWork(1, 0, 4, 0)
    assert reports[-1].stats.num_running == 0


def test_beside_large_requests_that_arrive_at_once_each_step_has_the_token_of_a_stream(monkeypatch):
    """128 answers to a prompt of 131,000 tokens took 0.8 s before the next step."""
    monkeypatch.setattr(arriving, "BLOCKS_PER_TURN", 10)
    monkeypatch.setattr(arriving, "REQUEST_BLOCKS", 1)
    hashed, real = [], prefix.block_hashes
    monkeypatch.setattr(prefix, "block_hashes", lambda *given: hashed.append(real(*given)) or hashed[-1])
    config = replace(CONFIG, num_blocks=4000, block_size=2, max_model_len=300, capacity=Limits(8, 400))
    engine = make_engine(config=config)
    engine.handle(add(0, [7], max_tokens=100))
    engine.step()
    for number in range(1, 6):
        engine.handle(add(number, [number] * 200, max_tokens=2))
    engine.handle(CancelRequest(3, FinishReason.ABORT))
    reports = []
    for _ in range(60):
        hashed.clear()
        reports.append(engine.step())
        assert sum(map(len, hashed)) <= 10 + 1  # blocks that decodes fill are hashed as well
        assert 0 in tokens(reports[-1])
    assert [each.request_id for each in reports[0].finished] == [3]
    assert [each.request_id for report in reports for each in report.admitted] == [1, 2, 4, 5]


def test_a_message_without_a_prompt_has_that_of_the_request_before():
    engine = make_engine()
    engine.handle(add(0, [1, 2, 3]))
    engine.handle(structs.replace(add(1, []), prompt_token_ids=None))
    assert outputs(run(engine)) == {number: reference_output([1, 2, 3], 4) for number in (0, 1)}


def test_a_cancelled_request_is_reported_even_when_no_step_is_left_to_run():
    engine = make_engine()
    engine.handle(add(1, [1]))
    engine.handle(CancelRequest(1, FinishReason.TIMEOUT))
    assert engine.has_work
    report = engine.step()
    assert [(f.request_id, f.reason) for f in report.finished] == [(1, FinishReason.TIMEOUT)]
    assert not engine.has_work


def test_cancelling_an_unknown_request_is_no_error():
    engine = make_engine()
    engine.handle(CancelRequest(99, FinishReason.ABORT))
    assert not engine.has_work


def test_limits_are_in_force_from_the_next_step_and_acknowledged():
    engine = make_engine()
    limits = LimitsInForce(Limits(1, 2), 3)
    assert engine.handle(Configure(5, limits)) == Configured(5, limits, {"a": 1.0, "b": 1.0})
    engine.handle(add(1, [1, 2, 3]))
    engine.handle(add(2, [1]))
    assert engine.step().stats.num_prefill_tokens == 2


def test_an_engine_without_requests_sleeps_and_the_next_request_finds_nothing_cached():
    runner = StandIn(frozenset())
    engine = make_engine(runner=runner)
    prompt = [*range(3 * CONFIG.block_size + 1)]
    answers, cached = [], []
    for number in range(3):
        if number == 2:
            slept = engine.handle(Sleep(7))
            assert (slept.call_id, slept.stats.kv_usage, runner.num_freed) == (7, 0.0, 1)
            assert not engine.has_work
        engine.handle(add(number, prompt))
        reports = run(engine)
        answers += outputs(reports).values()
        cached += [each.num_cached_tokens for report in reports for each in report.admitted]
    assert cached == [0, 3 * CONFIG.block_size, 0]
    assert answers == [reference_output(prompt, 4)] * 3


def test_an_engine_with_requests_does_not_sleep():
    runner = StandIn(frozenset())
    engine = make_engine(runner=runner)
    engine.handle(add(1, [1, 2, 3]))
    while engine.has_work:
        assert engine.handle(Sleep(1)).stats is None
        engine.step()
    assert engine.handle(Sleep(2)).stats is not None
    assert runner.num_freed == 1


def test_sleep_forgets_the_tier_in_host_memory_too():
    engine, scheduler, _ = swapping_engine(lambda plan: False)
    run(engine)
    assert scheduler.offload.usage() > 0
    slept = engine.handle(Sleep(1))
    assert slept.stats.num_tier_blocks == scheduler.offload.usage() == 0


def test_a_recording_with_sleep_replays_to_the_same_plans(tmp_path):
    path = tmp_path / "record"
    engine = make_engine(record=path)
    for number in range(4):
        engine.handle(add(number, [*range(2 * CONFIG.block_size + 1)]))
        run(engine)
        if number == 1:
            engine.handle(Sleep(0))
    engine.close()
    recording = Recording(path)
    events = list(recording.events())
    assert sum(isinstance(event, CacheForgotten) for event in events) == 1
    survey = Survey(recording.events())
    assert replay(CONFIG, recording.events(), survey) is None
    without = [event for event in events if not isinstance(event, CacheForgotten)]
    assert replay(CONFIG, without, Survey(without)) is not None


def test_a_request_the_scheduler_refuses_ends_with_an_error_and_costs_nobody_else():
    engine = make_engine()
    engine.handle(add(1, [1] * 100))
    engine.handle(add(2, [1]))
    report = engine.step()
    assert [(f.request_id, f.reason) for f in report.finished] == [(1, FinishReason.ERROR)]
    assert len(report.admitted) == 1


def test_a_failed_step_ends_its_own_requests_with_an_error_and_spares_the_waiting_ones():
    engine = make_engine({1})
    for request_id in range(6):
        engine.handle(add(request_id, [request_id + 1]))
    engine.step()
    failed = engine.step()
    assert {f.request_id for f in failed.finished} == {0, 1, 2, 3}
    assert {f.reason for f in failed.finished} == {FinishReason.ERROR}
    finished = {}
    while engine.has_work:
        finished |= {f.request_id: f.reason for f in engine.step().finished}
    assert finished == {4: FinishReason.LENGTH, 5: FinishReason.LENGTH}


def test_the_log_names_the_requests_of_a_failed_step_by_their_clients_ids(caplog):
    engine = make_engine({0})
    engine.handle(msgspec.structs.replace(add(0, [1]), external_id="from-the-client"))
    engine.step()
    ids = [record.ids.request_id for record in caplog.records if hasattr(record, "ids")]
    assert ids == ["from-the-client"]


class PartlyFailing(AheadStandIn):
    """A runner without memory for the request of slot 1, in one step."""

    def __init__(self, step, lookahead):
        super().__init__()
        self.step, self.lookahead = step, lookahead

    def collect(self):
        step = self.launched[0][0]
        output = super().collect()
        return output._replace(failed_slots=(1,)) if step == self.step else output


@pytest.mark.parametrize("lookahead", [False, True])
@pytest.mark.parametrize("max_tokens", [6, 3], ids=["goes on", "at its end"])
def test_a_request_whose_own_part_of_a_step_fails_ends_with_an_error_and_the_others_go_on(lookahead, max_tokens):
    engine = make_engine(runner=PartlyFailing(2, lookahead))
    for request_id in range(3):
        engine.handle(add(request_id, [request_id + 1], max_tokens=max_tokens))
    finished, tokens = {}, {}
    while engine.has_work:
        report = engine.step()
        finished |= {each.request_id: each.reason for each in report.finished}
        for slot, token in zip(
            np.frombuffer(report.slots, np.int32), np.frombuffer(report.token_ids, np.int32), strict=True
        ):
            tokens.setdefault(int(slot), []).append(int(token))
    ended = sorted(finished)
    assert ended == [0, 1, 2]
    assert sorted(finished.values()) == sorted([FinishReason.OUT_OF_MEMORY, FinishReason.LENGTH, FinishReason.LENGTH])
    assert len(tokens[1]) == 2, "none of the step that failed for it"
    assert all(len(tokens[slot]) == max_tokens for slot in tokens if slot != 1)
    assert not engine._scheduler.has_work


class LittleMemory(AheadStandIn):
    """A runner without memory for chunks of one prompt token, whatever else is in the step."""

    def __init__(self, token, lookahead):
        super().__init__()
        self.token, self.lookahead = token, lookahead
        self.uncomputed = {}

    def launch(self, plan):
        super().launch(plan)
        slots = [chunk.slot for chunk in plan.prefills if self.token in self.tokens[chunk.slot][chunk.start :]]
        self.uncomputed[plan.step] = tuple(slots)

    def collect(self):
        slots = self.uncomputed[self.launched[0][0]]
        return super().collect()._replace(failed_slots=slots, out_of_memory=bool(slots))


@pytest.mark.parametrize("lookahead", [False, True])
def test_a_request_whose_chunk_finds_no_memory_ends_with_that_and_nobody_keeps_what_it_left(tmp_path, lookahead):
    path = tmp_path / "record"
    config = replace(CONFIG, num_blocks=128)
    engine = make_engine(record=path, runner=LittleMemory(77, lookahead), config=config)
    common = [9] * 8
    prompts = {
        0: [1],
        1: [*common, *[77] * 24, 5],
        2: [2, 2],
        3: [*common, 3],
        4: [*common, *[77] * 20],
        5: [*common, 4],
    }
    reports = []
    for request_id, prompt in prompts.items():
        engine.handle(add(request_id, prompt, max_tokens=12))
        if request_id in (0, 2, 4):
            reports.append(engine.step())
    reports += run(engine)
    reasons = {each.request_id: each.reason for report in reports for each in report.finished}
    failed = {request_id for request_id, prompt in prompts.items() if 77 in prompt}
    assert {each for each, reason in reasons.items() if reason is FinishReason.OUT_OF_MEMORY} == failed
    found = outputs(reports)
    for request_id in prompts.keys() - failed:
        assert reasons[request_id] is FinishReason.LENGTH
        assert found[request_id] == reference_output(prompts[request_id], 12)
    assert failed.isdisjoint(found)
    assert reports[-1].stats.num_out_of_memory > 0
    engine.close()
    recording = Recording(path)
    assert replay(recording.header.config, recording.events(), Survey(recording.events())) is None


def test_a_step_without_memory_ends_its_requests_with_that():
    runner = StandIn({0})
    launch = runner.launch

    def without_memory(plan):
        try:
            launch(plan)
        except RuntimeError as error:
            raise MemoryError from error

    runner.launch = without_memory
    engine = make_engine(runner=runner)
    engine.handle(add(1, [1]))
    report = engine.step()
    assert [(each.request_id, each.reason) for each in report.finished] == [(1, FinishReason.OUT_OF_MEMORY)]
    assert report.stats.num_out_of_memory == 1


def test_what_a_failed_step_was_to_copy_out_is_not_found_in_the_tier():
    engine, scheduler, runner = swapping_engine(lambda plan: plan.stores is not None)
    while runner.broken is None:
        engine.step()
    assert scheduler.offload.usage() == 0


def test_what_a_failed_step_was_to_copy_back_is_not_found_in_the_prefix_cache():
    engine, scheduler, runner = swapping_engine(lambda plan: any(start.host_block_ids for start in plan.starts))
    hashes = [block_hashes(np.array([i] * 3 + reference_output([i] * 3, 10), np.int32), 2, ROOT) for i in range(4)]
    while runner.broken is None:
        found = {each for own in hashes for each in own if scheduler.is_cached(each)}
        engine.step()
    copied = set()
    for start in runner.broken.starts:
        end = start.num_computed_tokens // SWAPPING.block_size
        copied.update(hashes[start.request_id][end - len(start.host_block_ids) : end])
    assert copied <= found
    assert not len(scheduler.running.pool.match([next(iter(copied))]))


def test_an_engine_that_fails_step_after_step_gives_up():
    engine = make_engine(set(range(10)))
    for request_id in range(MAX_CONSECUTIVE_FAILURES - 1):
        engine.handle(add(request_id, [1]))
        engine.step()
    engine.handle(add(100, [1]))
    with pytest.raises(RuntimeError, match="made to fail"):
        engine.step()


def test_an_engine_whose_device_failed_gives_up_at_once_and_ends_no_request():
    engine = make_engine({0}, device_failed=lambda error: "made to fail" in str(error))
    engine.handle(add(0, [1]))
    with pytest.raises(RuntimeError, match="made to fail"):
        engine.step()


@pytest.mark.parametrize("runner", [StandIn(frozenset()), AheadStandIn()])
def test_a_start_that_is_to_be_announced_is_announced_before_its_step_and_others_are_not(runner):
    log = runner.log = []
    launch = runner.launch

    def logged(plan):
        log.append([start.request_id for start in plan.starts])
        launch(plan)

    runner.launch = logged
    engine = make_engine(runner=runner, announce=log.append)
    for request_id in range(3):
        engine.handle(msgspec.structs.replace(add(request_id, [1, 2]), announce_start=request_id != 1))
    engine.handle(CancelRequest(2, FinishReason.ABORT))
    run(engine)
    announced = [each for each in log if isinstance(each, Starting)]
    assert announced == [Starting([0])]
    assert log.index(announced[0]) < log.index([0, 1])


def test_log_probabilities_go_out_with_the_tokens_of_their_step():
    engine = make_engine()
    engine.handle(add(1, [1, 2]))
    report = engine.step()
    assert [each.slot for each in report.logprobs] == list(tokens(report))


def test_class_weights_are_acknowledged_with_all_that_are_in_force():
    engine = make_engine()
    answer = engine.handle(Configure(3, IN_FORCE, {"b": 2.5}))
    assert answer == Configured(3, IN_FORCE, {"a": 1.0, "b": 2.5})


def test_a_configuration_that_cannot_be_applied_changes_nothing(tmp_path):
    engine = make_engine(record=tmp_path / "record")
    with pytest.raises(ValueError, match="no service class c"):
        engine.handle(Configure(3, LimitsInForce(Limits(1, 2)), {"b": 2.5, "c": 1.0}))
    assert engine.handle(Configure(4, IN_FORCE)) == Configured(4, IN_FORCE, {"a": 1.0, "b": 1.0})
    engine.close()
    assert list(Recording(tmp_path / "record").events()) == []


def test_only_what_changes_is_recorded(tmp_path):
    engine = make_engine(record=tmp_path / "record")
    limits = LimitsInForce(Limits(2, 8), 1)
    engine.handle(Configure(1, limits))
    engine.handle(Configure(2, limits, {"a": 3.0}))
    engine.handle(Configure(3, limits))
    engine.handle(Configure(4, IN_FORCE, {"b": 0.5}))
    engine.close()
    assert list(Recording(tmp_path / "record").events()) == [
        LimitsChanged(limits.limits, 1),
        WeightsChanged({"a": 3.0}),
        WeightsChanged({"b": 0.5}),
        LimitsChanged(CONFIG.capacity, 0),
    ]


class Heard:
    """Notes what a recorder hears."""

    def __init__(self):
        self.log = []
        self.limits = self.weights = self.rates = self.prefill_cost = self.time_passed = lambda *_: None

    def added(self, request):
        self.log.append(("added", request.request_id))

    def stepped(self, plan, work, ended, seconds, *, ahead=False, failed_slots=(), failed_loads=(), forced=()):
        self.log.append(("stepped", plan.step, [each.request_id for each in ended], ahead))

    def failed(self, plan, work, seconds, *, ahead=False):
        self.log.append(("failed", plan.step, ahead))

    def cancelled(self, request_id, reason):
        self.log.append(("cancelled", request_id, reason))


def test_the_recorder_hears_of_steps_and_of_what_the_scheduler_is_told_in_order():
    recorder = Heard()
    engine = make_engine(runner=AheadStandIn(failing_collections={3}), recorder=recorder)
    engine.handle(add(1, [1], max_tokens=2))
    engine.step()
    engine.handle(add(2, [2]))
    engine.handle(CancelRequest(9, FinishReason.ABORT))
    run(engine)
    assert recorder.log == [
        *(("added", 1), ("stepped", 0, [], True), ("added", 2), ("stepped", 1, [1], True), ("stepped", 2, [], True)),
        *(("failed", 3, True), ("failed", 4, False), ("cancelled", 2, FinishReason.ERROR)),
    ]


def test_measured_rates_reach_the_scheduler():
    engine = make_engine(load_rates=LoadRateMeter(1000.0), clock=iter(range(100)).__next__)
    engine.handle(add(1, [1, 2, 3]))
    engine.step()
    assert engine._scheduler.offload.rates == LoadRates(prefill=3.0, copy=1000.0)


def test_the_next_step_is_launched_before_the_tokens_of_one_are_collected():
    runner = AheadStandIn()
    engine = make_engine(runner=runner)
    engine.handle(add(7, [1, 2, 3]))
    reports = run(engine)
    assert runner.log == [
        *(("launch", 0), ("launch", 1), ("collect", 0), ("launch", 2), ("collect", 1)),
        *(("launch", 3), ("collect", 2), ("collect", 3)),
    ]
    assert [report.step for report in reports] == [0, 1, 2, 3]
    assert outputs(reports) == {7: reference_output([1, 2, 3], 4)}
    assert [(f.request_id, f.reason) for f in reports[-1].finished] == [(7, FinishReason.LENGTH)]


@pytest.mark.parametrize("stops", [False, True])
def test_overlapping_steps_report_the_same_tokens_for_every_request(stops):
    expected, found = {}, []
    for runner in (StandIn(frozenset()), AheadStandIn()):
        engine = make_engine(runner=runner)
        reports = []
        for number in range(30):
            prompt = [number % 3] * (1 + number % 7)
            stop = tuple(reference_output(prompt, 9)[number % 4 :][:1]) if stops else ()
            engine.handle(add(number, prompt, 1 + number % 9, stop))
            expected[number] = reference_output(prompt, 1 + number % 9, stop)
            reports.append(engine.step())
        found.append(outputs(reports + run(engine)))
    assert found == [expected, expected]


def test_a_step_under_way_is_taken_in_though_nobody_is_left_in_it():
    runner = AheadStandIn()
    engine = make_engine(runner=runner)
    engine.handle(add(1, [1], max_tokens=8, stop=tuple(reference_output([1], 2)[1:])))
    reports = run(engine)
    assert runner.launched == []
    assert [report.step for report in reports] == [0, 1, 2]
    assert [len(report.finished) for report in reports] == [0, 1, 0]
    assert tokens(reports[2]) == {}


def test_tokens_of_a_request_that_was_cancelled_under_way_go_to_nobody():
    engine = make_engine(runner=AheadStandIn())
    for request_id in range(5):
        engine.handle(add(request_id, [request_id + 1], max_tokens=8))
    reports = [engine.step()]
    slot = {admission.request_id: admission.slot for admission in reports[0].admitted}[2]
    engine.handle(CancelRequest(2, FinishReason.ABORT))
    reports.append(engine.step())
    assert slot not in tokens(reports[1])
    assert slot not in [each.slot for each in reports[1].logprobs]
    assert [(f.request_id, f.reason) for f in reports[1].finished] == [(2, FinishReason.ABORT)]
    found = outputs(reports + run(engine))
    assert found.pop(2) == reference_output([3], 1)
    assert found == {request_id: reference_output([request_id + 1], 8) for request_id in (0, 1, 3, 4)}


def test_a_launch_that_fails_spares_the_step_before_it():
    engine = make_engine(runner=AheadStandIn(failing_launches={1}))
    engine.handle(add(1, [1], max_tokens=4))
    reports = run(engine)
    assert outputs(reports) == {1: reference_output([1], 1)}
    assert [[(f.request_id, f.reason) for f in report.finished] for report in reports] == [
        [],
        [(1, FinishReason.ERROR)],
    ]


def test_a_step_that_was_launched_after_one_that_fails_is_computed_again():
    engine = make_engine(runner=AheadStandIn(failing_collections={1}))
    engine.handle(add(1, [1], max_tokens=8))
    reports = [engine.step()]
    engine.handle(add(2, [2], max_tokens=8))
    reports += run(engine)
    assert outputs(reports) == {1: reference_output([1], 1), 2: reference_output([2], 8)}
    ended = {f.request_id: f.reason for report in reports for f in report.finished}
    assert ended == {1: FinishReason.ERROR, 2: FinishReason.LENGTH}
    assert [a.request_id for report in reports for a in report.admitted] == [1, 2]


def test_overlapping_steps_share_no_time():
    now = iter(range(1000))
    engine = make_engine(runner=AheadStandIn(), clock=now.__next__)
    engine.handle(add(1, [1], max_tokens=6))
    reports = run(engine)
    # From the first reading of the clock to the last; a loop without overlap would count nothing twice either.
    assert sum(report.stats.step_seconds for report in reports) == next(now) - 1
    assert all(report.stats.schedule_seconds > 0 for report in reports)


def test_the_cost_of_steps_reaches_what_predicts_them_and_only_where_it_is_good():
    times = StepTimes()
    engine = make_engine(step_times=times)
    cost = CostModel(0.1, 0.0, 0.02, 0.0, 0.0)
    assert engine.handle(StepCost(cost, error=0.2, steps=50.0)) is None
    assert cost == times.cost == engine._scheduler.deadlines.cost
    engine.handle(StepCost(cost, error=0.3, steps=50.0))
    assert times.cost is engine._scheduler.deadlines.cost is None


def test_time_in_which_steps_overlap_is_measured_once():
    class Meter:
        total = 0.0

        def observe(self, num_prefill_tokens, num_decode_tokens, seconds):
            self.total += seconds

    now, meter = iter(range(1000)), Meter()
    engine = make_engine(runner=AheadStandIn(), clock=now.__next__, load_rates=meter)
    engine.handle(add(1, [1], max_tokens=6))
    run(engine)
    assert 0 < meter.total < next(now)


@pytest.mark.parametrize("runner", [StandIn(set()), AheadStandIn()], ids=["", "ahead"])
def test_the_deadline_policy_goes_by_the_engines_clock_and_replays_without_a_difference(tmp_path, runner):
    path = tmp_path / "record.jsonl.gz"
    now = count(100.0, 0.125)
    config = replace(CONFIG, policy="deadline", ttft_target=4.0, late_share=0.25)
    engine = make_engine((), path, runner, config, clock=now.__next__)
    arrivals = {}
    for number in range(60):
        arrivals[number] = next(now)
        request = add(number, [number] * (3 + number % 5), max_tokens=6)
        engine.handle(msgspec.structs.replace(request, arrival_time=arrivals[number]))
        engine.step()
    admitted = [each.request_id for report in run(engine) for each in report.admitted]
    assert admitted != sorted(admitted)
    engine.close()
    recording = Recording(path)
    survey = Survey(recording.events())
    assert any(isinstance(each, TimePassed) for each in recording.events())
    assert replay(recording.header.config, recording.events(), survey) is None


@pytest.mark.parametrize(
    "runner",
    [StandIn(set()), StandIn({2, 5}), AheadStandIn(), AheadStandIn({2, 9}), AheadStandIn({15}, {3, 6, 11, 40})],
    ids=["", "failing", "ahead", "ahead, failing launches", "ahead, failing"],
)
def test_what_the_engine_records_replays_without_a_difference(tmp_path, runner):
    path = tmp_path / "record.jsonl.gz"
    engine = make_engine((), path, runner, load_rates=LoadRateMeter(1000.0))
    for number in range(40):
        engine.handle(add(number, [number % 3] * (5 + number), max_tokens=1 + number % 7))
        if number % 5 == 0:
            engine.handle(CancelRequest(number - 1, FinishReason.ABORT))
            engine.handle(Configure(0, LimitsInForce(Limits(1 + number % 4, 8 + number % 20)), {"a": 1.0 + number}))
        engine.handle(StepCost(CostModel(0.1, 0.0, 0.001 * number, 0.0, 0.0), 0.01 * number, 50.0))
        engine.step()
    while engine.has_work:
        engine.step()
    assert engine.handle(FlushRecord(7)) == RecordFlushed(7)
    recording = Recording(path)
    survey = Survey(recording.events())
    assert survey.num_steps > 40
    assert replay(recording.header.config, recording.events(), survey) is None
    engine.close()
