"""Conflicts between flags that are valid individually."""

from __future__ import annotations

import argparse

from inflight_engine.server.settings.observability_flags import tracing_config


def wrong_combination(flags: argparse.Namespace) -> str | None:
    """The conflict as a sentence; None: no conflict."""
    if flags.preemption == "swap" and not flags.swap_space:
        return "--preemption swap needs host memory: give --swap-space, as in --swap-space 4Gi"
    if flags.admin_port is None and not flags.serving_metrics:
        return "--no-serving-metrics needs --admin-port: /metrics would be nowhere"
    if flags.admin_port and flags.admin_port == flags.port:
        return f"--admin-port and --port are both {flags.port}: give admin calls a port of their own, or none"
    if flags.trust_tenant_header and flags.tenant_key_file is not None:
        return "--trust-tenant-header and --tenant-key-file exclude each other: the header is believed or checked"
    try:
        tracing_config(flags)
    except ValueError as error:
        return str(error)
    return None
