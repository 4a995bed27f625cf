"""The flags of logs and traces, and their combination with OpenTelemetry's environment variables."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from inflight_engine import logs
from inflight_engine.server.settings.config import TracingConfig
from inflight_settings.flag_types import number

PROBE_PATHS = ("/health", "/ready", "/metrics")
"""Paths that machines ask every few seconds: no line in the access log by default, and no span ever."""

TRACES_PATH = "/v1/traces"
"""Of an OTLP collector: https://opentelemetry.io/docs/specs/otlp/#otlphttp-request."""


def add_observability_flags(add: Callable[..., None]) -> None:
    """`add`: as in `add_serve_flags`."""
    add("--log-level", "debug adds a line for each request", choices=logs.LEVELS, default="info")
    add("--log-format", "json: one JSON object a line, in all processes", choices=logs.FORMATS, default="text")
    add(
        "--enable-access-log",
        "log a line for each request when it ends: status, ids, class, tokens, times; never prompts or outputs",
        action="store_true",
    )
    add(
        "--disable-access-log-for-endpoints",
        "paths without a line in the access log, separated by commas",
        default=",".join(PROBE_PATHS),
        metavar="PATHS",
    )
    add(
        "--otlp-traces-endpoint",
        "send a trace of each request to this OpenTelemetry collector (OTLP over HTTP with protobuf), as in "
        "http://collector:4318; a URL without a path gets /v1/traces (default: $OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, "
        "$OTEL_EXPORTER_OTLP_ENDPOINT, else no traces)",
        type=traces_endpoint,
        metavar="URL",
    )
    add(
        "--traces-sampling-ratio",
        "share of requests to trace, 0 to 1, where the caller sent no trace context; with one the caller decides "
        "(default: $OTEL_TRACES_SAMPLER, else 1)",
        type=number(float, 0, 1),
        metavar="RATIO",
    )


def access_log_exclusions(flags: argparse.Namespace) -> frozenset[str] | None:
    """Paths without a line; None: no access log."""
    if not flags.enable_access_log:
        return None
    return frozenset(filter(None, map(str.strip, flags.disable_access_log_for_endpoints.split(","))))


def tracing_config(flags: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> TracingConfig | None:
    """None: no traces.

    Raises:
        ValueError: an environment variable has no URL that can be used.
    """
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    endpoint = flags.otlp_traces_endpoint or _endpoint_of(environment)
    return None if endpoint is None else TracingConfig(endpoint, flags.traces_sampling_ratio)


def _endpoint_of(environment: Mapping[str, str]) -> str | None:
    """As https://opentelemetry.io/docs/specs/otel/protocol/exporter/: the URL for traces as it is, the general one with
    the path of traces behind its own."""
    if environment.get("OTEL_TRACES_EXPORTER", "otlp").strip() != "otlp":
        return None
    for name, path in (("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", ""), ("OTEL_EXPORTER_OTLP_ENDPOINT", TRACES_PATH)):
        url = environment.get(name, "").strip()
        if url:
            try:
                return _with_path(_checked(url), path)
            except argparse.ArgumentTypeError as error:
                raise ValueError(f"${name}: {error}") from None
    return None


def traces_endpoint(text: str) -> str:
    """The value of `--otlp-traces-endpoint`, with a path.

    Raises:
        argparse.ArgumentTypeError: it is not an HTTP URL.
    """
    url = _checked(text)
    return url if urlsplit(url).path.strip("/") else _with_path(url, TRACES_PATH)


def _with_path(url: str, path: str) -> str:
    """`url` with `path` behind its own, before its query."""
    parts = urlsplit(url)
    return parts._replace(path=parts.path.rstrip("/") + path).geturl() if path else url


def _checked(text: str) -> str:
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not text.isprintable() or " " in text:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a URL such as http://collector:4318 (OTLP over HTTP; over gRPC is not supported)"
        )
    return text
