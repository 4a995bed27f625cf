"""Endpoints of the clusters (EDS)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.proxy.names import PICKED, Json, service_cluster
from inflight_gateway.types import Endpoint


def assignments(services: Iterable[ServiceKey], endpoints: Mapping[ServiceKey, Sequence[Endpoint]]) -> list[Json]:
    """One of each cluster with engines. A removed engine is not in it: its streams finish, new requests go elsewhere;
    override_host ignores an endpoint's health status."""
    keys = sorted(services)
    everywhere = {endpoint.address for key in keys for endpoint in endpoints.get(key, ())}
    by_service = [
        _assignment(service_cluster(key), {endpoint.address for endpoint in endpoints.get(key, ())}) for key in keys
    ]
    return [_assignment(PICKED, everywhere), *by_service]


def _assignment(cluster: str, addresses: Iterable[str]) -> Json:
    members = [{"endpoint": {"address": _address(address)}} for address in sorted(addresses)]
    return {"cluster_name": cluster, "endpoints": [{"lb_endpoints": members}] if members else []}


def _address(address: str) -> Json:
    """`IP:PORT` or `[IPv6]:PORT`."""
    host, _, port = address.rpartition(":")
    return {"socket_address": {"address": host.strip("[]"), "port_value": int(port)}}
