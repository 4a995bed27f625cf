"""The gateway's pods of a service, found through the API server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from inflight_base.kube.kinds import object_path
from inflight_base.manifest.names import (
    GATEWAY_ANNOTATION,
    GATEWAY_HTTP_PORT,
    GATEWAY_LABELS,
    GATEWAY_LOCAL_PORT,
    HTTP_PORT_NAME,
    selector_string,
)
from inflight_base.manifest.pods import condition
from inflight_kubectl.access.api_problems import ApiProblem
from inflight_kubectl.access.cluster import Cluster
from inflight_kubectl.access.resources import Service
from inflight_kubectl.output import Problem

Address = tuple[str, str, int]
"""Namespace and name of a pod, and the port."""

LABEL = selector_string(GATEWAY_LABELS)


@dataclass(frozen=True, slots=True)
class GatewayPod:
    """A ready pod of the gateway. Attributes: http: its OpenAI API. state: the picker's port on loopback."""

    name: str
    http: Address
    state: Address


def behind_gateway(service: Service) -> bool:
    """Returns True if clients of the service connect to the gateway."""
    return bool((service.spec.get("gateway") or {}).get("enabled"))


def ready_gateways(cluster: Cluster, service: Service) -> list[GatewayPod]:
    """Returns the ready pods of the gateway that serves `service`, by name.

    Raises:
        Problem: forbidden, or no answer.
    """
    namespace = _namespace(cluster, service)
    try:
        items = cluster.list(object_path("Pod", namespace), labelSelector=LABEL)["items"]
    except ApiProblem as problem:
        if problem.status != 403:
            raise
        where = f"namespace {namespace}" if namespace else "all namespaces"
        raise Problem(
            f"you may not list the gateway's pods in {where}: {problem.what}",
            "Ask an administrator for the role `edit` there: the plugin reaches the gateway through its pods",
        ) from problem
    return sorted((_pod(item) for item in items if _ready(item)), key=lambda pod: pod.name)


def no_gateway(service: Service) -> Problem:
    """Returns the problem that the service is behind the gateway and no pod of the gateway is ready."""
    return Problem(
        f"{service.name} is behind the gateway, and no gateway pod is ready",
        f"See `kubectl get pods -A -l {LABEL}`; the chart installs the gateway with --set gateway.enabled=true",
    )


def _namespace(cluster: Cluster, service: Service) -> str | None:
    """Returns the namespace of the gateway, from the service's own Service; None if that names none."""
    found = cluster.get(object_path("Service", service.namespace, service.name))
    parts = str((((found or {}).get("metadata") or {}).get("annotations") or {}).get(GATEWAY_ANNOTATION) or "").split(
        "."
    )
    return parts[1] if len(parts) > 2 and parts[2] == "svc" else None


def _ready(pod: dict[str, Any]) -> bool:
    ready = condition(pod.get("status") or {}, "Ready")
    return ready.get("status") == "True" and "deletionTimestamp" not in pod["metadata"]


def _pod(pod: dict[str, Any]) -> GatewayPod:
    name, namespace, spec = pod["metadata"]["name"], pod["metadata"]["namespace"], pod.get("spec") or {}
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    ports = {port.get("name"): port["containerPort"] for one in containers for port in one.get("ports") or ()}
    return GatewayPod(
        name,
        (namespace, name, ports.get(HTTP_PORT_NAME, GATEWAY_HTTP_PORT)),
        (namespace, name, GATEWAY_LOCAL_PORT),
    )
