"""Envoy's whole configuration: listeners for clients, limits, and the relays."""

from __future__ import annotations

from pathlib import Path

from inflight_gateway.proxy.cors import cors, policy
from inflight_gateway.proxy.jwt import jwks_cluster, jwt_filter
from inflight_gateway.proxy.overload import BUFFER_BYTES, HTTP2, RUNTIME, overload_manager
from inflight_gateway.proxy.rate_limit import rate_limit
from inflight_gateway.proxy.relays import LONGEST_SILENCE, cluster, routes
from inflight_gateway.proxy.replies import replies
from inflight_gateway.proxy.resources import Json, extension, pipe, typed
from inflight_gateway.proxy.tls import tls
from inflight_gateway.request.headers import DESTINATION
from inflight_gateway.settings import EnvoySettings, any_address

CLIENTS = "clients"
"""Prefix of the statistics of clients' requests, on both ports."""

_INTERNAL_PREFIXES = ("x-inflight-", "x-envoy-", DESTINATION)
"""Prefixes of request headers that only the parts of the gateway may set. Envoy obeys its own headers, also of clients
whose address looks like one of its own network."""


def configuration(settings: EnvoySettings, secret: Path) -> Json:
    """Returns the content of the file for `envoy -c`. Args: secret: file of the certificate, where TLS is on."""
    jwt = settings.jwt
    fetched = [jwks_cluster(jwt)] if jwt is not None and jwt.jwks_file is None else []
    return {
        "node": {"id": "gateway", "cluster": "inflight-gateway"},
        # A socket file, not a port: nothing outside the pod can reach the admin interface.
        "admin": {"address": pipe(settings.sockets.admin)},
        "layered_runtime": RUNTIME,
        "overload_manager": overload_manager(settings.memory),
        "static_resources": {
            "listeners": _listeners(settings, secret),
            "clusters": [cluster(settings.sockets, settings.relays), *fetched],
        },
    }


def _listeners(settings: EnvoySettings, secret: Path) -> list[Json]:
    chain = {"filters": [_http(settings)]}
    listeners = [_listener("http", settings.port, chain)] if settings.port else []
    if settings.tls_dir is not None:
        slow = {"transport_socket_connect_timeout": "10s"}
        listeners.append(_listener("https", settings.tls_port, {**chain, "transport_socket": tls(secret), **slow}))
    return listeners


def _listener(name: str, port: int, chain: Json) -> Json:
    """Returns a TCP listener; `::` takes IPv4 connections too."""
    address = any_address()
    return {
        "name": name,
        "address": {"socket_address": {"address": address, "port_value": port, "ipv4_compat": address == "::"}},
        # Drained at graceful shutdown.
        "traffic_direction": "INBOUND",
        "per_connection_buffer_limit_bytes": BUFFER_BYTES,
        "filter_chains": [chain],
    }


def _http(settings: EnvoySettings) -> Json:
    """Returns the handling of HTTP. It removes from requests all headers that only the gateway's parts may set."""
    removed = [{"remove_on_match": {"key_matcher": {"prefix": prefix}}} for prefix in _INTERNAL_PREFIXES]
    limit, jwt, origins = settings.requests_per_second, settings.jwt, settings.allowed_origins
    return extension(
        "filters.network.http_connection_manager",
        "filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix=CLIENTS,
        use_remote_address=True,
        normalize_path=True,
        merge_slashes=True,
        strip_trailing_host_dot=True,
        generate_request_id=True,
        preserve_external_request_id=True,
        always_set_request_id_in_response=True,
        request_id_extension={
            "typed_config": typed("envoy.extensions.request_id.uuid.v3.UuidRequestIdConfig", pack_trace_reason=False)
        },
        server_header_transformation="PASS_THROUGH",
        # A connection whose request is held or answered is not idle.
        common_http_protocol_options={
            "idle_timeout": f"{settings.idle_s:g}s",
            # Clients that keep a connection for days find new pods, and a service that left the gateway.
            "max_connection_duration": "300s",
            "max_headers_count": 100,
            "headers_with_underscores_action": "DROP_HEADER",
        },
        # From the first to the last GOAWAY: requests that are under way to Envoy meanwhile are served.
        drain_timeout="1s",
        max_request_headers_kb=60,
        http1_safe_max_connection_duration=True,
        http2_protocol_options=HTTP2,
        request_headers_timeout="30s",
        # The relay buffers whole bodies in memory.
        request_timeout="300s",
        stream_idle_timeout=LONGEST_SILENCE,
        # A client that does not read the end of its answer.
        stream_flush_timeout="60s",
        local_reply_config=replies(),
        early_header_mutation_extensions=[
            extension(
                "http.early_header_mutation.header_mutation",
                "http.early_header_mutation.header_mutation.v3.HeaderMutation",
                mutations=removed,
            )
        ],
        route_config=routes(policy(origins) if origins else {}),
        http_filters=[
            *([cors()] if origins else []),
            *([rate_limit(limit)] if limit else []),
            *([jwt_filter(jwt)] if jwt is not None else []),
            extension("filters.http.router", "filters.http.router.v3.Router", suppress_envoy_headers=True),
        ],
    )
