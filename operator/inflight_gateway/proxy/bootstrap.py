"""Envoy's bootstrap: the address of its picker, which configures everything else."""

from __future__ import annotations

from inflight_gateway.proxy.names import PICKER, UNLIMITED, Json, pipe, typed
from inflight_gateway.proxy.overload import overload_manager
from inflight_gateway.settings import Sockets

_ADS: Json = {"ads": {}, "resource_api_version": "V3"}


def bootstrap(sockets: Sockets, node: str, memory: int) -> Json:
    """The file for `envoy -c`.

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
    """Envoy's default back-off grows to 30 s: for that time a new picker could not configure Envoy."""
    back_off = {"base_interval": "0.1s", "max_interval": "1s"}
    return {"envoy_grpc": {"cluster_name": PICKER, "retry_policy": {"retry_back_off": back_off}}}


def _picker_cluster(sockets: Sockets) -> Json:
    return {
        "name": PICKER,
        "type": "STATIC",
        "connect_timeout": "1s",
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": typed(
                "envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                explicit_http_config={"http2_protocol_options": {}},
            )
        },
        # One stream stays open for each request in flight.
        "circuit_breakers": {
            "thresholds": [{"max_connections": UNLIMITED, "max_pending_requests": UNLIMITED, "max_requests": UNLIMITED}]
        },
        "load_assignment": {
            "cluster_name": PICKER,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": pipe(sockets.picker)}}]}],
        },
    }
