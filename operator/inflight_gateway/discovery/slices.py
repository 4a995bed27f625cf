"""Endpoints of services from their EndpointSlices."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from ipaddress import IPv6Address, ip_address
from typing import Any

from inflight_base.manifest import Manifest
from inflight_base.manifest.keys import ObjectKey, ServiceKey
from inflight_base.manifest.names import (
    HTTP_PORT_NAME,
    PREFILL_OF_LABEL,
    SERVICE_LABEL,
    SLICE_CONTROLLER,
    SLICE_MANAGER_LABEL,
    SLICE_OF_LABEL,
    child_names,
)
from inflight_base.manifest.slices import address_of, endpoints
from inflight_gateway.types import Endpoint, GatewayPod

logger = logging.getLogger(__name__)

_VERSIONS = {"IPv4": 4, "IPv6": 6}

_METADATA_SERVICES = frozenset(map(ip_address, ("fd00:ec2::254", "fd20:ce::254", "168.63.129.16", "100.100.100.200")))
"""Addresses of clouds' metadata services that are not link-local: Amazon's, Google's, Azure's and Alibaba's."""


def service_of(manifest: Manifest) -> ServiceKey | None:
    """Returns the InferenceService that the engines in the slice answer for, or compute prompts for.

    None for slices of other Services with the label: the endpoints of a service behind the gateway are gateway pods.
    """
    labels = manifest["metadata"].get("labels") or {}
    name = labels.get(SERVICE_LABEL)
    if not name or labels.get(SLICE_OF_LABEL) != child_names(name).engines:
        return None
    if of_prefill_set(manifest) and name != child_names(labels[PREFILL_OF_LABEL]).prefill:
        return None
    return ServiceKey(manifest["metadata"]["namespace"], labels.get(PREFILL_OF_LABEL, name))


def of_prefill_set(manifest: Manifest) -> bool:
    """Returns whether the engines in the slice compute prompts for those of another service."""
    return PREFILL_OF_LABEL in (manifest["metadata"].get("labels") or {})


def fault(manifest: Manifest) -> str:
    """Returns why a slice of engines is ignored; empty: it is not.

    Kubernetes' own controller makes these slices, so another maker, owner or kind of address is a mistake or an attempt
    to have the gateway call another host.
    """
    metadata = manifest["metadata"]
    labels = metadata.get("labels") or {}
    service = labels.get(SLICE_OF_LABEL)
    owners = metadata.get("ownerReferences") or ()
    if manifest.get("addressType") not in _VERSIONS:
        return f"ignored: its addressType is {manifest.get('addressType')!r}, and engines have IP addresses"
    if labels.get(SLICE_MANAGER_LABEL) != SLICE_CONTROLLER:
        return (
            f"ignored: its label {SLICE_MANAGER_LABEL} is {labels.get(SLICE_MANAGER_LABEL)!r}, not {SLICE_CONTROLLER!r}"
        )
    if not any(one.get("kind") == "Service" and one.get("name") == service for one in owners):
        return f"ignored: it has no owner reference to Service {service}"
    return ""


def wrong_addresses(manifest: Manifest) -> str:
    """Returns which addresses of a slice are ignored, as text; empty: none."""
    wrong = [one.ip for one in endpoints(manifest) if not _of_pod(manifest, one.ip)]
    return f"ignored addresses that are not of pods: {len(wrong)}, such as {wrong[0][:50]!r}" if wrong else ""


def ready_endpoints(manifest: Manifest) -> tuple[Endpoint, ...]:
    """Returns the engines of a slice that accept new requests: ready, serving and not terminating."""
    port = _port(manifest.get("ports") or ())
    if port is None:
        return ()
    prefill = of_prefill_set(manifest)
    return tuple(
        Endpoint(address_of(one.ip, port), one.pod, prefill)
        for one in endpoints(manifest)
        if one.ready and one.serving and not one.terminating and _of_pod(manifest, one.ip)
    )


def gateway_pods(manifests: Iterable[Manifest], port: int) -> tuple[GatewayPod, ...]:
    """Returns the ready pods in slices of the gateway's Service, by name. Args: port: in place of that of the slices.

    The Service publishes addresses that are not ready, so that `serving` alone says whether a pod is.
    """
    # IPv4 first: a pod may have addresses of both families.
    listed = sorted(manifests, key=lambda one: one.get("addressType") == "IPv6")
    found: dict[str, GatewayPod] = {}
    for manifest in listed:
        for one in endpoints(manifest):
            if one.pod and one.serving and not one.terminating and _of_pod(manifest, one.ip):
                found.setdefault(one.pod, GatewayPod(one.pod, address_of(one.ip, port)))
    return tuple(found[name] for name in sorted(found))


def _of_pod(manifest: Manifest, ip: str) -> bool:
    """Returns whether an address is of its slice's type, and may be a pod's: no loopback, link-local (the metadata
    services of clouds), multicast or reserved address, and no IPv6 address that stands for one of IPv4."""
    try:
        address = ip_address(ip)
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and (address.scope_id or address.sixtofour or address.teredo):
        return False
    return address.version == _VERSIONS.get(manifest.get("addressType", "")) and not (
        address.is_loopback
        or address.is_link_local
        or address.is_multicast
        or address.is_unspecified
        or address.is_reserved
        or address in _METADATA_SERVICES
    )


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
        self._faults: dict[ObjectKey, str] = {}
        """Faults that were logged, by slice."""

    def take(self, changes: Mapping[ObjectKey, Manifest | None]) -> dict[ServiceKey, tuple[Endpoint, ...]]:
        """Applies changes; returns the endpoints of every service that they touch."""
        touched: set[ServiceKey] = set()
        for key, manifest in changes.items():
            if key in self._of_slice:
                before, _ = self._of_slice.pop(key)
                self._of_service[before].discard(key)
                touched.add(before)
            service = None if manifest is None else service_of(manifest)
            why = ""
            if manifest is not None and service is not None:
                why = fault(manifest)
                service = None if why else service
                why = why or wrong_addresses(manifest)
            self._log(key, why)
            if manifest is not None and service is not None:
                self._of_slice[key] = (service, ready_endpoints(manifest))
                self._of_service[service].add(key)
                touched.add(service)
        return {service: self._endpoints(service) for service in touched}

    def has(self, service: ServiceKey) -> bool:
        """Returns whether there is a slice of the service, with engines or without."""
        return bool(self._of_service.get(service))

    def _log(self, key: ObjectKey, why: str) -> None:
        """Logs the fault of a slice once, until it has another."""
        if why and self._faults.get(key) != why:
            logger.warning("EndpointSlice %s/%s: %s", *key, why)
        self._faults.pop(key, None)
        if why:
            self._faults[key] = why

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
