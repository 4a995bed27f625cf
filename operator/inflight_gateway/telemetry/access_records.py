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
class AccessRecord:
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


def _write(finished: Finished, record: AccessRecord | None) -> None:
    """Writes a line of the access log. Args: record: None: this picker started after the request."""
    fields: dict[str, Any] = {
        "request_id": finished.external_id,
        "service": str(finished.service) if finished.service.name else None,
        "tenant": record.request.tenant if record and record.request else None,
        "status": finished.status,
        "endpoint": finished.endpoints[-1] if finished.endpoints else None,
        "attempts": len(finished.endpoints),
        "continuations": finished.continuations,
        "held_s": round(record.held_s, 4) if record else None,
        "ttft_s": None if finished.ttft_s is None else round(finished.ttft_s, 4),
        "e2e_s": round(finished.e2e_s, 4),
        "prompt_tokens": finished.prompt_tokens,
        "cached_tokens": finished.cached_tokens,
        "completion_tokens": finished.completion_tokens,
    }
    if finished.error:
        fields["error"] = finished.error
    if record and record.refusal:
        fields["refusal"] = record.refusal
    _log.info("request", extra={"fields": fields})


_NO_SERVICE = ServiceKey("", "")


class AccessRecords:
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
        self._open: dict[str, AccessRecord] = {}
        """Records by request id."""
        self._unreported: Timers[str] = Timers(REPORT_WAIT_S)
        """Ids of requests whose attempts have all ended."""

    def started(self, request: RequestView, pick: Pick, held_s: float, *, relayed: bool) -> AccessRecord:
        """Notes that an attempt is sent to a replica."""
        record = self._record(request.request_id, request.external_id, relayed)
        record.request = record.request or request
        record.held_s += held_s
        record.picked.append(pick.endpoints[0].address)
        self._metrics.picked(request, pick, held_s)
        self._picks.picked(request, pick, held_s, time.time())
        return record

    def refused(self, head: Head, service: ServiceKey | None, refusal: Refusal) -> AccessRecord:
        """Notes that the gateway itself responds."""
        record = self._record(head.request_id, head.external_id, head.relayed)
        record.refusal, record.status = refusal.code, refusal.status
        if record.request is None and service is not None:
            record.request = RequestView(head.request_id, service, self._clock(), external_id=head.external_id)
        self._metrics.refused(service, refusal)
        return record

    def answered(self, record: AccessRecord, status: int) -> None:
        """Notes the status of an engine's response to a request that no relay reports."""
        record.status = status

    def ended(self, record: AccessRecord) -> None:
        """Notes that the attempt of the last `started` or `refused` has ended."""
        record.open -= 1
        if record.open or self._open.get(record.request_id) is not record:
            return
        if record.relayed:
            self._unreported.begin(record.request_id, self._clock())
        else:
            self._finish_unreported(record)

    def decided(self, seconds: float) -> None:
        """Observes the seconds that the picker took for a request, without time held."""
        self._metrics.decided(seconds)

    def report(self, finished: Finished) -> None:
        """Applies a relay's report on how a request ended."""
        record = self._open.pop(finished.request_id, None)
        self._unreported.stop(finished.request_id)
        if not finished.service.name and record is not None and record.request is not None:
            finished = replace(finished, service=record.request.service)
        self._gate.settle(finished)
        if record is not None and record.request is not None and finished.completion_tokens:
            self._holds.served(record.request, finished.completion_tokens)
        self._finish(finished, record)

    def expire(self) -> None:
        """Expires requests whose relay died without a report."""
        for request_id in self._unreported.expire(self._clock()):
            self._finish_unreported(self._open[request_id])

    def _record(self, request_id: str, external_id: str, relayed: bool) -> AccessRecord:
        """Returns the record of a new attempt's request; all attempts of a request share one."""
        record = self._open.get(request_id)
        if record is None:
            record = self._open[request_id] = AccessRecord(request_id, external_id, relayed)
        record.open += 1
        self._unreported.stop(request_id)
        return record

    def _finish_unreported(self, record: AccessRecord) -> None:
        del self._open[record.request_id]
        service = record.request.service if record.request is not None else _NO_SERVICE
        finished = Finished(
            record.request_id,
            service,
            record.status,
            stream=False,
            endpoints=tuple(record.picked),
            external_id=record.external_id,
        )
        self._finish(finished, record)

    def _finish(self, finished: Finished, record: AccessRecord | None) -> None:
        self._metrics.finished(finished)
        self._picks.finished(finished)
        if self._log:
            _write(finished, record)
