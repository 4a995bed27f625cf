"""Endpoints of services from their EndpointSlices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from inflight_base.manifest import Manifest
from inflight_base.manifest.keys import ObjectKey, ServiceKey
from inflight_base.manifest.names import HTTP_PORT_NAME, SERVICE_LABEL, SLICE_OF_LABEL, child_names
from inflight_base.manifest.slices import address_of, endpoints
from inflight_gateway.types import Endpoint


def service_of(manifest: Manifest) -> ServiceKey | None:
    """Returns the InferenceService of the engines in the slice.

    None for slices of other Services with the label: the endpoints of a service behind the gateway are gateway pods.
    """
    labels = manifest["metadata"].get("labels") or {}
    name = labels.get(SERVICE_LABEL)
    if not name or labels.get(SLICE_OF_LABEL) != child_names(name).engines:
        return None
    return ServiceKey(manifest["metadata"]["namespace"], name)


def ready_endpoints(manifest: Manifest) -> tuple[Endpoint, ...]:
    """Returns the engines of a slice that accept new requests: ready, serving and not terminating."""
    port = _port(manifest.get("ports") or ())
    if port is None:
        return ()
    return tuple(
        Endpoint(address_of(one.ip, port), one.pod)
        for one in endpoints(manifest)
        if one.ready and one.serving and not one.terminating
    )


def all_addresses(manifest: Manifest, port: int, without_pod: str) -> set[str]:
    """Returns the address of every pod of a slice except one, ready or not, with `port` instead of the slice's."""
    return {address_of(one.ip, port) for one in endpoints(manifest) if one.pod != without_pod}


def _port(ports: Iterable[dict[str, Any]]) -> int | None:
    """Returns the port called `http`, else the only one."""
    numbers = {port.get("name") or "": port["port"] for port in ports if port.get("port")}
    if HTTP_PORT_NAME in numbers:
        return int(numbers[HTTP_PORT_NAME])
    return int(next(iter(numbers.values()))) if len(numbers) == 1 else None


class Slices:
    """Joins the slices of each service. A pod may be in several for a while, or in one for each address family."""

    def __init__(self) -> None:
        self._of_slice: dict[ObjectKey, tuple[ServiceKey, tuple[Endpoint, ...]]] = {}
        self._of_service: dict[ServiceKey, set[ObjectKey]] = defaultdict(set)

    def take(self, changes: Mapping[ObjectKey, Manifest | None]) -> dict[ServiceKey, tuple[Endpoint, ...]]:
        """Applies changes; returns the endpoints of every service that they touch."""
        touched: set[ServiceKey] = set()
        for key, manifest in changes.items():
            if key in self._of_slice:
                before, _ = self._of_slice.pop(key)
                self._of_service[before].discard(key)
                touched.add(before)
            service = None if manifest is None else service_of(manifest)
            if manifest is not None and service is not None:
                self._of_slice[key] = (service, ready_endpoints(manifest))
                self._of_service[service].add(key)
                touched.add(service)
        return {service: self._endpoints(service) for service in touched}

    def has(self, service: ServiceKey) -> bool:
        """Returns whether there is a slice of the service, with engines or without."""
        return bool(self._of_service.get(service))

    def _endpoints(self, service: ServiceKey) -> tuple[Endpoint, ...]:
        listed = [endpoint for key in sorted(self._of_service[service]) for endpoint in self._of_slice[key][1]]
        if not self._of_service[service]:
            del self._of_service[service]
        # IPv4 first: a pod with both families is one endpoint.
        listed.sort(key=lambda endpoint: endpoint.address.startswith("["))
        by_pod: dict[str, Endpoint] = {}
        for endpoint in listed:
            by_pod.setdefault(endpoint.pod or endpoint.address, endpoint)
        return tuple(by_pod.values())
