"""The Service for clients: http://NAME.NAMESPACE.svc."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inflight_base.manifest import Manifest
from inflight_base.manifest.names import HTTP_PORT_NAME, child_names, pod_labels
from inflight_operator.render.metadata import child_metadata

if TYPE_CHECKING:
    from inflight_operator.api.types import InferenceService

SERVICE_PORT = 80


def cluster_service(service: InferenceService) -> Manifest:
    """A ClusterIP Service on port 80, so that the address needs no port."""
    name = service.metadata.name
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": child_metadata(service, child_names(name).main),
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
