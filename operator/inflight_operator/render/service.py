"""The Services: for clients, http://NAME.NAMESPACE.svc, and for the gateway in front of the engines."""

from __future__ import annotations

from collections.abc import Sequence

from inflight_base.manifest import Manifest
from inflight_base.manifest.names import (
    GATEWAY_ANNOTATION,
    GATEWAY_LABELS,
    GRPC_PORT,
    GRPC_PORT_NAME,
    HTTP_PORT_NAME,
    PREFILL_OF_LABEL,
    SERVICE_LABEL,
    child_names,
    pod_labels,
)
from inflight_base.manifest.slices import GatewayAddress
from inflight_operator.api.types import InferenceService
from inflight_operator.render.gateway_slices import gateway_slices
from inflight_operator.render.metadata import child
from inflight_operator.render.plan import Settings

SERVICE_PORT = 80


def cluster_service(service: InferenceService) -> Manifest:
    """A ClusterIP Service on port 80, so that the address needs no port."""
    name = service.metadata.name
    return {
        **child("v1", "Service", service),
        "spec": {
            "type": "ClusterIP",
            "selector": pod_labels(name),
            "ports": engine_ports(service),
        },
    }


def engine_ports(service: InferenceService) -> list[Manifest]:
    """The ports of a Service whose endpoints are the engines."""
    grpc = {
        "name": GRPC_PORT_NAME,
        "port": GRPC_PORT,
        "targetPort": GRPC_PORT_NAME,
        "protocol": "TCP",
        "appProtocol": "kubernetes.io/h2c",
    }
    return [service_port(), *([grpc] if service.spec.engine.grpc else [])]


def service_port() -> Manifest:
    """The port of the OpenAI API, of every Service of the engines."""
    return {
        "name": HTTP_PORT_NAME,
        "port": SERVICE_PORT,
        "targetPort": HTTP_PORT_NAME,
        "protocol": "TCP",
        "appProtocol": "http",
    }


def behind_gateway(service: InferenceService, settings: Settings) -> bool:
    """Returns True if requests to the service go through the gateway: the service enables it, and a gateway is
    installed."""
    return service.spec.gateway.enabled and bool(settings.gateway_service)


def gateway_front(service: InferenceService, settings: Settings) -> Manifest:
    """The Service of the service's name, with the gateway's pods as its endpoints (`front_slices`): clients keep name
    and address, and the gateway sees in the Host header which service a request is for.

    Its selector selects no pod. Without one, Kubernetes would keep the slices of the engines as they are at that time,
    and mirror its Endpoints into further ones.
    """
    manifest = child("v1", "Service", service)
    manifest["metadata"]["annotations"] = {GATEWAY_ANNOTATION: settings.gateway_service}
    return {**manifest, "spec": {"type": "ClusterIP", "selector": no_pods(service), "ports": [service_port()]}}


def no_pods(service: InferenceService) -> dict[str, str]:
    """A selector that selects no pod of the service: pods do not have its second label."""
    return {SERVICE_LABEL: service.metadata.name, "inflight.dev/endpoints": "gateway"}


def front_slices(service: InferenceService, pods: Sequence[GatewayAddress]) -> list[Manifest]:
    """The gateway's pods as endpoints of the Service of the service's name."""
    name = service.metadata.name
    return gateway_slices(service, name, child_names(name).front, HTTP_PORT_NAME, pods)


def engines_service(service: InferenceService, prefill_of: str = "") -> Manifest:
    """A headless Service over the engines. Its labels, which are copied to its EndpointSlices, tell the gateway which
    service they belong to.

    Args:
        prefill_of: service that the engines compute prompts for; empty: their own.
    """
    name = service.metadata.name
    manifest = child("v1", "Service", service, child_names(name).engines)
    if prefill_of:
        manifest["metadata"]["labels"][PREFILL_OF_LABEL] = prefill_of
    return {
        **manifest,
        "spec": {
            "type": "ClusterIP",
            "clusterIP": "None",
            "selector": pod_labels(name),
            "ports": engine_ports(service),
        },
    }


def gateway_peer(settings: Settings) -> Manifest:
    """The gateway's pods, as a NetworkPolicyPeer."""
    return {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": settings.gateway_namespace}},
        "podSelector": {"matchLabels": GATEWAY_LABELS},
    }
