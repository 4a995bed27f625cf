"""Export of traces: the flags, combined with OpenTelemetry's environment variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

TRACES_PATH = "/v1/traces"
"""Path of an OTLP collector: https://opentelemetry.io/docs/specs/otlp/#otlphttp-request."""


@dataclass(frozen=True, slots=True)
class TracingConfig:
    """Attributes:
    endpoint: URL of an OTLP collector's traces endpoint (HTTP with protobuf), with its path.
    sampling_ratio: share of the traces that begin here, 0 to 1; None: as the environment variables OTEL_TRACES_SAMPLER
        and OTEL_TRACES_SAMPLER_ARG say, by default all. Requests of a caller with a trace follow the caller.
    """

    endpoint: str
    sampling_ratio: float | None = None


def tracing_config(
    endpoint: str | None, sampling_ratio: float | None, environment: Mapping[str, str]
) -> TracingConfig | None:
    """None: no traces.

    Args:
        endpoint: value of `--otlp-traces-endpoint`. None: the environment decides.

    Raises:
        ValueError: the flag or an environment variable has no URL that can be used.
    """
    if endpoint is not None:
        url = _checked("--otlp-traces-endpoint", endpoint)
        endpoint = url if urlsplit(url).path.strip("/") else _with_path(url, TRACES_PATH)
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    endpoint = endpoint or _endpoint_of(environment)
    return None if endpoint is None else TracingConfig(endpoint, sampling_ratio)


def _endpoint_of(environment: Mapping[str, str]) -> str | None:
    """Return the URL for traces as it is, else the general one with the path of traces behind its own
    (https://opentelemetry.io/docs/specs/otel/protocol/exporter/)."""
    if environment.get("OTEL_TRACES_EXPORTER", "otlp").strip() != "otlp":
        return None
    for name, path in (("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", ""), ("OTEL_EXPORTER_OTLP_ENDPOINT", TRACES_PATH)):
        url = environment.get(name, "").strip()
        if url:
            return _with_path(_checked(f"${name}", url), path)
    return None


def _with_path(url: str, path: str) -> str:
    """`url` with `path` behind its own, before its query."""
    parts = urlsplit(url)
    return parts._replace(path=parts.path.rstrip("/") + path).geturl() if path else url


def _checked(source: str, url: str) -> str:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not url.isprintable() or " " in url:
        raise ValueError(
            f"{source}: {url!r} is not a URL such as http://collector:4318 (OTLP over HTTP; over gRPC is not supported)"
        )
    return url
