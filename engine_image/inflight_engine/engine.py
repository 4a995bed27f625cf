"""Joins scheduler and runner: messages in, one step, a report out. No sockets here."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

import msgspec
import numpy as np

from inflight_cost.model import StepWork
from inflight_engine import logs
from inflight_engine.behind import Behind
from inflight_engine.block_events import HASH_SIZE, BlockEvent
from inflight_engine.cache.arriving import ArrivingRequests
from inflight_engine.grammars.waiting import CompilingRequests
from inflight_engine.load_rates import LoadRateMeter
from inflight_engine.measurements import Measurements
from inflight_engine.messages import (
    SHORT_STEP_SECONDS,
    AddRequest,
    Admission,
    BlocksChanged,
    BlocksRead,
    CancelRequest,
    Configure,
    Configured,
    Finished,
    FlushRecord,
    FromEngine,
    LongStep,
    ReadBlocks,
    RecordFlushed,
    Sleep,
    Slept,
    Starting,
    StepCost,
    StepReport,
    StepStats,
)
from inflight_engine.recording.recorder import Recorder
from inflight_engine.request import NO_TOKENS, FinishReason, Request
from inflight_engine.scheduler_inputs import SchedulerInputs
from inflight_engine.scheduling.plan import StepPlan
from inflight_engine.scheduling.scheduler import Scheduler
from inflight_engine.step_executor import StepExecutor
from inflight_engine.step_reports import StepReports, finished
from inflight_engine.step_times import StepTimes
from inflight_engine.step_work import work_of

log = logging.getLogger(__name__)

MAX_CONSECUTIVE_FAILURES = 3
"""Failed steps in a row after which the fault is the engine's, not one request's."""


class _Launched(msgspec.Struct):
    """A step in flight.

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

    A request whose own part of a step fails for lack of memory ends with that error, and its step goes on. A step that
    raises ends the requests that were in it with an error and spares the rest; what was launched after it
    is computed again. After `MAX_CONSECUTIVE_FAILURES` in a row, or at once when the device failed, the exception goes
    up.

    Args:
        recorder: writes all inputs and decisions of the scheduler; None: nothing is recorded.
        load_rates: measures when loading keys and values is cheaper than computing them; None: there is no tier.
        step_times: predicts what a step may take.
        announce: called before a step that may take long is computed, and before one with starts to be announced.
        block_events: the records of the scheduler's block pool; None: it makes none.
        compiling: compiles the grammars of requests; None: no request has one.
        make_behind: makes what is behind host memory, of the inputs of the scheduler; None: there is nothing.
        device_failed: whether no further step can succeed after this error.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: StepExecutor,
        *,
        recorder: Recorder | None = None,
        load_rates: LoadRateMeter | None = None,
        step_times: StepTimes | None = None,
        announce: Callable[[LongStep | Starting], None] = lambda step: None,
        block_events: list[BlockEvent] | None = None,
        compiling: CompilingRequests | None = None,
        make_behind: Callable[[SchedulerInputs], Behind] | None = None,
        device_failed: Callable[[Exception], bool] = lambda error: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._recorder = recorder
        self._inputs = SchedulerInputs(scheduler, recorder)
        self._measurements = Measurements(self._inputs, step_times or StepTimes(), load_rates)
        self._reports = StepReports(scheduler)
        self._announce = announce
        self._block_events = block_events
        self._compiling = compiling
        config = scheduler.config
        self._arriving = ArrivingRequests(config.block_size if config.prefix_caching else None)
        self._behind = self._reports.behind = None if make_behind is None else make_behind(self._inputs)
        self._device_failed = device_failed
        self._clock = clock
        self._prompt = NO_TOKENS
        """The prompt of the latest `AddRequest`."""
        self._to_announce: set[int] = set()
        """Requests whose start is announced."""
        self._ended: list[Finished] = []
        """Requests that ended since the latest report."""
        self._failures = 0
        self._in_flight: _Launched | None = None
        """Between two iterations; only where the runner looks ahead."""
        self._collected = self._done = -math.inf
        """Clock when the latest step's tokens were there, and when they were taken in."""

    @property
    def has_work(self) -> bool:
        """Something to compute, or something to report."""
        if self._compiling is not None and self._compiling.ready:
            return True
        if self._behind is not None and self._behind.ready:
            return True
        return self._scheduler.has_work or self._in_flight is not None or bool(self._ended or self._arriving)

    def handle(
        self, message: AddRequest | CancelRequest | Configure | StepCost | FlushRecord | Sleep | ReadBlocks
    ) -> FromEngine | None:
        """Take in one message between two steps; returns the answer it has, if any."""
        match message:
            case AddRequest():
                self._add(message)
            case CancelRequest():
                if self._cancel(message.request_id, message.reason):
                    self._ended.append(Finished(message.request_id, message.reason))
            case Configure():
                self._inputs.configure(message.limits, message.class_weights)
                return Configured(message.call_id, self._inputs.limits, self._scheduler.class_weights)
            case StepCost():
                self._measurements.set_cost(message)
            case FlushRecord():
                self.flush()
                return RecordFlushed(message.call_id)
            case Sleep():
                return Slept(message.call_id, self._sleep())
            case ReadBlocks():
                return self._read_blocks(message)
        return None

    def step(self) -> StepReport:
        """Run one iteration: take in the oldest step in flight, or else the next, once the step after it is launched
        where the runner looks ahead. Call it only when there is work."""
        if self._compiling is not None and self._compiling.ready:
            self._add_compiled(self._compiling)
        self._arriving.begin_turn()
        self._add_arrived()
        if self._behind is not None:
            self._take_loaded(self._behind)
        step = self._in_flight or self._launch()
        self._in_flight = None
        if step is None:
            return self._reports.outside_steps(self._take_ended())
        ahead = self._runner.lookahead and step.error is None
        if ahead:
            self._in_flight = self._launch()
        report = self._take_in(step, ahead=ahead)
        if self._behind is not None:
            self._behind.send()
        return report

    def blocks_changed(self) -> BlocksChanged | None:
        """Return what happened to the prefix cache since the last call, if anything did."""
        if self._behind is not None and self._block_events is not None:
            self._block_events += self._behind.take_events()
        if not self._block_events:
            return None
        changed = BlocksChanged(self._block_events.copy())
        self._block_events.clear()
        return changed

    def prepare(self) -> None:
        """Do what the first request with a grammar would wait for; some tenths of a second, once."""
        if self._compiling is not None:
            self._compiling.prepare()

    def flush(self) -> None:
        """Write what is recorded so far."""
        if self._recorder is not None:
            self._recorder.flush()

    def close(self) -> None:
        """End the recording, and let go of what is behind host memory. Nothing may be done afterwards."""
        if self._behind is not None:
            self._behind.close()
        if self._recorder is not None:
            self._recorder.close()

    def _sleep(self) -> StepStats | None:
        if self.has_work or (self._behind is not None and self._behind.busy):
            return None
        self._inputs.forget_cache()
        self._runner.free_cache()
        return self._reports.outside_steps([]).stats

    def _read_blocks(self, message: ReadBlocks) -> BlocksRead:
        hashes = [message.hashes[at : at + HASH_SIZE] for at in range(0, len(message.hashes), HASH_SIZE)]
        blocks = self._scheduler.running.pool.match(hashes).tolist()
        places = self._scheduler.offload.copied(hashes[len(blocks) :])
        try:
            shared = self._runner.share_blocks(blocks, places)
        except OSError as error:
            log.warning("blocks cannot be given to another engine: %s", error)
            return BlocksRead(message.call_id, b"", "/dev/null", 0)
        checksums = np.array(shared.checksums, "<i8").tobytes()
        return BlocksRead(message.call_id, checksums, shared.path, shared.num_bytes)

    def _launch(self) -> _Launched | None:
        """Plan the next step and launch it; None: there is nothing to compute, or not yet."""
        started = self._clock()
        scheduler = self._scheduler
        number = scheduler.num_steps
        plan = scheduler.schedule(started)
        if self._recorder is not None and scheduler.admission.last_change == started:
            self._recorder.time_passed(number, started)
        if plan is None:
            return None
        work = work_of(plan, scheduler.num_attended_tokens, scheduler.config.block_size)
        admitted = [Admission(start.request_id, start.slot, start.num_computed_tokens) for start in plan.starts]
        launched = _Launched(plan, admitted, work, started, self._clock())
        longest = self._measurements.longest(work)
        if longest > SHORT_STEP_SECONDS:
            self._announce(LongStep(plan.step, longest))
        if self._to_announce:
            self._announce_starts(admitted)
        try:
            self._runner.launch(plan)
        except Exception as error:
            launched.error = error
        return launched

    def _announce_starts(self, admitted: list[Admission]) -> None:
        starting = [each.request_id for each in admitted if each.request_id in self._to_announce]
        if starting:
            self._to_announce.difference_update(starting)
            self._announce(Starting(starting))

    def _take_in(self, step: _Launched, *, ahead: bool) -> StepReport:
        """Wait for a step's tokens. `ahead`: the scheduler was asked for the next step already."""
        scheduler, plan = self._scheduler, step.plan
        try:
            if step.error is not None:
                raise step.error
            output = self._runner.collect()
        except Exception as error:
            return self._fail(step, error, ahead=ahead)
        self._failures = 0
        collected = self._clock()
        self._reports.num_out_of_memory += output.out_of_memory
        failed = scheduler.fail_slots(plan, output.failed_slots) if output.failed_slots else []
        for request in failed:
            _log_failed(request, FinishReason.OUT_OF_MEMORY)
        if output.failed_loads:
            log.warning("step %d: what host memory has for %d requests is damaged", plan.step, len(output.failed_loads))
            scheduler.fail_loads(plan, output.failed_loads)
        discarded = scheduler.discarded_slots(plan)
        grammar_ends = [
            (scheduler.running.table.request(slot).request_id, error)
            for slot, error in output.grammar_ends
            if slot not in discarded
        ]
        offered = [run for run in output.forced if run.slot not in discarded]
        ended = failed + scheduler.update(plan, output.token_ids)
        forced, full = scheduler.force(offered) if offered else ([], [])
        ended += full
        done = self._clock()
        seconds = done - max(step.started, self._done)
        if self._recorder is not None:
            self._recorder.stepped(
                plan,
                step.work,
                ended,
                seconds,
                ahead=ahead,
                failed_slots=output.failed_slots,
                failed_loads=output.failed_loads,
                forced=offered,
            )
        complete = [scheduler.running.table.requests[run.slot] for run in forced if run.ends]
        grammar_ends += [(request.request_id, "") for request in complete if request is not None]
        for request_id, refusal in grammar_ends:
            self._end_text(request_id, refusal)
        computing = collected - max(step.planned, self._collected)
        self._measurements.observe(step.work, seconds=seconds, computing=computing)
        self._collected, self._done = collected, done
        return self._reports.of(
            plan,
            step.work,
            step.admitted,
            output,
            forced,
            discarded,
            self._take_ended() + [finished(each) for each in ended],
            step_seconds=seconds,
            schedule_seconds=(step.planned - step.started) + (done - collected),
        )

    def _fail(self, step: _Launched, error: Exception, *, ahead: bool) -> StepReport:
        """End the requests of a step that raised. What was launched after it is gone with it."""
        self._failures += 1
        if self._failures >= MAX_CONSECUTIVE_FAILURES or self._device_failed(error):
            raise error
        plan, reason = step.plan, FinishReason.ERROR
        if isinstance(error, MemoryError):
            reason = FinishReason.OUT_OF_MEMORY
            self._reports.num_out_of_memory += 1
        log.error(
            "step %d, of %d tokens for %d decodes and %d prefill chunks, failed; its requests end with an error",
            *(plan.step, plan.num_tokens, len(plan.decode_slots), len(plan.prefills)),
            exc_info=error,
        )
        failed = self._scheduler.fail(plan)
        seconds = self._clock() - max(step.started, self._done)
        if self._recorder is not None:
            self._recorder.failed(plan, step.work, seconds, ahead=ahead)
            if self._in_flight is not None:
                self._recorder.failed(self._in_flight.plan, self._in_flight.work, 0.0)
        self._in_flight = None
        for request in failed:
            _log_failed(request, reason)
            self._cancel(request.request_id, reason)
        ended = self._take_ended() + [finished(each) for each in failed]
        return self._reports.failed(plan, step.admitted, ended)

    def _take_ended(self) -> list[Finished]:
        ended, self._ended = self._ended, []
        return ended

    def _add(self, message: AddRequest) -> None:
        if message.prompt_token_ids is not None:
            self._prompt = np.frombuffer(message.prompt_token_ids, np.int32)
        request = Request(
            request_id=message.request_id,
            prompt_token_ids=self._prompt,
            sampling=message.sampling,
            arrival_time=message.arrival_time,
            scheduling=message.scheduling,
            external_id=message.external_id,
            output_token_ids=np.frombuffer(message.output_token_ids, np.int32),
            kv_source=message.kv_source,
        )
        if message.announce_start:
            self._to_announce.add(message.request_id)
        if request.sampling.grammar is not None and self._compiling is not None:
            self._compiling.put(request)
        else:
            self._queue(request)

    def _take_loaded(self, behind: Behind) -> None:
        if self._in_flight is None:
            behind.send()
        for request in behind.take():
            self._admit(request)

    def _add_compiled(self, compiling: CompilingRequests) -> None:
        for request, complete, error in compiling.take():
            if complete or error:
                self._to_announce.discard(request.request_id)
                self._ended.append(_end_of_text(request.request_id, error))
            else:
                self._queue(request)

    def _queue(self, request: Request) -> None:
        self._arriving.put(request)
        self._add_arrived()

    def _add_arrived(self) -> None:
        for request in self._arriving.take():
            if self._behind is None or not self._behind.put(request):
                self._admit(request)

    def _admit(self, request: Request) -> None:
        try:
            self._inputs.add(request)
        except ValueError:
            # The API process checks first, so this is a fault between the two; it costs this request only.
            number, extra = request.request_id, logs.of_request(request.external_id)
            log.exception("request %d was refused by the scheduler", number, extra=extra)
            self._to_announce.discard(request.request_id)
            self._ended.append(Finished(request.request_id, FinishReason.ERROR))

    def _end_text(self, request_id: int, refusal: str) -> None:
        """End a request whose grammar allows no further token, if it has not ended with its latest one."""
        end = _end_of_text(request_id, refusal)
        if self._cancel(request_id, end.reason):
            self._ended.append(end)

    def _cancel(self, request_id: int, reason: FinishReason) -> bool:
        self._to_announce.discard(request_id)
        if self._compiling is not None and self._compiling.cancel(request_id):
            return True
        if self._behind is not None and self._behind.cancel(request_id):
            return True
        return self._arriving.cancel(request_id) or self._inputs.cancel(request_id, reason)


def _end_of_text(request_id: int, refusal: str) -> Finished:
    return Finished(request_id, FinishReason.ERROR if refusal else FinishReason.STOP, refusal)


def _log_failed(request: Request, reason: FinishReason) -> None:
    extra = logs.of_request(request.external_id)
    log.error("request %d ends with %s: its part of a step failed", request.request_id, reason, extra=extra)
