"""All children of one service."""

from __future__ import annotations

from inflight_base.manifest import Manifest
from inflight_base.manifest.names import KIND, pod_labels
from inflight_operator.api.resolve import evictions
from inflight_operator.api.types import InferenceService
from inflight_operator.render.admin_token import admin_token_secret
from inflight_operator.render.deployment import deployment
from inflight_operator.render.inference_pool import has_inference_pool, inference_pool, picker_service, picker_slices
from inflight_operator.render.limits import limits_config_map
from inflight_operator.render.metadata import child
from inflight_operator.render.monitor import POD_MONITOR_API, pod_monitor
from inflight_operator.render.networkpolicy import network_policy
from inflight_operator.render.plan import ChildPlan, Settings
from inflight_operator.render.prefetch import prefetch_jobs, prefetch_policy
from inflight_operator.render.prefill import has_prefill, prefill_service
from inflight_operator.render.service import (
    behind_gateway,
    cluster_service,
    engines_service,
    front_slices,
    gateway_front,
)

CHILD_KINDS = (
    "Secret",
    "ConfigMap",
    "Deployment",
    "Service",
    "EndpointSlice",
    "PodDisruptionBudget",
    "NetworkPolicy",
    "PodMonitor",
    "InferencePool",
    "Job",
    KIND,
)
"""Every kind `render` may build; PodMonitor and InferencePool only where the cluster has it."""


def render(service: InferenceService, plan: ChildPlan, settings: Settings) -> list[Manifest]:
    """The children of `service`, in the order to apply them: objects that pods mount come before the Deployment.

    The same input gives the same bytes. Limits, replicas and token do not change the pod template, so neither tuning
    nor scaling ever restarts a pod.
    """
    behind = behind_gateway(service, settings)
    children = [
        admin_token_secret(service, plan.admin_token, plan.tenant_keys),
        limits_config_map(service, plan.limits, plan.digests, plan.peers),
        network_policy(service, settings, leaving=plan.leaving, prefill_of=plan.prefill_of),
        deployment(service, plan, settings),
        # The Service that the gateway finds engines by comes before the one that sends it requests.
        *([engines_service(service, plan.prefill_of)] if behind or plan.leaving else []),
        *([] if plan.prefill_of else _front(service, plan, settings)),
        pod_disruption_budget(service),
    ]
    if has_prefill(service, settings):
        children.append(prefill_service(service))
    if service.spec.model.prefetch is not None:
        children += [prefetch_policy(service), *prefetch_jobs(service, plan, settings)]
    if POD_MONITOR_API in settings.available_apis:
        children.append(pod_monitor(service))
    if has_inference_pool(service, settings):
        slices = picker_slices(service, plan.gateway_pods)
        children += [picker_service(service), *slices, inference_pool(service)]
    return children


def _front(service: InferenceService, plan: ChildPlan, settings: Settings) -> list[Manifest]:
    """The Service for clients, which engines of a prefill set have none of: it would lead around the gateway."""
    front = gateway_front(service, settings) if behind_gateway(service, settings) else cluster_service(service)
    return [front, *front_slices(service, plan.front_pods)]


def pod_disruption_budget(service: InferenceService) -> Manifest:
    """Drains evict as many pods at a time as a rollout may leave missing, a tenth by default; Kubernetes rounds up.

    `minAvailable` would make a service of one replica block a node drain. A pod that is not Ready serves
    no requests, so it may always be evicted.
    """
    name = service.metadata.name
    return {
        **child("policy/v1", "PodDisruptionBudget", service),
        "spec": {
            "maxUnavailable": evictions(service.spec.rollout),
            "selector": {"matchLabels": pod_labels(name)},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }
