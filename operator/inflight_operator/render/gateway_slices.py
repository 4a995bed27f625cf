"""EndpointSlices of Services without endpoints of their own, whose requests the gateway's pods take.

The pods are in another namespace than the Service, so no selector of it finds them.
"""

from __future__ import annotations

from collections.abc import Sequence

from inflight_base.manifest import Manifest
from inflight_base.manifest.names import SLICE_MANAGER, SLICE_MANAGER_LABEL, SLICE_OF_LABEL
from inflight_base.manifest.slices import GatewayAddress
from inflight_operator.api.types import InferenceService
from inflight_operator.render.metadata import child

_FAMILIES = ("IPv4", "IPv6")


def slice_names(prefix: str) -> tuple[str, ...]:
    """Names of the slices, for IPv4 and IPv6."""
    return tuple(f"{prefix}-{family.lower()}" for family in _FAMILIES)


def gateway_slices(
    service: InferenceService, of: str, prefix: str, port_name: str, pods: Sequence[GatewayAddress]
) -> list[Manifest]:
    """The endpoints of a Service, a slice for each address family of the gateway's pods.

    Args:
        of: name of the Service.
        prefix: of the names of the slices.
        port_name: name of the Service's port.
        pods: the ready pods, with the port for this Service.
    """
    return [
        _slice(service, of, name, family, port_name, of_family)
        for name, family in zip(slice_names(prefix), _FAMILIES, strict=True)
        if (of_family := [pod for pod in pods if pod.family == family])
    ]


def _slice(
    service: InferenceService, of: str, name: str, family: str, port_name: str, pods: Sequence[GatewayAddress]
) -> Manifest:
    manifest = child("discovery.k8s.io/v1", "EndpointSlice", service, name)
    manifest["metadata"]["labels"] |= {SLICE_OF_LABEL: of, SLICE_MANAGER_LABEL: SLICE_MANAGER}
    return {
        **manifest,
        "addressType": family,
        "ports": [{"name": port_name, "port": pods[0].port, "protocol": "TCP"}],
        "endpoints": [
            {"addresses": [pod.address], "conditions": {"ready": True}}
            for pod in sorted(pods, key=lambda pod: pod.address)
        ],
    }
