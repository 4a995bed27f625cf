"""Spans to an OTLP collector, in batches and from a thread of their own: requests never wait for it.

Loaded only where requests are traced: it imports OpenTelemetry's SDK and exporter.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Sequence
from importlib.metadata import version

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

from inflight_engine.server.settings.tracing import TracingConfig
from inflight_engine.server.telemetry.exchange import SpanCounts
from inflight_engine.server.telemetry.spans import Spans

_SECONDS_BETWEEN_COMPLAINTS = 60.0
PROPAGATOR = "opentelemetry.trace.propagation.tracecontext"
"""Logger that complains of headers that are too long."""

_SERVICE_NAME = "inflight-engine"


class CountingExporter(SpanExporter):
    """Another exporter, with counts."""

    def __init__(self, exporter: SpanExporter, counts: SpanCounts) -> None:
        self._exporter = exporter
        self._counts = counts

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._counts.exporting += len(spans)
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            if result is SpanExportResult.SUCCESS:
                self._counts.exported += len(spans)
            else:
                self._counts.refused += len(spans)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


class BoundedProcessor(BatchSpanProcessor):
    """Drops and counts spans that do not fit into its queue."""

    def __init__(self, exporter: SpanExporter, counts: SpanCounts, max_queue_size: int | None = None) -> None:
        size = max_queue_size or self._default_max_queue_size()  # type: ignore[no-untyped-call]
        super().__init__(CountingExporter(exporter, counts), max_queue_size=size)
        self._counts = counts
        self._size = size

    def on_end(self, span: ReadableSpan) -> None:
        context = span.get_span_context()
        if context is None or not context.trace_flags.sampled:
            return
        counts = self._counts
        full = counts.waiting >= self._size
        counts.ended += 1
        if full:
            counts.queue_full += 1
            return
        super().on_end(span)


class TraceExport:
    """The provider of tracers.

    Raises:
        ValueError: an OTEL_ environment variable is wrong.
    """

    def __init__(self, config: TracingConfig, exporter: SpanExporter | None = None) -> None:
        """`exporter`: in place of the OTLP exporter of `config`."""
        self.counts = SpanCounts()
        _complain_rarely()
        ratio = config.sampling_ratio
        self.provider = TracerProvider(
            sampler=None if ratio is None else ParentBasedTraceIdRatio(ratio),
            resource=_resource(),
            shutdown_on_exit=False,
        )
        self.provider.add_span_processor(
            BoundedProcessor(exporter or OTLPSpanExporter(endpoint=config.endpoint), self.counts)
        )

    def spans(self, model: str) -> Spans:
        """Creates the traces of requests. `model`: the served name."""
        return Spans(self.provider, model)

    def close(self, seconds: float) -> None:
        """Send the remaining spans, for at most `seconds`; the process may end after that."""
        closing = threading.Thread(target=self.provider.shutdown, name="flush-traces", daemon=True)
        closing.start()
        closing.join(seconds)


def _resource() -> Resource:
    """Resource of the spans; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES take precedence."""
    ours = {
        "service.name": _SERVICE_NAME,
        "service.version": version("inflight"),
        "service.instance.id": socket.gethostname(),
    }
    found = Resource.create()
    given = {key: value for key, value in found.attributes.items() if not str(value).startswith("unknown_service")}
    return Resource({**ours, **given}, found.schema_url)


class _Rarely(logging.Filter):
    """Passes one record a minute: every batch fails while a collector is unreachable."""

    def __init__(self) -> None:
        super().__init__()
        self._next = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + _SECONDS_BETWEEN_COMPLAINTS
        return True


def _complain_rarely() -> None:
    # A logger's filter does not apply to records of child loggers.
    for name in (OTLPSpanExporter.__module__, "opentelemetry.sdk._shared_internal", PROPAGATOR):
        complaining = logging.getLogger(name)
        if not any(isinstance(each, _Rarely) for each in complaining.filters):
            complaining.addFilter(_Rarely())
