"""The relay processes, as Envoy sends them requests: route, retries, and their cluster."""

from __future__ import annotations

from inflight_gateway.proxy.resources import Json, extension, pipe, typed
from inflight_gateway.settings import Sockets

_NAME = "relays"

LONGEST_SILENCE = "3600s"
"""Longest silence of a stream in either direction: the longest hold. Relays end the streams of silent engines."""

MAX_KEPT_BYTES = 2**20
"""Most bytes of a request's body that Envoy keeps for another relay until the first one answers; requests with more are
sent to one relay only. Relays keep whole bodies, and bound their sum."""

BUFFER_BYTES = 4 * 2**20
"""Bytes that wait for a relay before Envoy reads no more of all clients of the connection: with 32 KiB, a few clients
that upload let it spend half of its time on switching the reading of others off and on."""

UNLIMITED = 1_000_000
"""Envoy's circuit breakers and its connections default to 1024 requests; the relays and the picker's queue bound them
here."""

_HTTP2: Json = {
    "max_concurrent_streams": UNLIMITED,
    # Envoy keeps so much of an answer whose client does not read. No client waits for another one that does not read.
    "initial_stream_window_size": 2**16 - 1,
    "initial_connection_window_size": 2**31 - 1,
    # A bad head of one answer must not end the others.
    "override_stream_error_on_invalid_http_message": True,
    # Clients that leave while a relay is busy: its connection is not closed for that.
    "max_outbound_frames": UNLIMITED,
    "max_outbound_control_frames": UNLIMITED,
}


def routes(policies: Json) -> Json:
    """Returns the routes of all requests.

    Envoy retries only where a relay refuses a connection or dies; relays retry engines themselves. The connections of a
    dead worker's socket wait for the next one, and retries last about as long as the start of the whole container: each
    waits a random part of its interval, so that many short ones last more surely as long as that than fewer long ones.

    Args:
        policies: what single filters do, by their names.
    """
    retry = {
        "retry_on": "connect-failure,refused-stream,reset-before-request,reset",
        "num_retries": 6,
        "retry_back_off": {"base_interval": "0.75s", "max_interval": "0.75s"},
        "host_selection_retry_max_attempts": 10,
        "retry_host_predicate": [
            extension("retry_host_predicates.previous_hosts", "retry.host.previous_hosts.v3.PreviousHostsPredicate")
        ],
    }
    route = {"cluster": _NAME, "timeout": "0s", "idle_timeout": LONGEST_SILENCE, "retry_policy": retry}
    host = {"name": "any", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": route}]}
    more = {"request_body_buffer_limit": MAX_KEPT_BYTES, "typed_per_filter_config": policies}
    return {"name": _NAME, "virtual_hosts": [{**host, **more}]}


def cluster(sockets: Sockets, count: int) -> Json:
    """Returns the cluster of relays 0 to `count` - 1. If all of them refuse connections, Envoy tries them all the same:
    its default panic threshold."""
    options = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    policy = "load_balancing_policies.least_request"
    check = {
        **{"timeout": "1s", "interval": "1s", "no_traffic_interval": "1s", "unhealthy_interval": "0.2s"},
        **{"unhealthy_threshold": 1, "healthy_threshold": 1, "tcp_health_check": {}},
    }
    return {
        "name": _NAME,
        "type": "STATIC",
        "connect_timeout": "1s",
        "per_connection_buffer_limit_bytes": BUFFER_BYTES,
        "load_balancing_policy": {
            "policies": [{"typed_extension_config": extension(policy, f"{policy}.v3.LeastRequest")}]
        },
        "health_checks": [check],
        "circuit_breakers": {
            "thresholds": [
                {
                    "max_connections": UNLIMITED,
                    "max_pending_requests": UNLIMITED,
                    "max_requests": UNLIMITED,
                    "retry_budget": {"budget_percent": {"value": 25}, "min_retry_concurrency": 64},
                }
            ]
        },
        "typed_extension_protocol_options": {
            options: typed(
                options,
                # More than an engine may send, so that Envoy refuses no answer: it would ask for it again.
                common_http_protocol_options={"max_headers_count": 200, "max_response_headers_kb": 96},
                explicit_http_config={"http2_protocol_options": _HTTP2},
            )
        },
        "load_assignment": {
            "cluster_name": _NAME,
            "endpoints": [
                {"lb_endpoints": [{"endpoint": {"address": pipe(sockets.relay(index))}} for index in range(count)]}
            ],
        },
    }
