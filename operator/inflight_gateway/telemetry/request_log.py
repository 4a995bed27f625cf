"""Metrics, access log and last picks of each request."""

from __future__ import annotations

import logging
import time
from typing import Any

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.state.picks import PicksLog
from inflight_gateway.telemetry.metrics import Metrics
from inflight_gateway.types import APPROXIMATE, Finished, Pick, Refusal, RequestView

_log = logging.getLogger("inflight_gateway.access")


class RequestLog:
    """Receives the events of requests. Args: access_log: True to write a line for each request that ended."""

    def __init__(self, metrics: Metrics, picks: PicksLog, *, access_log: bool) -> None:
        self._metrics = metrics
        self._picks = picks
        self._access_log = access_log

    def decided(self, seconds: float) -> None:
        """Observes the seconds that the picker took for a request, without time held."""
        self._metrics.decided(seconds)

    def picked(self, view: RequestView, pick: Pick, held_s: float, index: str = APPROXIMATE) -> None:
        """Notes that an attempt is sent to a replica. Args: index: of its prefix cache, see `Request.index`."""
        self._metrics.picked(view, pick, held_s, index)
        self._picks.picked(view, pick, held_s, time.time())

    def refused(self, service: ServiceKey | None, refusal: Refusal) -> None:
        """Notes that the gateway itself responds."""
        self._metrics.refused(service, refusal.code)

    def ended(self, finished: Finished, held_s: float | None, refusal: str, index: str = APPROXIMATE) -> None:
        """Notes the end of a request.

        Args:
            held_s: seconds that its attempts were held; None: this picker did not see them.
            refusal: code of the picker's own response; empty: none.
            index: see `Request.index`.
        """
        service = finished.service if finished.service.name else None
        if not refusal and finished.error and not finished.endpoints and finished.status:
            self._metrics.refused(service, finished.error)
        self._metrics.finished(finished, index)
        self._picks.finished(finished)
        if self._access_log:
            _write(finished, held_s, refusal)


def _write(finished: Finished, held_s: float | None, refusal: str) -> None:
    fields: dict[str, Any] = {
        "request_id": finished.external_id,
        "service": str(finished.service) if finished.service.name else None,
        "tenant": finished.tenant,
        "key_id": finished.key_id,
        "status": finished.status,
        "endpoint": finished.endpoints[-1] if finished.endpoints else None,
        "attempts": len(finished.endpoints),
        "continuations": finished.continuations,
        "held_s": None if held_s is None else round(held_s, 4),
        "ttft_s": None if finished.ttft_s is None else round(finished.ttft_s, 4),
        "e2e_s": round(finished.e2e_s, 4),
        "prompt_tokens": finished.prompt_tokens,
        "cached_tokens": finished.cached_tokens,
        "completion_tokens": finished.completion_tokens,
    }
    if finished.error:
        fields["error"] = finished.error
    if refusal:
        fields["refusal"] = refusal
    _log.info("request", extra={"fields": fields})
