"""`top --once` and `top --json`: the same view, printed once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from inflight_kubectl.access.resources import Service
from inflight_kubectl.output import plain_table
from inflight_kubectl.top.rows import columns, service_cells

STYLES = {"": "", "good": "green", "warn": "yellow", "bad": "bold red", "dim": "dim"}
"""Rich style of a tone."""


def table(services: Sequence[Service], now: datetime, width: int, *, namespaces: bool) -> Any:
    """Returns a Rich table of the columns that fit into `width`."""
    from rich.text import Text

    # Rich puts two spaces between columns where the live view has one.
    shown = columns(width - 12, namespaces=namespaces)
    wide = any(one.name == "DECISION" for one in shown)
    found = plain_table(*(one.name for one in shown), right=tuple(one.name for one in shown if one.right))
    for service in services:
        cells = service_cells(service, shown, now, wide=wide)
        found.add_row(*(Text(cell.text, STYLES[cell.tone]) for cell in cells))
    return found


def counts(services: Sequence[Service]) -> str:
    """Returns `3 services: 2 ready, 1 failing`."""
    states = Counter(one.state for one in services)
    number = f"{len(services)} service{'s' * (len(services) != 1)}"
    parts = ", ".join(f"{count} {state.lower()}" for state, count in states.most_common())
    return f"{number}: {parts}" if parts else number


def as_json(service: Service) -> dict[str, Any]:
    """Returns a service as `--json` prints it; durations in seconds, shares from 0 to 1."""
    observed, limits = service.observed, service.limits
    last = service.decisions[-1] if service.decisions else None
    return {
        "namespace": service.namespace,
        "name": service.name,
        "state": service.state,
        "model": service.model,
        "replicas": {
            "ready": service.ready,
            "ordered": service.ordered,
            "blocked": service.blocked,
            "pods": service.replicas,
        },
        "observed": observed,
        "queue": service.queue,
        "inFlightAtGateway": service.in_flight,
        "targets": {"ttftP95": service.ttft_target, "tpotP95": service.tpot_target, "fromSpec": service.has_slo},
        "limits": limits,
        "lastDecision": last,
    }
