import numpy as np
import pytest

from inflight_engine.engine import MAX_CONSECUTIVE_FAILURES, Engine
from inflight_engine.messages import AddRequest, CancelRequest, LimitsApplied, SetLimits
from inflight_engine.request import FinishReason, SamplingParams
from inflight_engine.scheduling.config import SchedulerConfig
from inflight_engine.scheduling.limits import Limits
from inflight_engine.scheduling.scheduler import Scheduler
from tests.engine.scheduling.model_runner import ModelRunner, reference_output


class FailingRunner(ModelRunner):
    """Raises in the steps it is told to."""

    def __init__(self, failing_steps):
        super().__init__(num_blocks=64, block_size=4)
        self.failing_steps = failing_steps

    def execute(self, plan):
        token_ids = super().execute(plan)
        if plan.step in self.failing_steps:
            raise RuntimeError("made to fail")
        return token_ids


def make_engine(runner=None):
    scheduler = Scheduler(SchedulerConfig(Limits(4, 32), num_blocks=64, block_size=4, max_model_len=64))
    return Engine(scheduler, runner or ModelRunner(64, 4))


def add(request_id, prompt, max_tokens=4):
    return AddRequest(request_id, np.array(prompt, np.int32).tobytes(), SamplingParams(max_tokens=max_tokens), 0.0)


def tokens(report):
    slots, token_ids = np.frombuffer(report.slots, np.int32), np.frombuffer(report.token_ids, np.int32)
    return dict(zip(slots.tolist(), token_ids.tolist(), strict=True))


def test_a_request_is_admitted_answered_and_finished_through_reports():
    engine = make_engine()
    engine.handle(add(7, [1, 2, 3]))
    reports = []
    while engine.has_work:
        reports.append(engine.step())
    (admission,) = reports[0].admitted
    assert (admission.request_id, admission.resumed) == (7, False)
    assert [tokens(report)[admission.slot] for report in reports] == reference_output([1, 2, 3], 4)
    assert [(f.request_id, f.reason) for f in reports[-1].finished] == [(7, FinishReason.LENGTH)]
    assert reports[0].stats.num_prefill_tokens == 3
    assert reports[-1].stats.num_running == 0


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
    assert engine.handle(SetLimits(5, Limits(1, 2, revision=3))) == LimitsApplied(5, Limits(1, 2, revision=3))
    engine.handle(add(1, [1, 2, 3]))
    engine.handle(add(2, [1]))
    assert engine.step().stats.num_prefill_tokens == 2


def test_a_request_the_scheduler_refuses_ends_with_an_error_and_costs_nobody_else():
    engine = make_engine()
    engine.handle(add(1, [1] * 100))
    engine.handle(add(2, [1]))
    report = engine.step()
    assert [(f.request_id, f.reason) for f in report.finished] == [(1, FinishReason.ERROR)]
    assert len(report.admitted) == 1


def test_a_failed_step_ends_its_own_requests_with_an_error_and_spares_the_waiting_ones():
    engine = make_engine(FailingRunner({1}))
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


def test_an_engine_that_fails_step_after_step_gives_up():
    engine = make_engine(FailingRunner(set(range(10))))
    for request_id in range(MAX_CONSECUTIVE_FAILURES - 1):
        engine.handle(add(request_id, [1]))
        engine.step()
    engine.handle(add(100, [1]))
    with pytest.raises(RuntimeError, match="made to fail"):
        engine.step()
