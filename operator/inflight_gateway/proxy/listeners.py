"""Listeners: the outer one for clients, the inner one for relays."""

from __future__ import annotations

from typing import Any

from inflight_gateway.proxy.errors import inner_replies, outer_replies
from inflight_gateway.proxy.names import (
    INNER,
    LONGEST_MESSAGE_TIMEOUT_S,
    LONGEST_SILENCE,
    METADATA,
    OUTER,
    PICKER,
    RELAYS,
    Json,
    extension,
    pipe,
    typed,
)
from inflight_gateway.request.headers import (
    DESTINATION,
    ENDPOINT,
    FIRST_TOKEN_WITHIN,
    FROM_RELAYS,
    MAX_ATTEMPTS,
    PROGRESS,
    REQUEST_ID,
    SERVICE,
    TRIES,
    UPSTREAM_FAILURE,
)
from inflight_gateway.settings import MAX_BODY_BYTES, Sockets
from inflight_gateway.tenants.signature import CREDENTIALS

_INTERNAL_PREFIXES = ("x-inflight-", "x-envoy-", DESTINATION)
"""Prefixes of request headers that only the parts of the gateway may set. Envoy obeys its own headers, also of clients
whose address looks like one of its own network."""

MAX_KEPT_BYTES = 2**20
"""Most bytes of a request's body that Envoy keeps for another relay until the first one answers; requests with more are
sent to one relay only. Relays keep whole bodies, and bound their sum."""

PROCESSING_MODE: Json = {
    "request_header_mode": "SEND",
    "request_body_mode": "NONE",
    "response_header_mode": "SKIP",
    "request_trailer_mode": "SKIP",
    "response_trailer_mode": "SEND",
}
"""The picker asks for the bodies that no relay has read, by an override of this mode. Responses have no trailers in
HTTP/1; Envoy closes a stream that needs no more messages, and the picker must know when a response ends."""

_FOR_PICKER = (":authority", ":path", "content-length", REQUEST_ID, *CREDENTIALS, *FROM_RELAYS, PROGRESS)
"""Headers of requests that the picker reads."""

_MESSAGE_TIMEOUT = "2s"
"""Longest wait for a response of the picker; the request then continues without it."""


def outer(address: str, port: int) -> Json:
    """Returns the TCP listener for clients. It removes from requests all headers that only relay and picker may set.

    Args:
        address: `::` takes IPv4 connections too.
    """
    removed = [{"remove_on_match": {"key_matcher": {"prefix": prefix}}} for prefix in _INTERNAL_PREFIXES]
    return {
        "name": OUTER,
        "address": {"socket_address": {"address": address, "port_value": port, "ipv4_compat": address == "::"}},
        # Drained at graceful shutdown; the inner listener stays for the relays.
        "traffic_direction": "INBOUND",
        **_http(
            stat_prefix=OUTER,
            use_remote_address=True,
            normalize_path=True,
            merge_slashes=True,
            request_headers_timeout="30s",
            # The relay buffers whole bodies in memory, and checks API keys before that only of large ones.
            request_timeout="300s",
            local_reply_config=outer_replies(),
            always_set_request_id_in_response=True,
            early_header_mutation_extensions=[
                extension(
                    "http.early_header_mutation.header_mutation",
                    "http.early_header_mutation.header_mutation.v3.HeaderMutation",
                    mutations=removed,
                )
            ],
            route_config=_outer_routes(),
            http_filters=[_router()],
        ),
    }


def inner(sockets: Sockets) -> Json:
    """Returns the listener on a UNIX socket for relays, which calls the picker."""
    return {
        "name": INNER,
        "address": pipe(sockets.inner),
        # Else clients' connections would keep relays out.
        "ignore_global_conn_limit": True,
        # Bodies are kept while requests wait for the picker, for retries, and where the picker reads them. Not
        # `request_body_buffer_limit` of the routes: it does not hold where the route that matches before the pick is a
        # direct response.
        "per_connection_buffer_limit_bytes": MAX_BODY_BYTES,
        "traffic_direction": "OUTBOUND",
        **_http(
            stat_prefix=INNER,
            skip_xff_append=True,
            local_reply_config=inner_replies(),
            # More than the outer listener permits (100 headers, 60 KiB), for headers that relay and picker add.
            common_http_protocol_options={"max_headers_count": 200},
            max_request_headers_kb=96,
            strip_trailing_host_dot=True,
            # A relay detects the end of an aborted stream only when the connection closes; the default delay is a
            # second.
            delayed_close_timeout="0.02s",
            rds={"route_config_name": INNER, "config_source": {"ads": {}, "resource_api_version": "V3"}},
            http_filters=[_picker_filter(), _router()],
        ),
    }


def _http(**specific: Any) -> Json:
    manager = extension(
        "filters.network.http_connection_manager",
        "filters.network.http_connection_manager.v3.HttpConnectionManager",
        generate_request_id=True,
        preserve_external_request_id=True,
        request_id_extension={
            "typed_config": typed("envoy.extensions.request_id.uuid.v3.UuidRequestIdConfig", pack_trace_reason=False)
        },
        stream_idle_timeout=LONGEST_SILENCE,
        server_header_transformation="PASS_THROUGH",
        **specific,
    )
    return {"filter_chains": [{"filters": [manager]}]}


def _outer_routes() -> Json:
    """Returns routes that retry only if a relay did not accept the request or died: it retries engines itself."""
    retry = {
        "retry_on": "connect-failure,refused-stream,reset-before-request,reset",
        "num_retries": 2,
        "retry_priority": extension(
            "retry_priorities.previous_priorities",
            "retry.priority.previous_priorities.v3.PreviousPrioritiesConfig",
            update_frequency=2,
        ),
        "retry_host_predicate": [
            extension("retry_host_predicates.previous_hosts", "retry.host.previous_hosts.v3.PreviousHostsPredicate")
        ],
    }
    route = {"cluster": RELAYS, "timeout": "0s", "idle_timeout": LONGEST_SILENCE, "retry_policy": retry}
    return {
        "name": OUTER,
        "virtual_hosts": [
            {
                "name": "any",
                "domains": ["*"],
                "routes": [{"match": {"prefix": "/"}, "route": route}],
                "request_body_buffer_limit": MAX_KEPT_BYTES,
            }
        ],
        "response_headers_to_remove": [
            *(ENDPOINT, FIRST_TOKEN_WITHIN, MAX_ATTEMPTS, SERVICE, PROGRESS, TRIES, UPSTREAM_FAILURE)
        ],
    }


def _picker_filter() -> Json:
    """Returns the filter that sends the picker the head of each request; its stream stays open until the response ends.

    failure_mode_allow: without it, running responses are aborted when the picker dies.
    """
    return extension(
        "filters.http.ext_proc",
        "filters.http.ext_proc.v3.ExternalProcessor",
        grpc_service={"envoy_grpc": {"cluster_name": PICKER}},
        failure_mode_allow=True,
        processing_mode=PROCESSING_MODE,
        allow_mode_override=True,
        forward_rules={"allowed_headers": {"patterns": [{"exact": name} for name in _FOR_PICKER]}},
        message_timeout=_MESSAGE_TIMEOUT,
        max_message_timeout=f"{LONGEST_MESSAGE_TIMEOUT_S}s",
        mutation_rules={"allow_envoy": True},
        metadata_options={"receiving_namespaces": {"untyped": [METADATA]}},
    )


def _router() -> Json:
    return extension("filters.http.router", "filters.http.router.v3.Router")
