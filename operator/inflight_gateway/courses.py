"""Follows each request from its pick or refusal to its report: metrics, access log, tenants' accounts, last picks."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from inflight_gateway import access_log
from inflight_gateway.access_log import Course
from inflight_gateway.ext_proc.dispatcher import Start
from inflight_gateway.hold.queue import HoldQueue
from inflight_gateway.metrics import Metrics
from inflight_gateway.state.picks import PicksLog
from inflight_gateway.tenants.gate import REPORT_WAIT_S, Gate
from inflight_gateway.types import Finished, Refusal, RequestView, ServiceKey

_NO_SERVICE = ServiceKey("", "")


class Courses:
    """The `Observer` of exchanges, and where relays' reports arrive.

    Args:
        clock: seconds, monotonic.
        log: whether the access log is written.
    """

    def __init__(
        self, metrics: Metrics, picks: PicksLog, gate: Gate, holds: HoldQueue, clock: Callable[[], float], *, log: bool
    ) -> None:
        self._metrics = metrics
        self._picks = picks
        self._gate = gate
        self._holds = holds
        self._clock = clock
        self._log = log
        self._open: dict[str, Course] = {}
        self._unreported: deque[tuple[float, str, Course]] = deque()

    def started(self, request: RequestView, start: Start, *, relayed: bool) -> None:
        course = self._course(request.request_id, relayed)
        course.request = course.request or request
        course.held_s += start.held_s
        course.picked.append(start.pick.endpoints[0].address)
        self._metrics.picked(request, start.pick, start.held_s)
        self._picks.picked(request, start.pick, start.held_s, time.time())

    def refused(self, request_id: str, service: ServiceKey | None, refusal: Refusal, *, relayed: bool) -> None:
        course = self._course(request_id, relayed)
        course.refusal, course.status = refusal.code, refusal.status
        if course.request is None and service is not None:
            course.request = RequestView(request_id, service, self._clock())
        self._metrics.refused(service, refusal)

    def ended(self, request_id: str) -> None:
        course = self._open.get(request_id)
        if course is None:
            return
        course.ended_at = self._clock()
        if course.relayed:
            self._unreported.append((course.ended_at, request_id, course))
        else:
            self._finish_unreported(request_id, course)

    def decided(self, seconds: float) -> None:
        self._metrics.decided(seconds)

    def report(self, finished: Finished) -> None:
        """A relay says how a request ended."""
        course = self._open.pop(finished.request_id, None)
        if not finished.service.name and course is not None and course.request is not None:
            finished = replace(finished, service=course.request.service)
        self._gate.settle(finished)
        if course is not None and course.request is not None and finished.completion_tokens:
            self._holds.served(course.request, finished.completion_tokens)
        self._finish(finished, course)

    def expire(self) -> None:
        """Gives up waiting for reports of relays that died."""
        until = self._clock() - REPORT_WAIT_S
        while self._unreported and self._unreported[0][0] <= until:
            ended_at, request_id, course = self._unreported.popleft()
            # Unless it has another attempt since, or another request has its id.
            if self._open.get(request_id) is course and course.ended_at == ended_at:
                self._finish_unreported(request_id, course)

    def _course(self, request_id: str, relayed: bool) -> Course:
        course = self._open.get(request_id)
        if course is None:
            course = self._open[request_id] = Course(relayed)
        course.ended_at = float("inf")
        return course

    def _finish_unreported(self, request_id: str, course: Course) -> None:
        del self._open[request_id]
        service = course.request.service if course.request is not None else _NO_SERVICE
        finished = Finished(request_id, service, course.status, stream=False, endpoints=tuple(course.picked))
        self._finish(finished, course)

    def _finish(self, finished: Finished, course: Course | None) -> None:
        self._metrics.finished(finished)
        self._picks.finished(finished)
        if self._log:
            access_log.write(finished, course)
