"""The trace of a request: a server span, and below it a span for each phase of each of its answers.

Loaded only where requests are traced. Spans of phases are created at the end of the request, from the times that the
engine process reported, so that tracing costs nothing per token.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import NamedTuple

from opentelemetry import propagate
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, format_span_id, format_trace_id, set_span_in_context
from starlette.types import Scope

from inflight_engine.server.requests.generation import Generation
from inflight_engine.server.telemetry.exchange import Exchange
from inflight_engine.server.telemetry.span_attributes import (
    PREEMPTED,
    PREFILL,
    first_attributes,
    last_attributes,
    request_phases,
)
from inflight_settings.server import PROBE_PATHS

MAX_CHOICES = 32
"""Answers of one request whose phases have spans."""

MAX_PHASES = 64
"""Phases of one answer that have spans, the first ones. The server span counts those that have none."""

log = logging.getLogger(__name__)

RawHeaders = Iterable[tuple[bytes, bytes]]


class _WallClock:
    """Moments of the monotonic clock as nanoseconds since the epoch. All moments of a trace go by one instance, so
    steps of the system's clock while a request runs change no durations."""

    __slots__ = ("_offset",)

    def __init__(self) -> None:
        self._offset = time.time_ns() - time.monotonic_ns()

    def at(self, seconds: float) -> int:
        return self._offset + round(seconds * 1e9)


class _Traced(NamedTuple):
    span: Span
    clock: _WallClock


class HeaderGetter(Getter[RawHeaders]):
    """Reads the trace context from a request's headers. A repeated traceparent is ignored, as the W3C specification
    requires."""

    def get(self, carrier: RawHeaders, key: str) -> list[str] | None:
        name = key.lower().encode("latin-1")
        values = [value.decode("latin-1") for header, value in carrier if header == name]
        return None if not values or (key == "traceparent" and len(values) > 1) else values

    def keys(self, carrier: RawHeaders) -> list[str]:
        return [name.decode("latin-1") for name, _ in carrier]


class Spans:
    """Creates the trace of a request. No method raises.

    Args:
        model: the served name.
    """

    def __init__(self, provider: TracerProvider, model: str) -> None:
        self._tracer = provider.get_tracer("inflight_engine")
        self._getter = HeaderGetter()
        self._model = model

    def begin(self, exchange: Exchange, scope: Scope) -> tuple[str, str]:
        """Start its server span; returns the ids of trace and span in hexadecimal."""
        if scope["path"] in PROBE_PATHS:
            return "", ""
        try:
            clock = _WallClock()
            context = propagate.extract(scope["headers"], Context(), self._getter)
            span = self._tracer.start_span(
                scope["method"],
                context,
                kind=SpanKind.SERVER,
                attributes=first_attributes(exchange, scope),
                start_time=clock.at(exchange.began),
            )
        except Exception:
            log.exception("a request has no trace")
            return "", ""
        exchange.span = _Traced(span, clock)
        ids = span.get_span_context()
        return format_trace_id(ids.trace_id), format_span_id(ids.span_id)

    def end(self, exchange: Exchange, scope: Scope) -> None:
        """End it, with the spans of its phases."""
        traced: _Traced | None = exchange.span
        if traced is None or not traced.span.is_recording():
            return
        try:
            self._end(traced, exchange, scope)
        except Exception:
            log.exception("a request has no complete trace")

    def _end(self, traced: _Traced, exchange: Exchange, scope: Scope) -> None:
        span, clock = traced
        route = getattr(scope.get("route"), "path", None)
        if route is not None:
            span.update_name(f"{scope['method']} {route}")
        span.set_attributes(last_attributes(exchange, route, self._model))
        if exchange.failed:
            error = None if exchange.call is None else exchange.call.error
            span.set_status(Status(StatusCode.ERROR, None if error is None else error.message))
        if exchange.call is not None:
            context = set_span_in_context(span, Context())
            choices = exchange.call.choices[:MAX_CHOICES]
            dropped = sum(self._phases(context, choice, exchange.ended, clock) for choice in choices)
            if dropped:
                span.set_attribute("inflight.phases_dropped", dropped)
        span.end(clock.at(exchange.ended))

    def _phases(self, context: Context, choice: Generation, ended: float, clock: _WallClock) -> int:
        """Returns how many phases there were beyond `MAX_PHASES`, of those whose times were kept."""
        resumes, phases = False, request_phases(choice, ended)
        for phase in phases[:MAX_PHASES]:
            attributes: dict[str, int | bool] = {"inflight.choice": choice.request.index}
            if phase.name == PREFILL and resumes:
                attributes["inflight.resumed"] = True
            resumes = phase.name == PREEMPTED
            began = clock.at(phase.began)
            child = self._tracer.start_span(phase.name, context, attributes=attributes, start_time=began)
            child.end(clock.at(phase.ended))
        return max(0, len(phases) - MAX_PHASES)
