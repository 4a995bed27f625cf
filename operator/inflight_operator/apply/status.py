"""The merge patch of a status."""

from __future__ import annotations

from typing import Any


def status_patch(live: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any] | None:
    """The JSON merge patch (RFC 7386) that turns `live` into `wanted`; None when they are equal already.

    Lists are replaced whole, as merge patch has it.
    """
    patch: dict[str, Any] = {key: None for key in live if key not in wanted}
    for key, value in wanted.items():
        before = live.get(key)
        if key in live and before == value:
            continue
        if isinstance(before, dict) and isinstance(value, dict):
            patch[key] = status_patch(before, value)
        else:
            patch[key] = value
    return patch or None
