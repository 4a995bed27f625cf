"""Joins scheduler and runner: messages in, one step, a report out. No sockets here."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol

import numpy as np

from inflight_engine.messages import (
    AddRequest,
    Admission,
    CancelRequest,
    Finished,
    FromEngine,
    LimitsApplied,
    SetLimits,
    StepReport,
    StepStats,
)
from inflight_engine.request import FinishReason, Request, TokenIds
from inflight_engine.scheduling.plan import StepPlan
from inflight_engine.scheduling.scheduler import Scheduler

log = logging.getLogger(__name__)

MAX_CONSECUTIVE_FAILURES = 3
"""Failed steps in a row after which the fault is the engine's, not one request's."""


class StepExecutor(Protocol):
    """What the loop needs of a runner."""

    def execute(self, plan: StepPlan) -> TokenIds:
        """Compute the step; int32, one token for each of `plan.sampled_slots`."""
        ...


class Engine:
    """The engine process's state. Single-threaded; `clock` gives monotonic seconds.

    A step that raises ends the requests that were in it with an error and spares the rest; after
    `MAX_CONSECUTIVE_FAILURES` in a row the exception goes up.
    """

    def __init__(self, scheduler: Scheduler, runner: StepExecutor, clock: Callable[[], float] = time.monotonic) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._clock = clock
        self._ended_outside: list[Finished] = []
        self._failures = 0

    @property
    def has_work(self) -> bool:
        """Something to compute, or something to report."""
        return self._scheduler.has_work or bool(self._ended_outside)

    def handle(self, message: AddRequest | CancelRequest | SetLimits) -> FromEngine | None:
        """Take in one message between two steps; returns the answer it has, if any."""
        match message:
            case AddRequest():
                self._add(message)
            case CancelRequest():
                if self._scheduler.cancel(message.request_id, message.reason):
                    self._ended_outside.append(Finished(message.request_id, message.reason))
            case SetLimits():
                self._scheduler.limits = message.limits
                return LimitsApplied(message.call_id, message.limits)
        return None

    def step(self) -> StepReport:
        """Run one iteration. Call it only when there is work."""
        started = self._clock()
        ended, self._ended_outside = self._ended_outside, []
        plan = self._scheduler.schedule()
        if plan is None:
            return self._report(-1, [], np.empty(0, np.int32), np.empty(0, np.int32), ended, self._stats())
        admitted = [
            Admission(start.request_id, start.slot, resumed=len(start.token_ids) > start.num_prompt_tokens)
            for start in plan.starts
        ]
        planned = self._clock()
        try:
            token_ids = self._runner.execute(plan)
        except Exception:
            self._failures += 1
            if self._failures >= MAX_CONSECUTIVE_FAILURES:
                raise
            log.exception("step %d failed; its requests end with an error", plan.step)
            ended += self._fail(self._scheduler.requests_in(plan))
            return self._report(plan.step, admitted, np.empty(0, np.int32), np.empty(0, np.int32), ended, self._stats())
        self._failures = 0
        computed = self._clock()
        slots = plan.sampled_slots
        for request in self._scheduler.update(plan, token_ids):
            ended.append(_finished(request))
        done = self._clock()
        stats = self._stats(
            num_prefill_tokens=sum(chunk.length for chunk in plan.prefills),
            num_decode_tokens=len(plan.decode_slots),
            step_seconds=done - started,
            schedule_seconds=(planned - started) + (done - computed),
        )
        return self._report(plan.step, admitted, slots, token_ids, ended, stats)

    def _add(self, message: AddRequest) -> None:
        request = Request(
            request_id=message.request_id,
            prompt_token_ids=np.frombuffer(message.prompt_token_ids, np.int32),
            sampling=message.sampling,
            arrival_time=message.arrival_time,
        )
        try:
            self._scheduler.add(request)
        except ValueError:
            # The API process checks first, so this is a fault between the two; it costs this request only.
            log.exception("request %d was refused by the scheduler", message.request_id)
            self._ended_outside.append(Finished(message.request_id, FinishReason.ERROR))

    def _fail(self, requests: list[Request]) -> list[Finished]:
        for request in requests:
            self._scheduler.cancel(request.request_id, FinishReason.ERROR)
        return [_finished(request) for request in requests]

    def _stats(
        self,
        *,
        num_prefill_tokens: int = 0,
        num_decode_tokens: int = 0,
        step_seconds: float = 0.0,
        schedule_seconds: float = 0.0,
    ) -> StepStats:
        scheduler = self._scheduler
        return StepStats(
            num_running=scheduler.num_running,
            num_waiting=scheduler.num_waiting,
            waiting_prompt_tokens=scheduler.num_uncomputed_tokens,
            kv_usage=scheduler.pool.usage,
            num_preemptions=scheduler.num_preemptions,
            num_prefill_tokens=num_prefill_tokens,
            num_decode_tokens=num_decode_tokens,
            step_seconds=step_seconds,
            schedule_seconds=schedule_seconds,
        )

    @staticmethod
    def _report(
        step: int,
        admitted: list[Admission],
        slots: TokenIds,
        token_ids: TokenIds,
        ended: list[Finished],
        stats: StepStats,
    ) -> StepReport:
        return StepReport(step, admitted, slots.tobytes(), token_ids.tobytes(), ended, stats)


def _finished(request: Request) -> Finished:
    if request.finish_reason is None:
        raise AssertionError(f"request {request.request_id} has not ended")
    return Finished(request.request_id, request.finish_reason)
