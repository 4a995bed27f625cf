"""spec.engine.tracing and spec.engine.logs: observability of single requests."""

from __future__ import annotations

from inflight_operator.api.base import SpecModel, validation
from inflight_operator.api.setting import setting_field
from inflight_settings.engine import LogFormat

_GROUP = "[0-9a-fA-F]{1,4}"
_GROUPS = f"({_GROUP}(:{_GROUP}){{0,6}})?"
_IPV6 = f"({_GROUP}(:{_GROUP}){{7}}|{_GROUPS}::{_GROUPS})"
_PORT = "(6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[1-5][0-9]{4}|[1-9][0-9]{0,3})"
ENDPOINT_PATTERN = rf"^https?://([-_.a-zA-Z0-9]+|\[{_IPV6}\])(:{_PORT})?(/[!-~]*)?$"
"""URLs of collectors: RE2, and Python's. The chart's schema of values has the same."""

_IS_ENDPOINT = "self.matches('{}')".format(ENDPOINT_PATTERN.replace("\\", r"\\"))


class Tracing(SpecModel):
    """OpenTelemetry traces of requests."""

    endpoint: str | None = setting_field(
        "otlp_traces_endpoint",
        "URL of an OpenTelemetry collector that accepts OTLP over HTTP, such as"
        " http://collector.observability.svc:4318; a URL without a path gets /v1/traces. Default: the chart's value"
        " engine.tracing.endpoint; if that is empty too, engines send no traces.",
        min_length=1,
        max_length=512,
        json_schema_extra=validation(
            _IS_ENDPOINT,
            "engine.tracing.endpoint must be a URL such as http://collector.observability.svc:4318",
        ),
    )
    sampling_ratio: float | None = setting_field(
        "traces_sampling_ratio",
        "Share of requests that are traced, 0 to 1. A request whose caller sends a W3C trace context"
        " follows the caller's decision instead. Default: the chart's value engine.tracing.samplingRatio.",
    )


class Logs(SpecModel):
    """Logs of engines."""

    format: LogFormat | None = setting_field(
        "log_format",
        "Format of log lines; json is one JSON object a line. Default: the chart's value engine.logs.format.",
        default=None,
    )
    access_log: bool | None = setting_field(
        "enable_access_log",
        "Log one line for each request when it ends: status, ids, class, tenant, tokens and times, no prompts and no"
        " outputs. Default: the chart's value engine.logs.accessLog.",
        default=None,
    )
