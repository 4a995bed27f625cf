"""Joins scheduler and runner: messages in, one step, a report out. No sockets here."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Protocol

import msgspec
import numpy as np

from inflight_cost.model import CostModel, StepWork
from inflight_engine.cost_fit.online import OnlineFit
from inflight_engine.messages import (
    SHORT_STEP_SECONDS,
    AddRequest,
    Admission,
    CancelRequest,
    Configure,
    Configured,
    Finished,
    FlushRecord,
    FromEngine,
    LongStep,
    RecordFlushed,
    Starting,
    StepCost,
    StepReport,
    StepStats,
)
from inflight_engine.output import StepOutput, TokenLogprobs
from inflight_engine.recording.recorder import Recorder
from inflight_engine.request import FinishReason, Request, TokenIds
from inflight_engine.scheduling.limits import Limits
from inflight_engine.scheduling.plan import Slots, StepPlan
from inflight_engine.scheduling.scheduler import Scheduler
from inflight_engine.step_times import StepTimes
from inflight_engine.step_work import work_of
from inflight_engine.swap_rates import SwapRateMeter

log = logging.getLogger(__name__)

MAX_CONSECUTIVE_FAILURES = 3
"""Failed steps in a row after which the fault is the engine's, not one request's."""


class StepExecutor(Protocol):
    """What the loop needs of a runner.

    Attributes:
        lookahead: whether one more step may be launched before the previous one is collected. Its decodes then go on
            from tokens that only the runner knows yet.
    """

    lookahead: bool

    def launch(self, plan: StepPlan) -> None:
        """Begin to compute a step; steps are computed in the order of their launches."""
        ...

    def collect(self) -> StepOutput:
        """Wait for the oldest step that is launched and not collected. One whose launch or collection raised is
        gone: neither it nor a step launched after it is collected."""
        ...


class _Launched(msgspec.Struct):
    """A step that is under way.

    Attributes:
        work: what there is to compute.
        started, planned: clock when its planning began and when it was over.
        error: what its launch raised.
    """

    plan: StepPlan
    admitted: list[Admission]
    work: StepWork
    started: float
    planned: float
    error: Exception | None = None


class Engine:
    """The engine process's state. Single-threaded.

    Where the runner looks ahead, a step is planned and launched while the one before is computed, so the device goes
    from one to the next without waiting for what is done with the tokens.

    A step that raises ends the requests that were in it with an error and spares the rest; what was launched after it
    is computed again. After `MAX_CONSECUTIVE_FAILURES` in a row, or at once when the device failed, the exception goes
    up.

    Args:
        recorder: told of everything the scheduler is told and decides; None: nothing is recorded.
        swap_rates: measures when swapping a preempted request is cheaper than recomputing it; None: never.
        step_times: predicts what a step may take.
        cost_fit: fits the cost model to the steps.
        announce: told of a step that may take long or in which a resubmitted request starts, before it is computed.
        device_failed: whether no further step can succeed after this error.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: StepExecutor,
        *,
        recorder: Recorder | None = None,
        swap_rates: SwapRateMeter | None = None,
        step_times: StepTimes | None = None,
        cost_fit: OnlineFit | None = None,
        announce: Callable[[LongStep | Starting], None] = lambda step: None,
        device_failed: Callable[[Exception], bool] = lambda error: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._recorder = recorder
        self._swap_rates = swap_rates
        self._step_times = step_times or StepTimes()
        self._cost_fit = cost_fit or OnlineFit()
        self._fitted = -math.inf
        """When the latest fit was over; a step that was under way meanwhile is measured too long."""
        self._announce = announce
        self._device_failed = device_failed
        self._resubmitted: set[int] = set()
        """Requests whose start is announced."""
        self._clock = clock
        self._ended_outside: list[Finished] = []
        self._failures = 0
        self._under_way: _Launched | None = None
        """A step that is launched and not taken in, between two iterations; only where the runner looks ahead."""
        self._collected = self._done = -math.inf
        self._slots: Slots | None = None
        self._slots_bytes = b""

    @property
    def has_work(self) -> bool:
        """Something to compute, or something to report."""
        return self._scheduler.has_work or self._under_way is not None or bool(self._ended_outside)

    def handle(self, message: AddRequest | CancelRequest | Configure | FlushRecord) -> FromEngine | None:
        """Take in one message between two steps; returns the answer it has, if any."""
        match message:
            case AddRequest():
                self._add(message)
            case CancelRequest():
                if self._cancel(message.request_id, message.reason):
                    self._ended_outside.append(Finished(message.request_id, message.reason))
            case Configure():
                self._configure(message.limits, message.class_weights)
                return Configured(message.call_id, self._scheduler.limits, self._scheduler.class_weights)
            case FlushRecord():
                self.flush_record()
                return RecordFlushed(message.call_id)
        return None

    def step(self) -> StepReport:
        """Run one iteration: take in the oldest step that is under way, or else the next, once the step after it is
        launched where the runner looks ahead. Call it only when there is work."""
        step = self._under_way or self._launch()
        self._under_way = None
        if step is None:
            ended, self._ended_outside = self._ended_outside, []
            return StepReport(-1, [], b"", b"", [], ended, self._stats())
        ahead = self._runner.lookahead and step.error is None
        if ahead:
            self._under_way = self._launch()
        return self._take_in(step, ahead=ahead)

    def measure_cost(self) -> StepCost | None:
        """Fit the cost model, which takes some milliseconds, where enough steps are new since the last time; call it
        when what a step brought is sent. None: there is nothing new."""
        if not self._cost_fit.due(self._done):
            return None
        measured = self._cost_fit.fit(self._done)
        self._fitted = self._clock()
        if measured is None:
            return None
        self._predict_with(measured.model if measured.good else None)
        return StepCost(measured.model, measured.error, measured.steps)

    def flush_record(self) -> None:
        """Write what is recorded so far."""
        if self._recorder is not None:
            self._recorder.flush()

    def close(self) -> None:
        """Write what is recorded. Nothing may be done afterwards."""
        if self._recorder is not None:
            self._recorder.close()

    def _launch(self) -> _Launched | None:
        """Plan the next step and launch it; None: there is nothing to compute, or not yet."""
        started = self._clock()
        scheduler = self._scheduler
        number = scheduler.num_steps
        plan = scheduler.schedule(started)
        if self._recorder is not None and scheduler.last_change == started:
            self._recorder.time_passed(number, started)
        if plan is None:
            return None
        work = work_of(plan, self._scheduler.num_attended_tokens, self._scheduler.config.block_size)
        admitted = [Admission(start.request_id, start.slot, start.num_cached_tokens) for start in plan.starts]
        launched = _Launched(plan, admitted, work, started, self._clock())
        longest = self._step_times.longest(launched.work)
        if longest > SHORT_STEP_SECONDS:
            self._announce(LongStep(plan.step, longest))
        if self._resubmitted:
            self._announce_starts(admitted)
        try:
            self._runner.launch(plan)
        except Exception as error:
            launched.error = error
        return launched

    def _announce_starts(self, admitted: list[Admission]) -> None:
        starting = [each.request_id for each in admitted if each.request_id in self._resubmitted]
        if starting:
            self._resubmitted.difference_update(starting)
            self._announce(Starting(starting))

    def _take_in(self, step: _Launched, *, ahead: bool) -> StepReport:
        """Wait for a step's tokens. `ahead`: the scheduler was asked for the next step already."""
        scheduler, plan = self._scheduler, step.plan
        try:
            if step.error is not None:
                raise step.error
            token_ids, logprobs = self._runner.collect()
        except Exception as error:
            return self._fail(step, error, ahead=ahead)
        self._failures = 0
        collected = self._clock()
        left = scheduler.left_since(plan)
        finished = scheduler.update(plan, token_ids)
        done = self._clock()
        step_seconds = done - max(step.started, self._done)
        self._step_times.observe(step.work, step_seconds)
        if step.started >= self._fitted:
            self._cost_fit.observe(step.work, step_seconds, done)
        if self._recorder is not None:
            self._recorder.stepped(plan, finished, step_seconds, ahead=ahead)
        num_decode_tokens = len(plan.decode_slots)
        num_prefill_tokens = plan.num_tokens - num_decode_tokens
        self._measure_rates(num_prefill_tokens, num_decode_tokens, collected - max(step.planned, self._collected))
        self._collected, self._done = collected, done
        stats = self._stats(
            num_prefill_tokens=num_prefill_tokens,
            num_decode_tokens=num_decode_tokens,
            step_seconds=step_seconds,
            schedule_seconds=(step.planned - step.started) + (done - collected),
            decode_kv_tokens=int(step.work.decode_kv_tokens),
        )
        ended, self._ended_outside = self._ended_outside, []
        ended += map(_finished, finished)
        slots = plan.sampled_slots
        if left:
            kept = ~np.isin(slots, list(left))
            slots, token_ids = slots[kept], token_ids[kept]
            logprobs = [each for each in logprobs if each.slot not in left]
        return self._report(plan, step.admitted, slots, token_ids, logprobs, ended, stats)

    def _fail(self, step: _Launched, error: Exception, *, ahead: bool) -> StepReport:
        """End the requests of a step that raised. What was launched after it is gone with it."""
        self._failures += 1
        if self._failures >= MAX_CONSECUTIVE_FAILURES or self._device_failed(error):
            raise error
        plan, recorder = step.plan, self._recorder
        log.error("step %d failed; its requests end with an error", plan.step, exc_info=error)
        failed = self._scheduler.fail(plan)
        if recorder is not None:
            recorder.failed(plan, self._clock() - max(step.started, self._done), ahead=ahead)
            if self._under_way is not None:
                recorder.failed(self._under_way.plan, 0.0)
        self._under_way = None
        ended, self._ended_outside = self._ended_outside, []
        for request in failed:
            self._cancel(request.request_id, FinishReason.ERROR)
        ended += map(_finished, failed)
        return StepReport(plan.step, step.admitted, b"", b"", [], ended, self._stats())

    def _configure(self, limits: Limits, class_weights: dict[str, float]) -> None:
        scheduler, recorder = self._scheduler, self._recorder
        # The weights first: only they can be refused, and then nothing has changed.
        if class_weights:
            scheduler.set_class_weights(class_weights)
            if recorder is not None:
                recorder.weights(class_weights)
        if limits != scheduler.limits:
            scheduler.limits = limits
            if recorder is not None:
                recorder.limits(limits)

    def _add(self, message: AddRequest) -> None:
        request = Request(
            request_id=message.request_id,
            prompt_token_ids=np.frombuffer(message.prompt_token_ids, np.int32),
            sampling=message.sampling,
            arrival_time=message.arrival_time,
            priority=message.priority,
            service_class=message.service_class,
            tenant=message.tenant,
            cache_salt=message.cache_salt,
            predicted_tokens=message.predicted_tokens,
        )
        try:
            self._scheduler.add(request)
        except ValueError:
            # The API process checks first, so this is a fault between the two; it costs this request only.
            log.exception("request %d was refused by the scheduler", message.request_id)
            self._ended_outside.append(Finished(message.request_id, FinishReason.ERROR))
            return
        if message.resubmitted:
            self._resubmitted.add(message.request_id)
        if self._recorder is not None:
            self._recorder.added(request)

    def _cancel(self, request_id: int, reason: FinishReason) -> bool:
        self._resubmitted.discard(request_id)
        known = self._scheduler.cancel(request_id, reason)
        if known and self._recorder is not None:
            self._recorder.cancelled(request_id, reason)
        return known

    def _measure_rates(self, num_prefill_tokens: int, num_decode_tokens: int, seconds: float) -> None:
        if self._swap_rates is None:
            return
        rates = self._swap_rates.observe(num_prefill_tokens, num_decode_tokens, seconds)
        if rates is not None:
            self._scheduler.rates = rates
            if self._recorder is not None:
                self._recorder.rates(rates)

    def _predict_with(self, cost: CostModel | None) -> None:
        """`cost`: None: no model fits well enough."""
        self._step_times.cost = self._scheduler.prefill_cost = cost
        if self._recorder is not None:
            self._recorder.prefill_cost(cost)

    def _stats(
        self,
        *,
        num_prefill_tokens: int = 0,
        num_decode_tokens: int = 0,
        step_seconds: float = 0.0,
        schedule_seconds: float = 0.0,
        decode_kv_tokens: int = 0,
    ) -> StepStats:
        scheduler = self._scheduler
        return StepStats(
            num_running=scheduler.num_running,
            num_waiting=scheduler.num_waiting,
            waiting_prompt_tokens=scheduler.num_uncomputed_tokens,
            kv_usage=scheduler.kv_usage,
            num_preemptions=scheduler.num_preemptions,
            num_swapped_blocks=scheduler.num_swapped_blocks,
            prefix_queries=scheduler.prefix_queries,
            prefix_hits=scheduler.prefix_hits,
            num_prefill_tokens=num_prefill_tokens,
            num_decode_tokens=num_decode_tokens,
            step_seconds=step_seconds,
            schedule_seconds=schedule_seconds,
            decode_kv_tokens=decode_kv_tokens,
        )

    def _report(
        self,
        plan: StepPlan,
        admitted: list[Admission],
        slots: Slots,
        token_ids: TokenIds,
        logprobs: list[TokenLogprobs],
        ended: list[Finished],
        stats: StepStats,
    ) -> StepReport:
        if slots is not self._slots:  # the same object in steady decode
            self._slots, self._slots_bytes = slots, slots.astype(np.int32).tobytes()
        return StepReport(plan.step, admitted, self._slots_bytes, token_ids.tobytes(), logprobs, ended, stats)


def _finished(request: Request) -> Finished:
    if request.finish_reason is None:
        raise AssertionError(f"request {request.request_id} has not ended")
    return Finished(request.request_id, request.finish_reason)
