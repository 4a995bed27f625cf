"""The Service for clients: http://NAME.NAMESPACE.svc."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inflight_operator.render.labels import child_metadata, child_names, pod_labels
from inflight_operator.render.plan import Manifest

if TYPE_CHECKING:
    from inflight_operator.api.types import InferenceService

PORT_NAME = "http"
ADMIN_PORT_NAME = "admin"
"""Of the pod only: no Service leads to the admin port."""

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
        "name": PORT_NAME,
        "port": SERVICE_PORT,
        "targetPort": PORT_NAME,
        "protocol": "TCP",
        "appProtocol": "http",
    }
