"""Follows each request from its pick or refusal to its report: metrics, access log, tenants' accounts, last picks."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.hold.queue import HoldQueue
from inflight_gateway.request.view import Head
from inflight_gateway.state.picks import PicksLog
from inflight_gateway.telemetry.metrics import Metrics
from inflight_gateway.tenants.gate import REPORT_WAIT_S, Gate
from inflight_gateway.timers import Timers
from inflight_gateway.types import Finished, Pick, Refusal, RequestView

_log = logging.getLogger("inflight_gateway.access")


@dataclass(slots=True, eq=False)
class Course:
    """The picker's state of a request, over all its attempts.

    Attributes:
        request: the request in its first attempt; None: refused before it was parsed.
        request_id: the gateway's own id. external_id: X-Request-Id.
        relayed: a relay will report its end.
        held_s: seconds that it was held. picked: first endpoints of its picks.
        refusal: code of the gateway's own response; empty: none.
        status: status of that response, or of the engine's response where another gateway reports it; None: not
            known.
        open: attempts in flight.
    """

    request_id: str
    external_id: str
    relayed: bool
    request: RequestView | None = None
    held_s: float = 0.0
    picked: list[str] = field(default_factory=list)
    refusal: str = ""
    status: int | None = None
    open: int = 0


def _write(finished: Finished, course: Course | None) -> None:
    """Writes a line of the access log. Args: course: None: this picker started after the request."""
    fields: dict[str, Any] = {
        "request_id": finished.external_id,
        "service": str(finished.service) if finished.service.name else None,
        "tenant": course.request.tenant if course and course.request else None,
        "status": finished.status,
        "endpoint": finished.endpoints[-1] if finished.endpoints else None,
        "attempts": len(finished.endpoints),
        "continuations": finished.continuations,
        "held_s": round(course.held_s, 4) if course else None,
        "ttft_s": None if finished.ttft_s is None else round(finished.ttft_s, 4),
        "e2e_s": round(finished.e2e_s, 4),
        "prompt_tokens": finished.prompt_tokens,
        "cached_tokens": finished.cached_tokens,
        "completion_tokens": finished.completion_tokens,
    }
    if finished.error:
        fields["error"] = finished.error
    if course and course.refusal:
        fields["refusal"] = course.refusal
    _log.info("request", extra={"fields": fields})


_NO_SERVICE = ServiceKey("", "")


class Courses:
    """Receives the events of requests from exchanges, and the reports of relays.

    Args:
        clock: seconds, monotonic.
        log: True to write the access log.
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
        """Records by request id."""
        self._unreported: Timers[str] = Timers(REPORT_WAIT_S)
        """Ids of requests whose attempts have all ended."""

    def started(self, request: RequestView, pick: Pick, held_s: float, *, relayed: bool) -> Course:
        """Notes that an attempt is sent to a replica."""
        course = self._course(request.request_id, request.external_id, relayed)
        course.request = course.request or request
        course.held_s += held_s
        course.picked.append(pick.endpoints[0].address)
        self._metrics.picked(request, pick, held_s)
        self._picks.picked(request, pick, held_s, time.time())
        return course

    def refused(self, head: Head, service: ServiceKey | None, refusal: Refusal) -> Course:
        """Notes that the gateway itself responds."""
        course = self._course(head.request_id, head.external_id, head.relayed)
        course.refusal, course.status = refusal.code, refusal.status
        if course.request is None and service is not None:
            course.request = RequestView(head.request_id, service, self._clock(), external_id=head.external_id)
        self._metrics.refused(service, refusal)
        return course

    def answered(self, course: Course, status: int) -> None:
        """Notes the status of an engine's response to a request that no relay reports."""
        course.status = status

    def ended(self, course: Course) -> None:
        """Notes that the attempt of the last `started` or `refused` has ended."""
        course.open -= 1
        if course.open or self._open.get(course.request_id) is not course:
            return
        if course.relayed:
            self._unreported.begin(course.request_id, self._clock())
        else:
            self._finish_unreported(course)

    def decided(self, seconds: float) -> None:
        """Observes the seconds that the picker took for a request, without time held."""
        self._metrics.decided(seconds)

    def report(self, finished: Finished) -> None:
        """Applies a relay's report on how a request ended."""
        course = self._open.pop(finished.request_id, None)
        self._unreported.stop(finished.request_id)
        if not finished.service.name and course is not None and course.request is not None:
            finished = replace(finished, service=course.request.service)
        self._gate.settle(finished)
        if course is not None and course.request is not None and finished.completion_tokens:
            self._holds.served(course.request, finished.completion_tokens)
        self._finish(finished, course)

    def expire(self) -> None:
        """Expires requests whose relay died without a report."""
        for request_id in self._unreported.expire(self._clock()):
            self._finish_unreported(self._open[request_id])

    def _course(self, request_id: str, external_id: str, relayed: bool) -> Course:
        """Returns the record of a new attempt's request; all attempts of a request share one."""
        course = self._open.get(request_id)
        if course is None:
            course = self._open[request_id] = Course(request_id, external_id, relayed)
        course.open += 1
        self._unreported.stop(request_id)
        return course

    def _finish_unreported(self, course: Course) -> None:
        del self._open[course.request_id]
        service = course.request.service if course.request is not None else _NO_SERVICE
        finished = Finished(
            course.request_id,
            service,
            course.status,
            stream=False,
            endpoints=tuple(course.picked),
            external_id=course.external_id,
        )
        self._finish(finished, course)

    def _finish(self, finished: Finished, course: Course | None) -> None:
        self._metrics.finished(finished)
        self._picks.finished(finished)
        if self._log:
            _write(finished, course)
