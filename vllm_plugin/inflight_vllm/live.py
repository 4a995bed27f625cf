"""vLLM's schedulers with limits that change while they run."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, thread_time, time
from typing import TYPE_CHECKING, Any, ParamSpec

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

from inflight_cost.latest_start import latest_start
from inflight_vllm.board import Board, Report
from inflight_vllm.guard import Guard
from inflight_vllm.record import FILE_VARIABLE as RECORD_VARIABLE
from inflight_vllm.record import open_record
from inflight_vllm.reports import Reports, Step
from inflight_vllm.settings import read_settings
from inflight_vllm.steps import CostMeter, StepClock, WorkMeter
from inflight_vllm.waiting import DeadlineRequestQueue, WaitingRequest

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

log = logging.getLogger("vllm.inflight")

_Arguments = ParamSpec("_Arguments")


class _Plugin:
    """The plugin's parts of a scheduler's steps. What a step does not have to wait for is left to `Reports`."""

    def __init__(self, board: Board, scheduler: Any) -> None:
        self.board = board
        self.seen = 0
        """Number of the limits that are applied."""
        self._scheduler = scheduler
        self._guard = Guard()
        self._report = Report()
        self._planned: list[tuple[float, Any]] = []
        """Steps in flight, each with the time when its planning began."""
        self._work = WorkMeter()
        self._clock = StepClock()
        self._guard.run(self._start)
        if self._guard.problem is not None:
            board.report.write(Report(problem=self._guard.problem))

    def run(self, part: Callable[_Arguments, object], *arguments: _Arguments.args, **named: _Arguments.kwargs) -> None:
        """Run a part of a step, and count its CPU time."""
        began = thread_time()
        self._guard.run(part, *arguments, **named)
        self._report.own_seconds += thread_time() - began

    def take_limits(self) -> None:
        """Set the limits of the board."""
        self.seen = self.board.limits.number
        found = self.board.limits.read()
        if found is None:
            return
        limits = found.limits.at_most(self._report.capacity)
        scheduler = self._scheduler
        scheduler.max_num_active_reqs = limits.max_num_seqs
        scheduler.max_num_scheduled_tokens = limits.max_num_batched_tokens
        self._report.revision = found.revision

    def arrive(self, request: Request) -> None:
        """Note a new request."""
        self._reports.arrived.append(request)

    def latest_start(self, request: WaitingRequest) -> float:
        """Return the Unix time until which a request can start and have its first token by its deadline."""
        latest = [request.priority / 1000]
        self.run(lambda: latest.append(self._predicted_start(request, *latest)))
        return latest[-1]

    def _predicted_start(self, request: Any, deadline: float) -> float:
        scheduler, measured = self._scheduler, self._cost.measured
        # What a connector has of the prompt is not known before vLLM asks it.
        if measured is None or not measured.good or scheduler.connector is not None:
            return deadline
        num_tokens, num_cached = request.num_prompt_tokens, 0
        if not request.skip_reading_prefix_cache:
            coordinator = scheduler.kv_cache_manager.coordinator
            num_cached = coordinator.find_longest_cache_hit(request.block_hashes, num_tokens - 1)[1]
        return latest_start(
            measured.model,
            deadline,
            deadline - request.arrival_time,
            computed=num_tokens - num_cached,
            cached=num_cached,
            num_running=len(scheduler.running),
            kv_tokens=self._work.context,
            max_num_batched_tokens=scheduler.max_num_scheduled_tokens,
        )

    def plan(self, output: SchedulerOutput, began: float) -> None:
        """Note the work of a planned step."""
        work = self._work.work(
            output.num_scheduled_tokens,
            output.total_num_scheduled_tokens,
            self._scheduler.requests,
            started=bool(output.scheduled_new_reqs or output.scheduled_cached_reqs.resumed_req_ids),
        )
        self._planned.append((began, work))

    def measure(self, ended: float) -> None:
        """Note the seconds of the oldest planned step."""
        began, work = self._planned.pop(0)
        self._reports.steps.append(Step(work, self._clock.seconds(began, ended), began, ended))

    def end(self) -> None:
        """Report no longer."""
        self._reports.stop()

    def _start(self) -> None:
        scheduler, report = self._scheduler, self._report
        config = scheduler.vllm_config
        report.max_num_seqs = scheduler.max_num_active_reqs
        report.max_num_batched_tokens = scheduler.max_num_scheduled_tokens
        report.policy = str(config.scheduler_config.policy)
        report.block_size = scheduler.block_size
        report.num_blocks = config.cache_config.num_gpu_blocks or 0
        sizes = {
            "num_blocks": report.num_blocks,
            "block_size": report.block_size,
            "max_model_len": config.model_config.max_model_len,
            "prefix_caching": bool(config.cache_config.enable_prefix_caching),
        }
        path = os.environ.get(RECORD_VARIABLE)
        self._cost = CostMeter(compiles=config.device_config.device_type != "cpu", clock=perf_counter)
        self._reports = Reports(
            self.board.report,
            report,
            self._guard,
            self._cost,
            aborted=RequestStatus.FINISHED_ABORTED,
            record=open_record(Path(path), report.capacity, sizes) if path else None,
            clock=perf_counter,
        )
        self._reports.start()
        if report.policy == "priority" and read_settings(os.environ).has_targets:
            scheduler.waiting = DeadlineRequestQueue(self.latest_start, time)
        log.info("inflight: live limits of this scheduler up to %s", report.capacity)


class _Live:
    """Before each step takes the limits from the board; after it measures the step.

    Requests that run are not paused when a limit falls: vLLM has no way to. They end, and none takes their place.
    """

    def __init__(self, board: Board, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._inflight = _Plugin(board, self)

    def schedule(self, *arguments: Any, **named: Any) -> SchedulerOutput:
        """Plan a step under the limits in force."""
        began, plugin = perf_counter(), self._inflight
        if plugin.board.limits.number != plugin.seen:
            plugin.run(plugin.take_limits)
        output: SchedulerOutput = super().schedule(*arguments, **named)  # type: ignore[misc]
        plugin.run(plugin.plan, output, began)
        return output

    def update_from_output(self, scheduler_output: SchedulerOutput, *arguments: Any, **named: Any) -> Any:
        """Take in the tokens of a step, then measure it."""
        ended = perf_counter()
        outputs = super().update_from_output(scheduler_output, *arguments, **named)  # type: ignore[misc]
        self._inflight.run(self._inflight.measure, ended)
        return outputs

    def add_request(self, request: Request) -> None:
        """Count a new request."""
        new = request.request_id not in self.requests  # type: ignore[attr-defined]
        super().add_request(request)  # type: ignore[misc]
        if new:  # else it is the next part of a streamed input
            self._inflight.run(self._inflight.arrive, request)

    def shutdown(self) -> None:
        """End with vLLM's scheduler."""
        self._inflight.run(self._inflight.end)
        super().shutdown()  # type: ignore[misc]


class LiveAsyncScheduler(_Live, AsyncScheduler):  # type: ignore[misc]
    """For steps that are planned while the one before is computed."""


class LiveSyncScheduler(_Live, Scheduler):  # type: ignore[misc]
    """For steps one after the other."""
