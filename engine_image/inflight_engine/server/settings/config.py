"""Configuration of the API process."""

from __future__ import annotations

import re
from dataclasses import dataclass

from inflight_engine.server.settings.kv_events import KVEventsConfig
from inflight_engine.server.settings.tracing import TracingConfig
from inflight_settings.engine import EngineConfig
from inflight_settings.server import ServerSettings

_KEY = re.compile(r"[!-~]([ -~]*[!-~])?")
"""An API key: what a header carries unchanged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig(ServerSettings):
    """Settings of the API process and of its engine process.

    Attributes:
        tracing: export of spans; None: no tracing.
        kv_events: publishing of KV cache events; None: none.
    """

    engine: EngineConfig
    tracing: TracingConfig | None = None
    kv_events: KVEventsConfig | None = None

    @property
    def served_model_name(self) -> str:
        """The name in answers and metrics."""
        return self.served_model_names[0]

    @property
    def access_log(self) -> frozenset[str] | None:
        """Paths without a line in the access log. None: no access log."""
        if not self.enable_access_log:
            return None
        return frozenset(filter(None, map(str.strip, self.disable_access_log_for_endpoints.split(","))))

    def conflict(self) -> str | None:
        """A sentence about settings that are valid individually, but not together. None: no conflict."""
        if bool(self.engine.model_cache) != bool(self.engine.model_cache_size):
            return "--model-cache needs a size, and the size a folder: --model-cache FOLDER --model-cache-size 500Gi"
        if self.engine.peers_file and not self.engine.model_cache:
            return "--peers-file needs a folder that peers read: give --model-cache and --model-cache-size"
        if self.engine.peers_tpot and not self.engine.peers_file:
            return "--peers-tpot is for engines that peers read from: give --peers-file"
        if self.engine.preemption == "swap" and not self.engine.swap_space:
            return "--preemption swap needs host memory: give --swap-space, as in --swap-space 4Gi"
        if self.engine.disk_space and not (self.engine.swap_space and self.engine.disk_path):
            return "--disk-space needs host memory and a folder: give --swap-space and --disk-path"
        if self.engine.disk_space and not self.engine.keeps_evicted:
            return "--disk-space needs the prefix cache, and another --preemption than recompute"
        if self.admin_port is None and not self.serving_metrics:
            return "--no-serving-metrics needs --admin-port: /metrics would be nowhere"
        if self.admin_port and self.admin_port == self.port:
            return f"--admin-port and --port are both {self.port}: give admin calls a port of their own, or none"
        if self.grpc_port and self.grpc_port in (self.port, self.admin_port):
            other = "--port" if self.grpc_port == self.port else "--admin-port"
            return f"--grpc-port and {other} are both {self.grpc_port}: give gRPC a port of its own, or none"
        if not all(map(_KEY.fullmatch, self.api_key)):
            return "--api-key or $INFLIGHT_API_KEY: a key must not be empty, and has visible ASCII characters only"
        if self.trust_tenant_header and self.tenant_key_file is not None:
            return "--trust-tenant-header and --tenant-key-file exclude each other: the header is trusted or checked"
        return None
