"""Types of engines (`spec.engine.type`): ports, paths and abilities of each, as operator, gateway and plugin need them.

A type custom is any server of the OpenAI API: it names its own ports, paths and samples of its metrics page.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from inflight_base.manifest.lenient import Part
from inflight_base.manifest.names import ENGINE_ANNOTATION, ENGINE_PORT

EngineTypeName = Literal["inflight", "vllm", "custom"]
INFLIGHT: Literal["inflight"] = "inflight"
VLLM: Literal["vllm"] = "vllm"
CUSTOM: Literal["custom"] = "custom"

METRICS = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "kvUtilization": "vllm:kv_cache_usage_perc",
    "promptTokens": "vllm:prompt_tokens_total",
    "generationTokens": "vllm:generation_tokens_total",
    "ttft": "vllm:time_to_first_token_seconds",
    "tpot": "vllm:request_time_per_output_token_seconds",
    "itl": "vllm:inter_token_latency_seconds",
}
"""Fields of `spec.engine.custom.metrics`, with the names that vLLM and Inflight's engine have for them."""


@dataclass(frozen=True, slots=True)
class EngineType:
    """Facts about the engines of a service.

    Attributes:
        name: `spec.engine.type`.
        plugin: vLLM runs with Inflight's plugin.
        port: port of the OpenAI API.
        metrics_port: port of the metrics page, if it is not that of the API.
        metrics_path: path of the metrics page.
        metrics: names of samples on the page that differ from those of `METRICS`, by the name in `METRICS`.
    """

    name: EngineTypeName = INFLIGHT
    plugin: bool = False
    port: int = ENGINE_PORT
    metrics_port: int | None = None
    metrics_path: str = "/metrics"
    metrics: Mapping[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """The type, `vllm-plain` for vLLM without the plugin: what the metrics pages of the engines have."""
        return "vllm-plain" if self.name == VLLM and not self.plugin else self.name

    @property
    def live_limits(self) -> bool:
        """True if limits of running engines can change, over an admin port that only the operator reaches."""
        return self.name == INFLIGHT or self.plugin

    @property
    def limits(self) -> bool:
        """True if the operator starts engines with the capacities of the spec, and so knows their limits."""
        return self.name != CUSTOM


def engine_type(engine: Part) -> EngineType:
    """Returns the facts about `spec.engine` of an InferenceService, as the API server returns it."""
    name = engine.text("type", INFLIGHT)
    if name == VLLM:
        return EngineType(VLLM, plugin=engine.flag("plugin", True))
    if name != CUSTOM:
        return EngineType()
    custom, defaults = engine.part("custom"), EngineType()
    metrics = custom.part("metrics")
    given = {ours: metrics.text(field, ours) for field, ours in METRICS.items()}
    path = custom.text("metricsPath", defaults.metrics_path)
    return EngineType(
        CUSTOM,
        port=custom.whole("port", defaults.port, least=1),
        metrics_port=custom.whole("metricsPort", None, least=1),
        # Behind an address, any other text could name another host.
        metrics_path=path if path.startswith("/") else defaults.metrics_path,
        metrics={ours: theirs for ours, theirs in given.items() if theirs != ours},
    )


def engine_type_of(manifest: Mapping[str, Any]) -> EngineType:
    """Returns the facts about the engines of an InferenceService; unreadable fields have their defaults."""
    return engine_type(Part(manifest.get("spec"), "spec", []).part("engine"))


def annotation_of(engine: EngineType) -> str:
    """Returns the parts of `spec.engine` that `engine_type` reads, as JSON: a pod keeps the type that it was made with
    when that of its service changes. Empty for type inflight."""
    if engine.name == INFLIGHT:
        return ""
    parts: dict[str, Any] = {"type": engine.name}
    if engine.name == VLLM:
        parts["plugin"] = engine.plugin
    else:
        fields = {ours: name for name, ours in METRICS.items()}
        parts["custom"] = {
            "port": engine.port,
            **({} if engine.metrics_port is None else {"metricsPort": engine.metrics_port}),
            "metricsPath": engine.metrics_path,
            "metrics": {fields[ours]: theirs for ours, theirs in engine.metrics.items()},
        }
    return json.dumps(parts)


def engine_type_of_pod(metadata: Mapping[str, Any]) -> EngineType:
    """Returns the facts about the engine of a pod, by its metadata; an unreadable annotation counts as none."""
    return _annotated((metadata.get("annotations") or {}).get(ENGINE_ANNOTATION, ""))


@lru_cache(maxsize=1024)
def _annotated(annotation: str) -> EngineType:
    try:
        return engine_type(Part(json.loads(annotation or "{}"), "spec.engine", []))
    except (ValueError, RecursionError):
        return EngineType()
