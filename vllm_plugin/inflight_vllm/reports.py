"""Reports of the engine process, made in a thread beside the steps."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from threading import Event, Thread
from typing import NamedTuple

from inflight_cost.model import StepWork
from inflight_vllm.board import Report, Slot
from inflight_vllm.guard import Guard
from inflight_vllm.record import StepRecord
from inflight_vllm.steps import CostMeter, RequestMeter, ScheduledRequest

_SECONDS = 0.2
"""Seconds between two reports."""


class Step(NamedTuple):
    """A step that is done. `began`, `ended`: monotonic seconds; `seconds`: its own ones, as steps may overlap."""

    work: StepWork
    seconds: float
    began: float
    ended: float


class Reports:
    """Takes in what the scheduler noted, and publishes it.

    A survey of all requests, the fit of the cost and writing take longer than all else that the plugin does, and a step
    would wait for them. The scheduler's thread only appends to two queues.

    Attributes:
        steps: done since the latest report.
        arrived: new requests since the latest report.

    Args:
        report: published; the scheduler's thread sets `revision` and `own_seconds`.
        aborted: `status` of requests whose output was cut short from outside.
        record: of all steps; None: they are not recorded.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        slot: Slot[Report],
        report: Report,
        guard: Guard,
        cost: CostMeter,
        *,
        aborted: object,
        record: StepRecord | None,
        clock: Callable[[], float],
    ) -> None:
        self.steps: deque[Step] = deque()
        self.arrived: deque[ScheduledRequest] = deque()
        self._slot = slot
        self._report = report
        self._guard = guard
        self._cost = cost
        self._requests = RequestMeter()
        self._aborted = aborted
        self._record = record
        self._clock = clock
        self._ends = Event()

    def start(self) -> None:
        """Publish the first report, then others in a thread until `stop`."""
        self._slot.write(self._report)
        Thread(target=self._run, name="inflight-reports", daemon=True).start()

    def stop(self) -> None:
        """Publish once more, then no longer."""
        self._ends.set()

    def _run(self) -> None:
        ends = False
        while self._guard.problem is None and not ends:
            ends = self._ends.wait(_SECONDS)
            self._guard.run(self._take_in)
        if self._guard.problem is not None:
            self._slot.write(Report(problem=self._guard.problem))

    def _take_in(self) -> None:
        if not (self.steps or self.arrived or self._requests.known or self._cost.due):
            return
        for _ in range(len(self.arrived)):
            self._requests.arrive(self.arrived.popleft())
        for _ in range(len(self.steps)):
            self._step(self.steps.popleft())
        if self._cost.due:
            self._cost.fit()
        self._publish()

    def _step(self, step: Step) -> None:
        if not (step.work.decode_seqs or step.work.prefill_tokens):
            return
        self._report.steps += 1
        self._report.step_seconds += step.seconds
        self._cost.observe(step.work, step.seconds, step.began, step.ended)
        if self._record is not None:
            self._record.step(step.work, step.seconds)

    def _publish(self) -> None:
        met, report = self._requests, self._report
        met.survey(self._clock(), self._aborted)
        report.arrived, report.waiting_prompt_tokens = met.arrived, met.waiting_prompt_tokens
        lengths = met.lengths.estimate()
        if lengths is not None:
            report.output_mean, report.output_square = lengths.mean, lengths.second_moment
        measured = self._cost.measured
        if measured is not None:
            report.cost, report.cost_error, report.cost_steps = measured
        report.beside_seconds = time.thread_time()
        self._slot.write(report)
        if self._record is not None:
            self._record.flush()
