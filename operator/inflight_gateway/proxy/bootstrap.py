"""Envoy's bootstrap: the address of its picker, which configures everything else, and the bounds of its memory.

Envoy refuses requests before its container reaches its memory limit:
https://www.envoyproxy.io/docs/envoy/latest/configuration/operations/overload_manager/overload_manager
"""

from __future__ import annotations

from inflight_gateway.proxy.names import PICKER, UNLIMITED, Json, extension, http_options, pipe
from inflight_gateway.settings import Sockets

_ADS: Json = {"ads": {}, "resource_api_version": "V3"}

SHRINK_SHARE, REFUSE_SHARE, CLOSE_SHARE = 0.7, 0.8, 0.9
"""Shares of the memory limit in use by Envoy's heap, from which free memory is returned to the system; new requests get
status 503 (requests of relays too, which pass it on at the first attempt, and wait and retry at later ones); new
connections are not accepted."""

MAX_CONNECTIONS = 10_000
"""Most connections of clients. A request in flight takes about 100 KiB of Envoy's memory besides its body."""


def bootstrap(sockets: Sockets, node: str, memory: int) -> Json:
    """Returns the content of the file for `envoy -c`.

    Args:
        node: name of this Envoy in the picker's log: its pod.
        memory: bytes that Envoy may use.
    """
    return {
        "node": {"id": node, "cluster": "inflight-gateway"},
        # A socket file, not a port: nothing outside the pod can reach the admin interface, regardless of routes.
        "admin": {"address": pipe(sockets.admin)},
        "dynamic_resources": {
            "ads_config": {
                "api_type": "GRPC",
                "transport_api_version": "V3",
                "grpc_services": [_picker_service()],
            },
            "lds_config": _ADS,
            "cds_config": _ADS,
        },
        "static_resources": {"clusters": [_picker_cluster(sockets)]},
        "overload_manager": overload_manager(memory),
    }


def _picker_service() -> Json:
    """Returns how Envoy calls the picker. Its default back-off grows to 30 s: for that time a new picker could not
    configure Envoy."""
    back_off = {"base_interval": "0.1s", "max_interval": "1s"}
    return {"envoy_grpc": {"cluster_name": PICKER, "retry_policy": {"retry_back_off": back_off}}}


def _picker_cluster(sockets: Sockets) -> Json:
    return {
        "name": PICKER,
        "type": "STATIC",
        "connect_timeout": "1s",
        **http_options(explicit_http_config={"http2_protocol_options": {}}),
        # One stream stays open for each request in flight.
        "circuit_breakers": {
            "thresholds": [{"max_connections": UNLIMITED, "max_pending_requests": UNLIMITED, "max_requests": UNLIMITED}]
        },
        "load_assignment": {
            "cluster_name": PICKER,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": pipe(sockets.picker)}}]}],
        },
    }


def overload_manager(memory: int) -> Json:
    """Returns the bounds of Envoy's memory. Args: memory: bytes that its container may use."""
    return {
        # Bodies come in at gigabytes a second at most: the default of 1 s is too long.
        "refresh_interval": "0.1s",
        "resource_monitors": [
            extension(
                "resource_monitors.fixed_heap",
                "resource_monitors.fixed_heap.v3.FixedHeapConfig",
                max_heap_size_bytes=str(memory),
            ),
            extension(
                "resource_monitors.global_downstream_max_connections",
                "resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
                max_active_downstream_connections=str(MAX_CONNECTIONS),
            ),
        ],
        "actions": [
            _action("shrink_heap", SHRINK_SHARE),
            _action("stop_accepting_requests", REFUSE_SHARE),
            _action("stop_accepting_connections", CLOSE_SHARE),
        ],
    }


def _action(name: str, share: float) -> Json:
    trigger = {"name": "envoy.resource_monitors.fixed_heap", "threshold": {"value": share}}
    return {"name": f"envoy.overload_actions.{name}", "triggers": [trigger]}
