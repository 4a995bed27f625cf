"""vLLM's schedulers with limits that change while they run."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from pathlib import Path
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

from inflight_settings.limits import Limits
from inflight_vllm.board import Board, Report
from inflight_vllm.record import FILE_VARIABLE as RECORD_VARIABLE
from inflight_vllm.record import StepRecord
from inflight_vllm.steps import CostMeter, RequestMeter, StepClock, WorkMeter

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

log = logging.getLogger("vllm.inflight")

_Arguments = ParamSpec("_Arguments")

_REPORT_SECONDS = 0.2
"""Seconds between two reports while steps run."""


def _own(part: Callable[Concatenate[_Live, _Arguments], None]) -> Callable[Concatenate[_Live, _Arguments], None]:
    """The plugin's own part of a step: its time is counted, and after an error, which would end the engine, vLLM goes
    on without the plugin."""

    @wraps(part)
    def tried(self: _Live, /, *arguments: _Arguments.args, **named: _Arguments.kwargs) -> None:
        if self.failed:
            return
        began = thread_time()
        try:
            part(self, *arguments, **named)
        except Exception as error:
            self.failed = True
            log.exception("inflight: the plugin failed; vLLM goes on without it, with the limits as they are")
            self.board.report.write(Report(problem=f"the plugin failed: {type(error).__name__}"))
        self._report.own_seconds += thread_time() - began

    return tried


class _Live:
    """Before each step takes the limits from the board; after it measures the step.

    Requests that run are not paused when a limit falls: vLLM has no way to. They end, and none takes their place.
    """

    def __init__(self, board: Board, **arguments: Any) -> None:
        super().__init__(**arguments)
        scheduler: Any = self
        self.failed = False
        self.board = board
        self._seen = 0
        """Number of the limits that are applied."""
        self._capacity = Limits(scheduler.max_num_active_reqs, scheduler.max_num_scheduled_tokens)
        config = scheduler.vllm_config
        num_blocks = config.cache_config.num_gpu_blocks or 0
        self._report = Report(
            max_num_seqs=self._capacity.max_num_seqs,
            max_num_batched_tokens=self._capacity.max_num_batched_tokens,
            policy=str(config.scheduler_config.policy),
            block_size=scheduler.block_size,
            num_blocks=num_blocks,
        )
        self._work = WorkMeter()
        self._clock = StepClock()
        self._cost = CostMeter(
            compiles=config.device_config.device_type != "cpu",
            clock=perf_counter,
            beside=ThreadPoolExecutor(1, "inflight-fit"),
        )
        self._met = RequestMeter()
        self._planned: list[tuple[float, Any]] = []
        """Steps in flight, each with the time when its planning began."""
        self._report_at = 0.0
        record = os.environ.get(RECORD_VARIABLE)
        sizes = {
            "num_blocks": num_blocks,
            "block_size": scheduler.block_size,
            "max_model_len": config.model_config.max_model_len,
            "prefix_caching": bool(config.cache_config.enable_prefix_caching),
        }
        self._record = StepRecord(Path(record), self._capacity, sizes) if record else None
        board.report.write(self._report)
        log.info("inflight: live limits of this scheduler up to %s", self._capacity)

    def schedule(self, *arguments: Any, **named: Any) -> SchedulerOutput:
        """Plan a step under the limits in force."""
        began = perf_counter()
        self._take_limits()
        output: SchedulerOutput = super().schedule(*arguments, **named)  # type: ignore[misc]
        self._plan(output, began)
        return output

    def update_from_output(self, scheduler_output: SchedulerOutput, *arguments: Any, **named: Any) -> Any:
        """Take in the tokens of a step, then measure it."""
        done = perf_counter()
        outputs = super().update_from_output(scheduler_output, *arguments, **named)  # type: ignore[misc]
        self._measure(done)
        return outputs

    def add_request(self, request: Request) -> None:
        """Count a new request."""
        new = request.request_id not in self.requests  # type: ignore[attr-defined]
        super().add_request(request)  # type: ignore[misc]
        if new:  # else it is the next part of a streamed input
            self._arrive(request)

    @_own
    def _take_limits(self) -> None:
        number = self.board.limits.number
        if number == self._seen:
            return
        self._seen = number
        found = self.board.limits.read()
        if found is None:
            return
        limits = found.limits.at_most(self._capacity)
        self.max_num_active_reqs, self.max_num_scheduled_tokens = limits.max_num_seqs, limits.max_num_batched_tokens
        self._report.revision = found.revision

    @_own
    def _arrive(self, request: Request) -> None:
        self._met.arrive(request)

    @_own
    def _plan(self, output: SchedulerOutput, began: float) -> None:
        work = self._work.work(
            output.num_scheduled_tokens,
            output.total_num_scheduled_tokens,
            self.requests,  # type: ignore[attr-defined]
            started=bool(output.scheduled_new_reqs or output.scheduled_cached_reqs.resumed_req_ids),
        )
        self._planned.append((began, work))

    @_own
    def _measure(self, done: float) -> None:
        planned, work = self._planned.pop(0)
        seconds = self._clock.seconds(planned, done)
        report = self._report
        if work.decode_seqs or work.prefill_tokens:
            report.steps += 1
            report.step_seconds += seconds
            self._cost.observe(work, seconds, planned, done)
            if self._record is not None:
                self._record.step(work, seconds)
        if done >= self._report_at or not self.requests:  # type: ignore[attr-defined]
            self._report_at = done + _REPORT_SECONDS
            self._publish(done)

    def _publish(self, now: float) -> None:
        met, report = self._met, self._report
        met.survey(now, RequestStatus.FINISHED_ABORTED)
        report.arrived, report.waiting_prompt_tokens = met.arrived, met.waiting_prompt_tokens
        lengths = met.lengths.estimate()
        if lengths is not None:
            report.output_mean, report.output_square = lengths.mean, lengths.second_moment
        measured = self._cost.measured
        if measured is not None:
            report.cost, report.cost_error, report.cost_steps = measured
        self.board.report.write(report)
        if self._record is not None:
            self._record.flush()


class LiveAsyncScheduler(_Live, AsyncScheduler):  # type: ignore[misc]
    """For steps that are planned while the one before is computed."""


class LiveSyncScheduler(_Live, Scheduler):  # type: ignore[misc]
    """For steps one after the other."""
