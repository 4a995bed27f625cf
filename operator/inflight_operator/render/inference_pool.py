"""The service as a backend of other gateways: an InferencePool of the Gateway API Inference Extension, where the
cluster has its API.

The pool refers to its endpoint picker by a Service of its own namespace that must not be an ExternalName
(inference.networking.k8s.io/v1, EndpointPickerRef). The picker runs in the gateway's pods, in another namespace, so the
Service has no selector, and the operator writes its EndpointSlices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from inflight_base.manifest import Manifest
from inflight_base.manifest.keys import ServiceKey
from inflight_base.manifest.names import child_names, pod_labels, pool_port
from inflight_base.manifest.slices import GatewayAddress
from inflight_operator.api.resolve import engine_type
from inflight_operator.api.types import InferenceService
from inflight_operator.render.gateway_slices import gateway_slices, slice_names
from inflight_operator.render.metadata import child
from inflight_operator.render.plan import Settings
from inflight_operator.render.service import behind_gateway

INFERENCE_POOL_API = "inference.networking.k8s.io/v1/InferencePool"

PICKER_PORT = 9002
"""Port of the picker's Service: the default port of endpoint pickers."""

PICKER_PORT_NAME = "grpc-ext-proc"


def has_inference_pool(service: InferenceService, settings: Settings) -> bool:
    """Returns True if other gateways may use the service: it enables that, its gateway serves them, and the API
    exists."""
    return (
        service.spec.gateway.inference_pool.enabled
        and behind_gateway(service, settings)
        and settings.endpoint_picker
        and INFERENCE_POOL_API in settings.available_apis
    )


def inference_pool(service: InferenceService) -> Manifest:
    """The pool. If the picker does not answer, gateways choose an engine themselves, unless the picker checks keys."""
    name = service.metadata.name
    return {
        **child("inference.networking.k8s.io/v1", "InferencePool", service),
        "spec": {
            "selector": {"matchLabels": pod_labels(name)},
            "targetPorts": [{"number": engine_type(service.spec).port}],
            "endpointPickerRef": {
                "group": "",
                "kind": "Service",
                "name": child_names(name).picker,
                "port": {"number": PICKER_PORT},
                "failureMode": "FailOpen" if service.spec.gateway.auth is None else "FailClose",
            },
        },
    }


def picker_service(service: InferenceService) -> Manifest:
    """The Service of the pool's endpoint picker. Without a selector: `picker_slices` are its endpoints."""
    metadata = service.metadata
    return {
        **child("v1", "Service", service, child_names(metadata.name).picker),
        "spec": {
            "type": "ClusterIP",
            "ports": [
                {
                    "name": PICKER_PORT_NAME,
                    "port": PICKER_PORT,
                    "targetPort": pool_port(ServiceKey(metadata.namespace, metadata.name)),
                    "protocol": "TCP",
                }
            ],
        },
    }


def picker_slices(service: InferenceService, pods: Sequence[GatewayAddress]) -> list[Manifest]:
    """The endpoints of the picker's Service: its own port of each of the gateway's pods."""
    metadata = service.metadata
    port, name = pool_port(ServiceKey(metadata.namespace, metadata.name)), child_names(metadata.name).picker
    return gateway_slices(service, name, name, PICKER_PORT_NAME, [replace(pod, port=port) for pod in pods])


def pool_children(name: str) -> frozenset[tuple[str, str]]:
    """Kinds and names of all children that belong to the pool of the service called `name`."""
    names = child_names(name)
    slices = (("EndpointSlice", one) for one in slice_names(names.picker))
    return frozenset({("InferencePool", names.main), ("Service", names.picker), *slices})
