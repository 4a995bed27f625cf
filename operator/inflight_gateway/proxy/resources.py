"""Envoy's resources as JSON objects, as Envoy's reference shows them:
https://www.envoyproxy.io/docs/envoy/v1.40.0/api-v3/api."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

Json: TypeAlias = dict[str, Any]


def pipe(path: Path) -> Json:
    """Returns the address of a UNIX socket."""
    return {"pipe": {"path": str(path)}}


def typed(type_name: str, **fields: Any) -> Json:
    """Returns an `Any` in protobuf's JSON form."""
    return {"@type": f"type.googleapis.com/{type_name}", **fields}


def extension(name: str, type_name: str, **fields: Any) -> Json:
    """Returns an extension of Envoy, `envoy.NAME`, with its configuration, `envoy.extensions.TYPE_NAME`."""
    return {"name": f"envoy.{name}", "typed_config": typed(f"envoy.extensions.{type_name}", **fields)}


def header(key: str, value: str) -> Json:
    """Returns a header to add that replaces one of the same name, unless its value is empty."""
    return {"header": {"key": key, "value": value}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}


def file(path: Path) -> Json:
    """Returns a data source."""
    return {"filename": str(path)}
