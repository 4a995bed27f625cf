"""Listen addresses of the gateway."""

from __future__ import annotations

import socket


def any_address() -> str:
    """All addresses of this pod: `::` takes IPv4 connections too. `0.0.0.0` on nodes without IPv6."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::", 0))
    except OSError:
        return "0.0.0.0"
    return "::"
