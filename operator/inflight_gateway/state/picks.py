"""The last picks of each service, for users: `GET /v1/picks`, `kubectl inflight why`."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.types import Finished, Pick, RequestView

PER_SERVICE = 200
"""Requests kept for each service; each takes about 1 KiB."""

MAX_ATTEMPTS = 8
"""Most attempts kept of a request: the first ones."""


@dataclass(slots=True, eq=False)
class _Attempt:
    number: int
    held_s: float
    pick: Pick


@dataclass(slots=True, eq=False)
class _Record:
    """A request, its picks, and how it ended."""

    request_id: str
    external_id: str
    at: float
    tenant: str
    service_class: str
    prompt_tokens: int
    attempts: list[_Attempt] = field(default_factory=list)
    finished: Finished | None = None


class PicksLog:
    """A ring buffer for each service. A retried request keeps its entry."""

    def __init__(self, per_service: int = PER_SERVICE) -> None:
        self._per_service = per_service
        self._services: dict[ServiceKey, deque[_Record]] = {}
        self._by_id: dict[tuple[ServiceKey, str], _Record] = {}

    def picked(self, request: RequestView, pick: Pick, held_s: float, at: float) -> None:
        """Adds a request that was sent to `pick`.

        Args:
            held_s: seconds that it was held here before.
            at: Unix time.
        """
        key = (request.service, request.request_id)
        record = self._by_id.get(key)
        if record is None:
            record = self._by_id[key] = _Record(
                request.request_id,
                request.external_id,
                at,
                request.tenant,
                request.service_class,
                request.prompt_tokens,
            )
            ring = self._services.setdefault(request.service, deque())
            ring.append(record)
            if len(ring) > self._per_service:
                del self._by_id[request.service, ring.popleft().request_id]
        if len(record.attempts) < MAX_ATTEMPTS:
            record.attempts.append(_Attempt(request.attempt, held_s, pick))

    def finished(self, finished: Finished) -> None:
        """Adds a relay's report on how a request ended; a request that is no longer kept is ignored."""
        record = self._by_id.get((finished.service, finished.request_id))
        if record is not None:
            record.finished = finished

    def forget(self, service: ServiceKey) -> None:
        """Removes a deleted service."""
        for record in self._services.pop(service, ()):
            del self._by_id[service, record.request_id]

    def last(self, service: ServiceKey, count: int) -> list[Mapping[str, Any]]:
        """Returns the newest `count` requests, newest first, as JSON objects."""
        ring = self._services.get(service, deque())
        return [_as_json(record) for _, record in zip(range(count), reversed(ring), strict=False)]


def _as_json(record: _Record) -> dict[str, Any]:
    end = record.finished
    return {
        "request_id": record.external_id,
        "at": record.at,
        "tenant": record.tenant,
        "class": record.service_class,
        "prompt_tokens": record.prompt_tokens,
        "attempts": [
            {
                "attempt": attempt.number,
                "held_s": attempt.held_s,
                "endpoints": [endpoint.address for endpoint in attempt.pick.endpoints],
                "pods": [endpoint.pod for endpoint in attempt.pick.endpoints],
                "reason": attempt.pick.reason,
                "scores": attempt.pick.scores,
                "predicted_ttft_s": attempt.pick.predicted_ttft_s,
                "cached_tokens": attempt.pick.cached_tokens,
            }
            for attempt in record.attempts
        ],
        "finished": None
        if end is None
        else {
            "status": end.status,
            "endpoints": list(end.endpoints),
            "continuations": end.continuations,
            "ttft_s": end.ttft_s,
            "e2e_s": end.e2e_s,
            "longest_gap_s": end.longest_gap_s,
            "prompt_tokens": end.prompt_tokens,
            "cached_tokens": end.cached_tokens,
            "completion_tokens": end.completion_tokens,
        },
    }
