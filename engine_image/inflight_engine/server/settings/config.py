"""Configuration of the API process: listen addresses and bounds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from inflight_settings.engine import EngineConfig


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """Attributes:
    max_requests: maximum requests not yet admitted by the engine.
    max_tokens: maximum prompt tokens of these; None: unlimited.
    """

    max_requests: int
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class TracingConfig:
    """Attributes:
    endpoint: URL of an OTLP collector's traces endpoint (HTTP with protobuf), with its path.
    sampling_ratio: share of the traces that begin here, 0 to 1; None: as the environment variables OTEL_TRACES_SAMPLER
        and OTEL_TRACES_SAMPLER_ARG say, by default all. Requests of a caller with a trace follow the caller.
    """

    endpoint: str
    sampling_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Attributes:
    engine: configuration of the engine process.
    admin_port: port of admin calls; None: `port`.
    serving_metrics: /metrics is on `port` too.
    served_model_name: the name that clients use.
    generation_config: source of sampling defaults; `source` of `read_generation_config`.
    trust_tenant_header: `X-Inflight-Tenant` names the tenant of a request, unsigned.
    tenant_key_file: the header is accepted if signed with the key in this file.
    bounds: of waiting requests.
    shed_after: seconds; a request with a longer predicted wait is rejected. None: no shedding.
    queue_timeout: seconds a request may wait for a slot.
    request_timeout: seconds that a request may be without a new token, waiting included.
    drain_delay: seconds after SIGTERM in which new requests are still accepted.
    drain_timeout: seconds after that in which running requests may finish.
    limits_file: live limits to start with; need not exist.
    access_log: paths without a line in the access log; None: no access log.
    tracing: export of spans; None: no tracing.
    """

    engine: EngineConfig
    host: str
    port: int
    admin_port: int | None
    serving_metrics: bool
    served_model_name: str
    generation_config: str
    trust_tenant_header: bool
    tenant_key_file: Path | None
    bounds: QueueBounds
    shed_after: float | None
    queue_timeout: float
    request_timeout: float
    drain_delay: float
    drain_timeout: float
    limits_file: Path | None
    access_log: frozenset[str] | None
    tracing: TracingConfig | None
