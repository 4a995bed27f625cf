"""Envoy as gateways for the Gateway API Inference Extension configure it.

Its ext_proc cluster takes TLS without verification and sets the picker's Service as the authority, and requests go to
the address in the header that the picker sets (ORIGINAL_DST), as in Envoy AI Gateway and kgateway; Istio sets no
authority, so Envoy takes the name of its cluster, and uses the address in the metadata (override_host).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DESTINATION = "x-gateway-destination-endpoint"
PICKED = "x-picked"
"""Header of responses: the engines that the picker has named."""
TYPE = "type.googleapis.com/envoy.extensions."
HTTP2 = {
    "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
        "@type": f"{TYPE}upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": {"http2_protocol_options": {}},
    }
}
TLS = {
    "name": "envoy.transport_sockets.tls",
    "typed_config": {
        "@type": f"{TYPE}transport_sockets.tls.v3.UpstreamTlsContext",
        "common_tls_context": {"validation_context": {}},
    },
}
BY_HEADER = {
    "type": "ORIGINAL_DST",
    "lb_policy": "CLUSTER_PROVIDED",
    "original_dst_lb_config": {"use_http_header": True, "http_header_name": DESTINATION},
}


def socket(host: str, port: int | str) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": int(port)}}


def bootstrap(
    port: int, picker: str, engines: Mapping[str, Any], *, name: str, authority: str, mode: str
) -> dict[str, Any]:
    """Envoy's bootstrap file.

    Args:
        port: for clients, on loopback.
        picker: `HOST:PORT`.
        engines: their cluster, without its name.
        name: of the picker's cluster.
        mode: of bodies.
    """
    call = {"cluster_name": name, **({"authority": authority} if authority else {})}
    processor = {
        "@type": f"{TYPE}filters.http.ext_proc.v3.ExternalProcessor",
        "grpc_service": {"envoy_grpc": call},
        "processing_mode": {
            "request_header_mode": "SEND",
            "request_body_mode": mode,
            "response_header_mode": "SEND",
            "response_body_mode": mode if mode == "FULL_DUPLEX_STREAMED" else "NONE",
            "request_trailer_mode": "SEND",
            "response_trailer_mode": "SEND",
        },
        "message_timeout": "10s",
        "metadata_options": {"receiving_namespaces": {"untyped": ["envoy.lb"]}},
    }
    filters = [
        {"name": "envoy.filters.http.ext_proc", "typed_config": processor},
        {"name": "envoy.filters.http.router", "typed_config": {"@type": f"{TYPE}filters.http.router.v3.Router"}},
    ]
    manager = {
        "@type": f"{TYPE}filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "other",
        "http_filters": filters,
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "any",
                    "domains": ["*"],
                    "response_headers_to_add": [{"header": {"key": PICKED, "value": f"%REQ({DESTINATION})%"}}],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "engines", "timeout": "0s"}}],
                }
            ]
        },
    }
    picker_cluster = {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "5s",
        "transport_socket": TLS,
        "typed_extension_protocol_options": HTTP2,
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": socket(*picker.rsplit(":", 1))}}]}],
        },
    }
    listener = {
        "name": "clients",
        "address": socket("127.0.0.1", port),
        "filter_chains": [
            {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
        ],
    }
    return {"static_resources": {"listeners": [listener], "clusters": [picker_cluster, {"name": "engines", **engines}]}}
