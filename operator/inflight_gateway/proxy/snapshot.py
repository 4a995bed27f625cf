"""Envoy's whole configuration as one immutable value: resources by type and name, with a version for each type."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

# Registers the types that `Any` fields name; json_format finds them by name.
from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.endpoint.v3 import endpoint_pb2
from envoy.config.listener.v3 import listener_pb2
from envoy.config.route.v3 import route_pb2
from envoy.extensions.access_loggers.filters.cel.v3 import cel_pb2  # noqa: F401
from envoy.extensions.filters.http.ext_proc.v3 import ext_proc_pb2  # noqa: F401
from envoy.extensions.filters.http.router.v3 import router_pb2  # noqa: F401
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2  # noqa: F401
from envoy.extensions.http.early_header_mutation.header_mutation.v3 import header_mutation_pb2  # noqa: F401
from envoy.extensions.load_balancing_policies.least_request.v3 import least_request_pb2  # noqa: F401
from envoy.extensions.load_balancing_policies.override_host.v3 import override_host_pb2  # noqa: F401
from envoy.extensions.load_balancing_policies.subset.v3 import subset_pb2  # noqa: F401
from envoy.extensions.request_id.uuid.v3 import uuid_pb2  # noqa: F401
from envoy.extensions.retry.host.previous_hosts.v3 import previous_hosts_pb2  # noqa: F401
from envoy.extensions.retry.priority.previous_priorities.v3 import previous_priorities_config_pb2  # noqa: F401
from envoy.extensions.upstreams.http.v3 import http_protocol_options_pb2  # noqa: F401
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.json_format import ParseDict

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.proxy import clusters, listeners, routes
from inflight_gateway.proxy.names import TYPE, Json
from inflight_gateway.settings import Sockets
from inflight_gateway.types import Endpoint, ServiceConfig

CLUSTERS = TYPE + "envoy.config.cluster.v3.Cluster"
ENDPOINTS = TYPE + "envoy.config.endpoint.v3.ClusterLoadAssignment"
LISTENERS = TYPE + "envoy.config.listener.v3.Listener"
ROUTES = TYPE + "envoy.config.route.v3.RouteConfiguration"

ORDER = (CLUSTERS, ENDPOINTS, LISTENERS, ROUTES)
"""Order in which types are sent: referenced resources come before those that refer to them."""

_MESSAGES = {
    CLUSTERS: (cluster_pb2.Cluster, "name"),
    ENDPOINTS: (endpoint_pb2.ClusterLoadAssignment, "cluster_name"),
    LISTENERS: (listener_pb2.Listener, "name"),
    ROUTES: (route_pb2.RouteConfiguration, "name"),
}


@dataclass(frozen=True, slots=True, eq=False)
class Resources:
    """All resources of one type. Attributes: version: the same for the same content, also in another picker process."""

    version: str
    by_name: Mapping[str, AnyMessage]


Snapshot = Mapping[str, Resources]
"""Envoy's configuration: resources by type URL."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """Settings that do not change while a picker runs. Attributes: address, port: address of the outer listener.
    relays: number of relay processes."""

    sockets: Sockets
    address: str
    port: int
    relays: int


def snapshot(
    fixed: Fixed,
    services: Mapping[ServiceKey, ServiceConfig],
    hosts: Mapping[ServiceKey, Iterable[str]],
    engines: Mapping[ServiceKey, Sequence[Endpoint]],
) -> Snapshot:
    """Builds the configuration. Args: hosts: names of each service, without ports. engines: endpoints by service."""
    return MappingProxyType(
        {
            CLUSTERS: resources(
                CLUSTERS,
                [
                    clusters.relays(fixed.sockets, fixed.relays),
                    clusters.picked(),
                    *(clusters.service(key) for key in sorted(services)),
                ],
            ),
            ENDPOINTS: engine_endpoints(services, engines),
            LISTENERS: resources(
                LISTENERS, [listeners.outer(fixed.address, fixed.port), listeners.inner(fixed.sockets)]
            ),
            ROUTES: resources(ROUTES, [routes.inner_routes((services[key], hosts[key]) for key in services)]),
        }
    )


def engine_endpoints(services: Iterable[ServiceKey], engines: Mapping[ServiceKey, Sequence[Endpoint]]) -> Resources:
    """Returns the resources that depend on endpoints."""
    return resources(ENDPOINTS, clusters.assignments(services, engines))


def resources(type_url: str, items: Iterable[Json]) -> Resources:
    """Parses and packs resources. Args: items: resources as JSON.

    Raises:
        google.protobuf.json_format.ParseError: an item is not of the type.
    """
    message, name = _MESSAGES[type_url]
    by_name, digest = {}, hashlib.blake2b(digest_size=8)
    for item in items:
        parsed = ParseDict(item, message())
        packed = AnyMessage(type_url=type_url, value=parsed.SerializeToString(deterministic=True))
        by_name[str(getattr(parsed, name))] = packed
        digest.update(packed.value)
    return Resources(digest.hexdigest(), MappingProxyType(by_name))
