"""An HTTP request from its head to its end: data for the access log and its trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.types import Scope

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inflight_engine.request import Scheduling
    from inflight_engine.server.requests.call import Call
    from inflight_engine.server.requests.generation import Generation

_KEY = "inflight.exchange"


class Exchange:
    """Attributes:
    began, ended: seconds on the monotonic clock; `ended` is 0 before the end.
    status: of the response; None: no response was started, for example because the client disconnected.
    scheduling: of a request for generation whose class is known.
    call: its generations; None: none requested, or rejected.
    span: the tracer's state; None: not traced.
    """

    __slots__ = ("began", "call", "ended", "request_id", "scheduling", "span", "status")

    def __init__(self, request_id: str, began: float) -> None:
        self.request_id = request_id
        self.began = began
        self.ended = 0.0
        self.status: int | None = None
        self.scheduling: Scheduling | None = None
        self.call: Call | None = None
        self.span: Any = None

    @property
    def aborted(self) -> bool:
        """The client disconnected before its response was complete."""
        return self.call is not None and self.call.error is None and self.call.abandoned

    @property
    def finish_reasons(self) -> list[str]:
        """Finish reasons of its generations that have ended, in the order of the choices."""
        return [str(choice.finish_reason) for choice in self._choices if choice.finish_reason is not None]

    @property
    def queue_seconds(self) -> float | None:
        """Seconds from its arrival until the first of its generations had a slot; None: none had."""
        waits = [
            choice.timings.admitted - choice.timings.arrived
            for choice in self._choices
            if choice.timings.admitted is not None
        ]
        return min(waits, default=None)

    @property
    def first_token_seconds(self) -> float | None:
        """Seconds from its arrival to the first token of any of its generations; None: there was none."""
        times = [choice.time_to_first_token for choice in self._choices]
        return min((seconds for seconds in times if seconds is not None), default=None)

    @property
    def num_preemptions(self) -> int:
        """Number of preemptions of its generations."""
        return sum(choice.num_preemptions for choice in self._choices)

    @property
    def _choices(self) -> Sequence[Generation]:
        return () if self.call is None else self.call.choices

    @property
    def failed(self) -> bool:
        """The response has a status of 500 or more, or was aborted with an error."""
        broken = self.call is not None and self.call.error is not None
        return broken or (self.status is not None and self.status >= 500)


def keep_exchange(scope: Scope, exchange: Exchange) -> None:
    scope[_KEY] = exchange


def exchange_of(scope: Scope) -> Exchange:
    """The exchange of a request that passed the middleware."""
    exchange: Exchange = scope[_KEY]
    return exchange


@dataclass(slots=True)
class SpanCounts:
    """Counts of spans of requests, by outcome. Each number is written by one thread only.

    Attributes:
        ended: sampled spans, including dropped ones.
        queue_full: dropped because the queue was full.
        exporting: taken from the queue to be sent.
        exported: accepted by the collector.
        refused: dropped because the collector was unreachable or rejected them.
    """

    ended: int = 0
    queue_full: int = 0
    exporting: int = 0
    exported: int = 0
    refused: int = 0

    @property
    def waiting(self) -> int:
        """Maximum number of spans in the queue."""
        return self.ended - self.queue_full - self.exporting
