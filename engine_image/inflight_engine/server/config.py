"""The API process's own configuration: where it listens, and what it bounds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from inflight_engine.config import EngineConfig
from inflight_engine.server.admission import QueueBounds
from inflight_engine.server.tracing_config import TracingConfig


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Attributes:
    engine: what the engine process is started with.
    admin_port: where admin calls are served; None: on `port`.
    serving_metrics: /metrics is on `port` too.
    served_model_name: the name that clients use.
    generation_config: where the defaults of sampling come from; `source` of `read_generation_config`.
    trust_tenant_header: `X-Inflight-Tenant` says whose a request is.
    tenant_key_file: it does where it is signed with the key in this file.
    bounds: how many requests may wait.
    shed_after: seconds; a request that is predicted to wait longer is refused. None: none is.
    queue_timeout: seconds a request may wait for a slot.
    request_timeout: seconds that a request may be without a new token, waiting included.
    drain_delay: seconds after SIGTERM in which requests still come in and are taken.
    drain_timeout: seconds after that in which running requests may finish.
    limits_file: live limits to start with; need not exist.
    access_log: paths whose requests have no line in the access log; None: no request has one.
    tracing: where spans of requests go; None: requests have no spans.
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
