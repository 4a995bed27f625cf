"""Bounds of Envoy's memory, connections and HTTP/2 streams.

Envoy refuses requests before its container reaches its memory limit:
https://www.envoyproxy.io/docs/envoy/v1.40.0/configuration/operations/overload_manager/overload_manager.
Windows and streams are those that Envoy's documentation recommends at the edge:
https://www.envoyproxy.io/docs/envoy/v1.40.0/configuration/best_practices/edge.
"""

from __future__ import annotations

from inflight_gateway.proxy.resources import Json, extension

SHRINK_SHARE, REFUSE_SHARE, CLOSE_SHARE = 0.7, 0.8, 0.9
"""Shares of the memory limit in use by Envoy's heap, from which free memory is returned to the system; new requests get
status 503; new connections are not accepted."""

MAX_CONNECTIONS = 10_000
"""Most connections of clients."""

BUFFER_BYTES = 32 * 2**10
"""Most bytes that Envoy keeps of a connection before it reads no further."""

HTTP2: Json = {
    "max_concurrent_streams": 100,
    "initial_stream_window_size": 64 * 2**10,
    "initial_connection_window_size": 2**20,
}

RUNTIME: Json = {
    "layers": [
        {
            "name": "bounds",
            "static_layer": {
                # Requests that one connection sends at once wait for those of the others.
                "http.max_requests_per_io_cycle": 1,
                # A client that resets more than half of so many streams within a second of their begin is disconnected.
                "overload.premature_reset_total_stream_count": 200,
            },
        }
    ]
}
"""Bounds of rapid resets (CVE-2023-44487), which are runtime keys."""


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
