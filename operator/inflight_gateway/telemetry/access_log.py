"""The access log: one line for each request that ended."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

from inflight_gateway.types import Finished, RequestView

_log = logging.getLogger("inflight_gateway.access")


@dataclass(slots=True, eq=False)
class Course:
    """The picker's state of a request, over all its attempts.

    Attributes:
        request: of its first attempt; None: refused before it was parsed.
        request_id: the gateway's own. external_id: X-Request-Id.
        relayed: a relay will report its end.
        held_s: seconds that it was held. picked: first endpoints of its picks.
        refusal: code of the gateway's own response; empty: none.
        status: of that response, or of the engine's where another gateway shows it; None: not known.
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


def write(finished: Finished, course: Course | None) -> None:
    """Args: course: None: this picker started after the request."""
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
