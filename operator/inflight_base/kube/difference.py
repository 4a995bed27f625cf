"""The decision whether a child has to be applied, without a call to the API server.

A live object holds more than what was applied: the API server fills in defaults, and other managers may own fields. So
two questions decide: does every wanted field have its value, and does every field that the operator owns
(`metadata.managedFields`, written by server-side apply) still exist in the wanted object?
"""

from __future__ import annotations

import json
from functools import lru_cache
from sys import intern
from typing import Any

from inflight_base.manifest.names import FIELD_MANAGER
from inflight_base.manifest.units import parse_quantity

_QUANTITY_KEYS = ("requests", "limits", "sizeLimit", "divisor")

# Defaults that the API server fills into atomic structs and lists, which managedFields lists only as a whole.
_SERVER_DEFAULTS: tuple[tuple[str, Any], ...] = (
    ("apiVersion", "v1"),
    ("protocol", "TCP"),
    ("defaultMode", 420),
    ("expirationSeconds", 3600),
    ("divisor", "0"),
)


def needs_apply(wanted: dict[str, Any], live: dict[str, Any] | None) -> bool:
    """Returns whether applying `wanted` would change `live`, as read from the API server with its
    `metadata.managedFields`."""
    if live is None:
        return True
    owned = _owned_fields(live)
    return owned is None or not _holds(wanted, live) or not _still_wanted(owned, wanted, live)


def _owned_fields(live: dict[str, Any]) -> dict[str, Any] | None:
    """Returns FieldsV1 of the operator's last apply; None if it never applied the object."""
    for entry in live["metadata"].get("managedFields", ()):
        if entry["manager"] == FIELD_MANAGER and entry["operation"] == "Apply" and not entry.get("subresource"):
            written = entry["fieldsV1"]
            fields: dict[str, Any] = _unpacked(written) if isinstance(written, str) else written
            return fields
    return None


@lru_cache(maxsize=32)
def _unpacked(text: str) -> Any:
    """Returns the JSON value, one object for equal texts: children of a kind own the same fields in most services."""
    return json.loads(text)


def packed_fields(entry: dict[str, Any]) -> dict[str, Any]:
    """Returns an entry of `metadata.managedFields` with its tree of fields as text, which takes a fraction of the
    memory, is one object for all services alike, and which `needs_apply` reads as well. Owners, whose uids differ from
    service to service, are left out: the object itself says who its owner is."""
    fields = entry.get("fieldsV1", {})
    if isinstance(fields, str):
        return {**entry, "fieldsV1": intern(fields)}
    metadata = {key: below for key, below in fields.get("f:metadata", {}).items() if key != "f:ownerReferences"}
    kept = {key: below for key, below in fields.items() if key != "f:metadata"}
    packed = json.dumps(kept | ({"f:metadata": metadata} if metadata else {}), separators=(",", ":"))
    return {**entry, "fieldsV1": intern(packed)}


def _holds(wanted: Any, live: Any, *, quantities: bool = False) -> bool:
    """Returns whether `live` has every value of `wanted`; more keys in a mapping are allowed, more items in a list are
    not.

    `quantities` says that the values are quantities, which the API server rewrites (`0.5` to `500m`).
    """
    if isinstance(wanted, dict) and isinstance(live, dict):
        return all(
            _holds(value, live[key], quantities=quantities or key in _QUANTITY_KEYS)
            if key in live
            else _is_empty(value)
            for key, value in wanted.items()
        )
    if isinstance(wanted, list) and isinstance(live, list):
        return len(wanted) == len(live) and all(
            _holds(item, present, quantities=quantities) for item, present in zip(wanted, live, strict=True)
        )
    if quantities and isinstance(wanted, str | int) and isinstance(live, str | int):
        return parse_quantity(wanted) == parse_quantity(live)
    return bool(wanted == live)


def _is_empty(value: Any) -> bool:
    """Returns whether the API server leaves a value out when it stores an object (Go's omitempty)."""
    return value in (None, "", False) or value == [] or value == {}


def _still_wanted(owned: dict[str, Any], wanted: Any, live: Any) -> bool:
    """Returns whether every field in `owned` is in `wanted`: an apply has to remove any other field."""
    if not owned:
        return _no_leftovers(wanted, live)
    for path, below in owned.items():
        marker, _, key = path.partition(":")
        if marker == "f":
            if not isinstance(wanted, dict) or key not in wanted:
                return False
            if key in live and not _still_wanted(below, wanted[key], live[key]):
                return False
        elif marker == "k":
            keys = json.loads(key)
            found, present = _item(wanted, keys), _item(live, keys)
            if found is None or (present is not None and not _still_wanted(below, found, present)):
                return False
        elif marker == "v" and (not isinstance(wanted, list) or json.loads(key) not in wanted):
            return False
    return True


def _item(items: Any, keys: dict[str, Any]) -> dict[str, Any] | None:
    """The item of an associative list with these keys; `protocol` may be left out where it is the default."""
    if not isinstance(items, list):
        return None
    for item in items:
        if all(item.get(key, "TCP" if key == "protocol" else None) == value for key, value in keys.items()):
            found: dict[str, Any] = item
            return found
    return None


def _no_leftovers(wanted: Any, live: Any) -> bool:
    """Returns whether an atomic value holds only wanted fields, besides defaults of the API server."""
    if isinstance(wanted, dict) and isinstance(live, dict):
        return all(
            _no_leftovers(wanted[key], value) if key in wanted else (key, value) in _SERVER_DEFAULTS
            for key, value in live.items()
        )
    if isinstance(wanted, list) and isinstance(live, list):
        return all(map(_no_leftovers, wanted, live))
    return True
