"""spec.engine.custom: how the operator runs and measures a server that it does not know."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field

from inflight_base.manifest.engines import METRICS
from inflight_base.manifest.names import ENGINE_PORT
from inflight_operator.api.base import SpecModel, rule, validation, validations

Port = Annotated[int, Field(ge=1, le=65535)]
Argument = Annotated[str, Field(min_length=1, max_length=4096)]


def _path(field: str, default: str | None, description: str) -> Any:
    return Field(
        default=default,
        min_length=1,
        max_length=255,
        description=description,
        json_schema_extra=validation(
            "self.matches('^/[-_.~/a-zA-Z0-9]*$')", f"engine.custom.{field} must be a path, such as /health"
        ),
    )


def _sample(field: str, description: str) -> Any:
    return Field(
        default=None,
        max_length=255,
        description=f"{description} Default: {METRICS[field]}.",
        json_schema_extra=validation(
            "self.matches('^[a-zA-Z_:][a-zA-Z0-9_:]*$')",
            f"engine.custom.metrics.{field} must be the name of a metric, such as {METRICS[field]}",
        ),
    )


class CustomMetrics(SpecModel):
    """Names of metrics on the server's page, in Prometheus text format, in place of vLLM's names. Replicas follow the
    metrics that the page has: it needs running at least."""

    running: str | None = _sample("running", "Gauge of running requests.")
    waiting: str | None = _sample("waiting", "Gauge of requests that wait for a slot.")
    kv_utilization: str | None = _sample("kvUtilization", "Gauge of the share of the KV cache in use, 0 to 1.")
    prompt_tokens: str | None = _sample("promptTokens", "Counter of prompt tokens.")
    generation_tokens: str | None = _sample("generationTokens", "Counter of output tokens.")
    ttft: str | None = _sample("ttft", "Histogram of the time to first token, in seconds.")
    tpot: str | None = _sample("tpot", "Histogram of the time per output token of finished requests, in seconds.")
    itl: str | None = _sample("itl", "Histogram of the time between two output tokens, in seconds.")


class CustomEngine(SpecModel):
    """A server of the OpenAI API that the operator does not know. In command and args, $(INFLIGHT_MODEL) is the folder
    of a pvc:// or oci:// model or the name of an hf:// model, $(INFLIGHT_SERVED_NAME) the name that clients give."""

    model_config = ConfigDict(
        json_schema_extra=validations(
            rule(
                "!has(self.metricsPort) || !has(self.port) || self.metricsPort != self.port",
                "engine.custom.metricsPort is for a page on another port than engine.custom.port: leave it out",
            )
        )
    )

    command: list[Argument] = Field(
        default_factory=list,
        max_length=64,
        description="Command of the container. Default: that of the image.",
    )
    args: list[Argument] = Field(
        default_factory=list,
        max_length=128,
        description="Arguments of the command. Default: those of the image.",
    )
    port: Port = Field(default=ENGINE_PORT, description="Port of the OpenAI API.")
    ready_path: str = _path("readyPath", "/health", "Path on port that answers 200 when the model is loaded.")
    live_path: str | None = _path(
        "livePath",
        None,
        "Path on port that answers an error when the server must be restarted. Default: readyPath.",
    )
    metrics_path: str = _path("metricsPath", "/metrics", "Path of the metrics page.")
    metrics_port: Port | None = Field(default=None, description="Port of the metrics page. Default: port.")
    metrics: CustomMetrics = Field(
        default_factory=CustomMetrics,
        description="Names of metrics on the server's page, in place of vLLM's names.",
    )
