"""Names and limits that several of Envoy's resources share. Resources are JSON objects, as Envoy's reference shows
them: https://www.envoyproxy.io/docs/envoy/latest/api-v3/api."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

from inflight_base.manifest.keys import ServiceKey

Json: TypeAlias = dict[str, Any]

TYPE = "type.googleapis.com/"

PICKER = "picker"
"""Cluster of the picker's socket: ADS and ext_proc."""

RELAYS = "relays"
"""Cluster of the relays, with the inner listener as their fallback."""

PICKED = "picked"
"""Cluster of all engines of all services: takes the endpoints of the destination header, and no others."""

OUTER, INNER = "outer", "inner"
"""Listeners, and their routes."""

METADATA = "inflight.gateway"
"""Namespace of the picker's dynamic metadata."""

LONGEST_SILENCE = "3600s"
"""Longest silence of a stream in either direction. Envoy's default of 5 min would end holds and long answers that are
not streamed; relays and engines end silent streams themselves."""

LONGEST_MESSAGE_TIMEOUT_S = 3600
"""Longest message timeout that the picker may ask Envoy for: the longest hold."""

UNLIMITED = 1_000_000
"""Envoy's circuit breakers default to 1024 requests and 3 retries; the hold queue and the relays bound both here."""


def service_cluster(key: ServiceKey) -> str:
    """Returns the name of the cluster with one service's engines, for requests without a response from the picker."""
    return f"service/{key}"


def pipe(path: Path) -> Json:
    """Returns the address of a UNIX socket."""
    return {"pipe": {"path": str(path)}}


def typed(type_name: str, **fields: Any) -> Json:
    """Returns an `Any` in protobuf's JSON form."""
    return {"@type": f"{TYPE}{type_name}", **fields}


def extension(name: str, type_name: str, **fields: Any) -> Json:
    """Returns an extension of Envoy, `envoy.NAME`, with its configuration, `envoy.extensions.TYPE_NAME`."""
    return {"name": f"envoy.{name}", "typed_config": typed(f"envoy.extensions.{type_name}", **fields)}


def http_options(**fields: Any) -> Json:
    """Returns a cluster's HTTP options."""
    options = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    return {"typed_extension_protocol_options": {options: typed(options, **fields)}}


def header(key: str, value: str) -> Json:
    """Returns a header to add that replaces one of the same name, unless its value is empty."""
    return {"header": {"key": key, "value": value}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
