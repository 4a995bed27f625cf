"""Numbers as the engine's flags take them."""

from __future__ import annotations

from inflight_base.manifest.units import parse_duration


def number(value: float) -> str:
    """Without a fraction where there is none: `60`, `0.5`."""
    return str(int(value)) if value.is_integer() else str(value)


def seconds(duration: str) -> str:
    """A duration such as `1m30s` in seconds."""
    return number(parse_duration(duration))
