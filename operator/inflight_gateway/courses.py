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
    """The `Observer` of exchanges, and the receiver of relays' reports.

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
        self._open: dict[str, list[Course]] = {}
        """By request id, which is the client's own: several requests may have the same."""
        self._unreported: deque[tuple[float, Course]] = deque()

    def started(self, request: RequestView, start: Start, *, relayed: bool) -> Course:
        course = self._course(request.request_id, request.attempt, relayed)
        course.request = course.request or request
        course.held_s += start.held_s
        course.picked.append(start.pick.endpoints[0].address)
        self._metrics.picked(request, start.pick, start.held_s)
        self._picks.picked(request, start.pick, start.held_s, time.time())
        return course

    def refused(
        self, request_id: str, service: ServiceKey | None, refusal: Refusal, *, relayed: bool, attempt: int = 1
    ) -> Course:
        course = self._course(request_id, attempt, relayed)
        course.refusal, course.status = refusal.code, refusal.status
        if course.request is None and service is not None:
            course.request = RequestView(request_id, service, self._clock())
        self._metrics.refused(service, refusal)
        return course

    def ended(self, course: Course) -> None:
        course.open -= 1
        if course.open or course not in self._open.get(course.request_id, ()):
            return
        course.ended_at = self._clock()
        if course.relayed:
            self._unreported.append((course.ended_at, course))
        else:
            self._finish_unreported(course)

    def decided(self, seconds: float) -> None:
        self._metrics.decided(seconds)

    def report(self, finished: Finished) -> None:
        """A relay reports how a request ended."""
        course = self._of(finished)
        if course is not None:
            self._remove(course)
        if not finished.service.name and course is not None and course.request is not None:
            finished = replace(finished, service=course.request.service)
        self._gate.settle(finished)
        if course is not None and course.request is not None and finished.completion_tokens:
            self._holds.served(course.request, finished.completion_tokens)
        self._finish(finished, course)

    def expire(self) -> None:
        """Expires requests whose relay died without a report."""
        until = self._clock() - REPORT_WAIT_S
        while self._unreported and self._unreported[0][0] <= until:
            ended_at, course = self._unreported.popleft()
            # Unless it has another attempt by now, or another request uses its id.
            if not course.open and course.ended_at == ended_at and course in self._open.get(course.request_id, ()):
                self._finish_unreported(course)

    def _course(self, request_id: str, attempt: int, relayed: bool) -> Course:
        """A first attempt creates one. A later attempt continues that of its request, whose previous attempt has ended
        or is about to."""
        known = self._open.setdefault(request_id, [])
        if attempt == 1 or not known:
            known.append(Course(request_id, relayed))
            course = known[-1]
        else:
            course = next((one for one in known if not one.open), known[-1])
        course.open += 1
        course.ended_at = float("inf")
        return course

    def _of(self, finished: Finished) -> Course | None:
        """Among several with the same id, the one at the report's endpoint."""
        known = self._open.get(finished.request_id, [])
        tried = set(finished.endpoints)
        return next((one for one in known if tried.intersection(one.picked)), known[0] if known else None)

    def _remove(self, course: Course) -> None:
        known = self._open[course.request_id]
        known.remove(course)
        if not known:
            del self._open[course.request_id]

    def _finish_unreported(self, course: Course) -> None:
        self._remove(course)
        service = course.request.service if course.request is not None else _NO_SERVICE
        finished = Finished(course.request_id, service, course.status, stream=False, endpoints=tuple(course.picked))
        self._finish(finished, course)

    def _finish(self, finished: Finished, course: Course | None) -> None:
        self._metrics.finished(finished)
        self._picks.finished(finished)
        if self._log:
            access_log.write(finished, course)
