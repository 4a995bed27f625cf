"""Endpoints in EndpointSlices (discovery.k8s.io/v1)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GatewayAddress:
    """An address of a gateway pod. Attributes: ready: the pod takes new requests."""

    address: str
    ready: bool = True

    @property
    def family(self) -> str:
        """The addressType of its EndpointSlice."""
        return "IPv6" if ":" in self.address else "IPv4"
