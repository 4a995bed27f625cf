"""Tracing configuration: export endpoint and sampling."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TracingConfig:
    """Attributes:
    endpoint: URL of an OTLP collector's traces endpoint (HTTP with protobuf), with its path.
    sampling_ratio: share of the traces that begin here, 0 to 1; None: as the environment variables OTEL_TRACES_SAMPLER
        and OTEL_TRACES_SAMPLER_ARG say, by default all. Requests of a caller with a trace follow the caller.
    """

    endpoint: str
    sampling_ratio: float | None = None
