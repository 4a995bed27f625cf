"""Measures the steps of a vLLM scheduler: work and seconds of each, the cost fitted to them, and lengths of outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from inflight_cost.model import StepWork, attended_tokens
from inflight_fit.online import MeasuredCost, OnlineFit
from inflight_fit.output_lengths import OutputLengths


class ScheduledRequest(Protocol):
    """The part of vLLM's `Request` that is read."""

    request_id: str
    num_prompt_tokens: int
    num_computed_tokens: int

    @property
    def num_output_tokens(self) -> int: ...

    def is_finished(self) -> bool: ...


class WorkMeter:
    """Work of scheduled steps. Most steps decode the same requests as the step before: their contexts are then one
    token longer, and only the ids have to be compared.

    Attributes:
        context: tokens that the decodes of the latest step read.
    """

    def __init__(self) -> None:
        self._decoding: Mapping[str, int] | None = None
        """Requests of the latest step, if it had decodes only."""
        self.context = 0

    def work(
        self, scheduled: Mapping[str, int], total: int, requests: Mapping[str, ScheduledRequest], *, started: bool
    ) -> StepWork:
        """Return the work of a step.

        Args:
            scheduled: tokens that it computes, by request id.
            total: sum of these.
            requests: by id, with the tokens of this step among `num_computed_tokens`.
            started: some of them start in this step, or start again after a preemption.
        """
        decodes = len(scheduled)
        before = None if started else self._decoding
        if total == decodes and before is not None and before.keys() == scheduled.keys():
            self.context += decodes
            return StepWork(decodes, 0, self.context, 0)
        decodes = context = prefill = attended = 0
        for request_id, count in scheduled.items():
            request = requests[request_id]
            start = request.num_computed_tokens - count
            if count == 1 and start >= request.num_prompt_tokens:
                decodes += 1
                context += start + 1
            else:
                prefill += count
                attended += attended_tokens(start, count)
        self._decoding, self.context = (None if prefill else scheduled), context
        return StepWork(decodes, prefill, context, attended)


class StepClock:
    """Seconds of steps that may overlap: a step takes from its planning, or from the end of the step before it if that
    is later, until its tokens are taken in."""

    def __init__(self) -> None:
        self._before = 0.0

    def seconds(self, began: float, ended: float) -> float:
        """Return the seconds of the next step. Args: began, ended: monotonic seconds."""
        seconds = ended - max(began, self._before)
        self._before = ended
        return seconds


class CostMeter:
    """The cost model fitted to recent steps.

    Args:
        compiles: as in `OnlineFit`.
        clock: monotonic seconds.
    """

    def __init__(self, *, compiles: bool, clock: Callable[[], float]) -> None:
        self.measured: MeasuredCost | None = None
        self._fit = OnlineFit(compiles=compiles)
        self._clock = clock
        self._fit_began = self._fit_ended = -1.0
        """Times of the latest fit, which takes some milliseconds. A step in flight meanwhile is measured too long."""

    def observe(self, work: StepWork, seconds: float, began: float, ended: float) -> None:
        """Take in a step. Args: began, ended: monotonic seconds."""
        if began >= self._fit_ended or ended <= self._fit_began:
            self._fit.observe(work, seconds, ended)

    @property
    def due(self) -> bool:
        """True: enough is new for another fit."""
        return self._fit.due(self._clock())

    def fit(self) -> None:
        """Fit the cost to the steps so far."""
        began = self._clock()
        self.measured = self._fit.fit(began) or self.measured
        self._fit_began, self._fit_ended = began, self._clock()


class RequestMeter:
    """Arrivals, uncomputed prompt tokens and lengths of outputs."""

    def __init__(self) -> None:
        self.arrived = (0, 0, 0)
        self.lengths = OutputLengths()
        self.waiting_prompt_tokens = 0
        self._requests: dict[str, ScheduledRequest] = {}
        self._counted: dict[str, int] = {}

    @property
    def known(self) -> bool:
        """True: at the latest survey, some requests had not ended."""
        return bool(self._requests)

    def arrive(self, request: ScheduledRequest) -> None:
        """Count a new request."""
        tokens, (count, total, squares) = request.num_prompt_tokens, self.arrived
        self.arrived = count + 1, total + tokens, squares + tokens * tokens
        self._requests[request.request_id] = request
        self._counted[request.request_id] = 0

    def survey(self, now: float, aborted: object) -> None:
        """Look at all requests, and forget those that ended.

        Args:
            now: monotonic seconds.
            aborted: `status` of requests whose output was cut short from outside.
        """
        waiting, begins, ends, over = 0, [], [], []
        for name, request in self._requests.items():
            # Before its tokens: a request that ends meanwhile is over at the next survey, with all of them.
            if request.is_finished():
                over.append(name)
            waiting += max(0, request.num_prompt_tokens - request.num_computed_tokens)
            length, counted = request.num_output_tokens, self._counted[name]
            if length > counted:
                begins.append(counted)
                ends.append(length)
                self._counted[name] = length
        if begins:
            self.lengths.generated_many(begins, ends)
        for name in over:
            request = self._requests.pop(name)
            waiting -= max(0, request.num_prompt_tokens - request.num_computed_tokens)
            length = self._counted.pop(name)
            if getattr(request, "status", None) != aborted:
                self.lengths.ended(length)
        self.waiting_prompt_tokens = waiting
        self.lengths.forget(now)
