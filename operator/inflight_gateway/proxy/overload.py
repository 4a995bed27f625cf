"""Bounds of Envoy's memory: it refuses requests before its container reaches its memory limit.

https://www.envoyproxy.io/docs/envoy/latest/configuration/operations/overload_manager/overload_manager
"""

from __future__ import annotations

from inflight_gateway.proxy.names import Json, typed

SHRINK_SHARE, REFUSE_SHARE, CLOSE_SHARE = 0.7, 0.8, 0.9
"""Of the memory limit, in use by Envoy's heap: free memory is returned to the system; new requests get status 503
(those of relays too, which pass it on at the first attempt of a request, and wait and retry at later ones); new
connections are not accepted."""

MAX_CONNECTIONS = 10_000
"""Of clients. A request in flight takes about 100 KiB of Envoy's memory besides its body."""

_HEAP = "envoy.resource_monitors.fixed_heap"
_CONNECTIONS = "envoy.resource_monitors.global_downstream_max_connections"
_MONITORS = "envoy.extensions.resource_monitors"


def overload_manager(memory: int) -> Json:
    """Args: memory: bytes that Envoy's container may use."""
    heap = typed(f"{_MONITORS}.fixed_heap.v3.FixedHeapConfig", max_heap_size_bytes=str(memory))
    connections = typed(
        f"{_MONITORS}.downstream_connections.v3.DownstreamConnectionsConfig",
        max_active_downstream_connections=str(MAX_CONNECTIONS),
    )
    return {
        # Bodies come in at gigabytes a second at most: the default of 1 s is too long.
        "refresh_interval": "0.1s",
        "resource_monitors": [
            {"name": _HEAP, "typed_config": heap},
            {"name": _CONNECTIONS, "typed_config": connections},
        ],
        "actions": [
            _action("shrink_heap", SHRINK_SHARE),
            _action("stop_accepting_requests", REFUSE_SHARE),
            _action("stop_accepting_connections", CLOSE_SHARE),
        ],
    }


def _action(name: str, share: float) -> Json:
    trigger = {"name": _HEAP, "threshold": {"value": share}}
    return {"name": f"envoy.overload_actions.{name}", "triggers": [trigger]}
