"""Kinds of engines, and the metrics that Prometheus has of their services.

Grafana 11 draws a row also where no metric of it exists, so each kind has dashboards of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

_OF_OTHERS = ("inflight_operator_", "inflight_gateway_")
"""Metrics that operator and gateway have of services of every kind."""

_OF_PLUGIN = {
    "inflight_admission_rejections_total",
    "inflight_arrived_prompt_tokens_total",
    "inflight_arrived_requests_total",
    "inflight_max_num_batched_tokens",
    "inflight_max_num_batched_tokens_capacity",
    "inflight_max_num_seqs",
    "inflight_max_num_seqs_capacity",
    "inflight_output_tokens_mean",
    "inflight_step_cost_error_ratio",
}
"""Metrics of Inflight's engine that dashboards use and that vLLM has with the plugin."""

_OF_LIMITS = {
    "inflight_operator_service_demand_requests_per_second",
    "inflight_operator_service_max_num_batched_tokens",
    "inflight_operator_service_max_num_seqs",
    "inflight_operator_service_model_max_num_batched_tokens",
    "inflight_operator_service_model_max_num_seqs",
    "inflight_operator_service_needed_replicas",
    "inflight_operator_service_replica_requests_per_second",
}
"""Metrics of the operator about limits and capacity of engines, which it does not know for custom servers."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of engines.

    Attributes:
        name: `EngineType.kind`.
        suffix: of the names of its dashboards.
        title: words in the titles of its dashboards.
        has: True for the metrics that exist, by name.
    """

    name: str
    suffix: str
    title: str
    has: Callable[[str], bool]


KINDS = (
    Kind("inflight", "", "", lambda _: True),
    Kind("vllm", "-vllm", "vLLM", lambda name: name.startswith((*_OF_OTHERS, "vllm:")) or name in _OF_PLUGIN),
    Kind("vllm-plain", "-vllm-plain", "vLLM without the plugin", lambda name: name.startswith((*_OF_OTHERS, "vllm:"))),
    Kind("custom", "-custom", "custom server", lambda name: name.startswith(_OF_OTHERS) and name not in _OF_LIMITS),
)
"""Kinds with the same metrics in dashboards. Samples of custom servers have names of their own."""
