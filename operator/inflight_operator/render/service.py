"""The Services: for clients, http://NAME.NAMESPACE.svc, and for the gateway in front of the engines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inflight_base.manifest import Manifest
from inflight_base.manifest.names import GATEWAY_LABELS, HTTP_PORT_NAME, child_names, pod_labels
from inflight_operator.render.metadata import child
from inflight_operator.render.plan import Settings

if TYPE_CHECKING:
    from inflight_operator.api.types import InferenceService


SERVICE_PORT = 80


def cluster_service(service: InferenceService) -> Manifest:
    """A ClusterIP Service on port 80, so that the address needs no port."""
    name = service.metadata.name
    return {
        **child("v1", "Service", service),
        "spec": {
            "type": "ClusterIP",
            "selector": pod_labels(name),
            "ports": [service_port()],
        },
    }


def service_port() -> Manifest:
    """The port of every Service of the engines."""
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


def gateway_alias(service: InferenceService, settings: Settings) -> Manifest:
    """The Service of the service's name as an alias (CNAME) of the gateway's Service: clients keep the address, and the
    gateway sees in the Host header which service a request is for.

    The port has no effect on the DNS answer; it documents the port that clients use.
    """
    return {
        **child("v1", "Service", service),
        "spec": {"type": "ExternalName", "externalName": settings.gateway_service, "ports": [service_port()]},
    }


def engines_service(service: InferenceService) -> Manifest:
    """A headless Service over the engines. Its labels, which are copied to its EndpointSlices, tell the gateway which
    service they belong to."""
    name = service.metadata.name
    return {
        **child("v1", "Service", service, child_names(name).engines),
        "spec": {
            "type": "ClusterIP",
            "clusterIP": "None",
            "selector": pod_labels(name),
            "ports": [service_port()],
        },
    }


def gateway_peer(settings: Settings) -> Manifest:
    """The gateway's pods, as a NetworkPolicyPeer."""
    return {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": settings.gateway_namespace}},
        "podSelector": {"matchLabels": GATEWAY_LABELS},
    }
