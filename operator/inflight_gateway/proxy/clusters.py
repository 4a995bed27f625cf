"""Clusters: the relays, all engines for the picker's choice, and the engines of each service; and their
endpoints (EDS)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.proxy.names import PICKED, RELAYS, UNLIMITED, Json, extension, http_options, pipe, service_cluster
from inflight_gateway.request.headers import DESTINATION
from inflight_gateway.settings import Sockets
from inflight_gateway.types import Endpoint


def _policy(name: str, message: str, **fields: Any) -> Json:
    path = f"load_balancing_policies.{name}"
    return {"policies": [{"typed_extension_config": extension(path, f"{path}.v3.{message}", **fields)}]}


# All engines of a service are compared: there are few, and requests are long.
_LEAST_REQUEST = _policy("least_request", "LeastRequest", selection_method="FULL_SCAN")

_NO_ENDPOINT = _policy(
    "subset",
    "Subset",
    fallback_policy="NO_FALLBACK",
    subset_selectors=[{"keys": ["no-endpoint-has-this-key"]}],
    subset_lb_policy=_LEAST_REQUEST,
)
"""Policy that never finds an endpoint. With any other fallback, override_host sends a request with a wrong, empty or
exhausted list to an engine of any service, silently."""


def picked() -> Json:
    """Returns the cluster that uses the endpoints of the header DESTINATION in order, one for each attempt."""
    sources = [{"header": DESTINATION}]
    policy = _policy("override_host", "OverrideHost", override_host_sources=sources, fallback_policy=_NO_ENDPOINT)
    return _engines(PICKED, policy)


def service(key: ServiceKey) -> Json:
    """Returns the cluster of one service, in which Envoy chooses an engine by least requests."""
    return _engines(service_cluster(key), _LEAST_REQUEST)


def relays(sockets: Sockets, count: int) -> Json:
    """Returns the cluster of the relays, with the inner listener as a fallback while no relay accepts connections."""
    by_priority = [
        [{"endpoint": {"address": pipe(sockets.relay(index))}} for index in range(count)],
        [{"endpoint": {"address": pipe(sockets.inner), "health_check_config": {"disable_active_health_check": True}}}],
    ]
    return {
        "name": RELAYS,
        "type": "STATIC",
        "connect_timeout": "1s",
        "load_balancing_policy": _LEAST_REQUEST,
        # 0: dead relays are skipped even if all are dead.
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
        "health_checks": [
            {
                "timeout": "1s",
                "interval": "1s",
                "no_traffic_interval": "1s",
                "unhealthy_interval": "0.2s",
                "unhealthy_threshold": 1,
                "healthy_threshold": 1,
                "tcp_health_check": {},
            }
        ],
        "circuit_breakers": _circuit_breakers(),
        **_http1(),
        "load_assignment": {
            "cluster_name": RELAYS,
            "endpoints": [
                {"priority": priority, "lb_endpoints": endpoints}
                for priority, endpoints in enumerate(group for group in by_priority if group)
            ],
        },
    }


def _engines(name: str, policy: Json) -> Json:
    return {
        "name": name,
        "type": "EDS",
        "eds_cluster_config": {"service_name": name, "eds_config": {"ads": {}, "resource_api_version": "V3"}},
        "connect_timeout": "1s",
        "load_balancing_policy": policy,
        "circuit_breakers": _circuit_breakers(),
        **_http1(),
    }


def _http1() -> Json:
    """Returns options that close idle connections first: engines close them after 120 s, relays after 75 s, which could
    abort a request in transit."""
    return http_options(
        common_http_protocol_options={"idle_timeout": "60s"}, explicit_http_config={"http_protocol_options": {}}
    )


def _circuit_breakers() -> Json:
    """Returns thresholds that bound retries to a share of the requests, so that an outage is not amplified."""
    return {
        "thresholds": [
            {
                "max_connections": UNLIMITED,
                "max_pending_requests": UNLIMITED,
                "max_requests": UNLIMITED,
                "retry_budget": {"budget_percent": {"value": 25}, "min_retry_concurrency": 64},
            }
        ]
    }


def assignments(services: Iterable[ServiceKey], endpoints: Mapping[ServiceKey, Sequence[Endpoint]]) -> list[Json]:
    """Returns the endpoints of each cluster with engines. A removed engine is left out: its streams finish, new
    requests go elsewhere; override_host ignores an endpoint's health status."""
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
    """Returns the address of an endpoint. Args: address: `IP:PORT` or `[IPv6]:PORT`."""
    host, _, port = address.rpartition(":")
    return {"socket_address": {"address": host.strip("[]"), "port_value": int(port)}}
