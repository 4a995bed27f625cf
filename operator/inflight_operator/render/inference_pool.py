"""The service as a backend of other gateways: an InferencePool of the Gateway API Inference Extension, where the
cluster has its API.

The pool refers to its endpoint picker by a Service of its own namespace that must not be an ExternalName
(inference.networking.k8s.io/v1, EndpointPickerRef). The picker runs in the gateway's pods, in another namespace, so the
Service has no selector, and the operator writes its EndpointSlice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from inflight_base.manifest import Manifest
from inflight_base.manifest.keys import ServiceKey
from inflight_base.manifest.names import ENGINE_PORT, child_names, pod_labels, pool_port
from inflight_base.manifest.slices import GatewayAddress
from inflight_operator.render.metadata import child
from inflight_operator.render.plan import Settings
from inflight_operator.render.service import behind_gateway

if TYPE_CHECKING:
    from inflight_operator.api.types import InferenceService

INFERENCE_POOL_API = "inference.networking.k8s.io/v1/InferencePool"

PICKER_PORT = 9002
"""Port of the picker's Service: the default port of endpoint pickers."""

PICKER_PORT_NAME = "grpc-ext-proc"

SLICE_MANAGER = "inflight-operator"
"""Value of the label managed-by of the operator's EndpointSlices: a controller of Kubernetes with that name would
delete them."""

_FAMILIES = ("IPv4", "IPv6")


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
            "targetPorts": [{"number": ENGINE_PORT}],
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
    """The endpoints of the picker's Service, a slice for each address family of the gateway's pods."""
    return [
        _slice(service, name, family, of_family)
        for name, family in zip(slice_names(service.metadata.name), _FAMILIES, strict=True)
        if (of_family := [pod for pod in pods if pod.family == family])
    ]


def slice_names(name: str) -> tuple[str, ...]:
    """Names of the EndpointSlices of the picker of the service called `name`."""
    return tuple(f"{child_names(name).picker}-{family.lower()}" for family in _FAMILIES)


def pool_children(name: str) -> frozenset[tuple[str, str]]:
    """Kinds and names of all children that belong to the pool of the service called `name`."""
    names = child_names(name)
    slices = (("EndpointSlice", one) for one in slice_names(name))
    return frozenset({("InferencePool", names.main), ("Service", names.picker), *slices})


def _slice(service: InferenceService, slice_name: str, family: str, pods: Sequence[GatewayAddress]) -> Manifest:
    names = child_names(service.metadata.name)
    manifest = child("discovery.k8s.io/v1", "EndpointSlice", service, slice_name)
    manifest["metadata"]["labels"] |= {
        "kubernetes.io/service-name": names.picker,
        "endpointslice.kubernetes.io/managed-by": SLICE_MANAGER,
    }
    return {
        **manifest,
        "addressType": family,
        "ports": [
            {
                "name": PICKER_PORT_NAME,
                "port": pool_port(ServiceKey(service.metadata.namespace, service.metadata.name)),
                "protocol": "TCP",
            }
        ],
        "endpoints": [
            {"addresses": [pod.address], "conditions": {"ready": pod.ready}}
            for pod in sorted(pods, key=lambda pod: pod.address)
        ],
    }
