"""Replicas and limits of one service: panels that the service and the autopilot share."""

from __future__ import annotations

from deploy.dashboards import style
from deploy.dashboards.panels import Panel, Query, lines
from deploy.dashboards.queries import ONE_SERVICE, known


def value(name: str) -> str:
    """A gauge of the service."""
    return known(f"service_{name}", ONE_SERVICE, ())


def replicas_panel(*more: Query) -> Panel:
    """Replicas of the service; decisions mark it. `more`: further lines."""
    return lines(
        "Replicas",
        "Replicas ordered, pods that take requests, the operator's recommendation, and replicas that will not become "
        "ready without intervention. Marks are decisions with their reasons.",
        "none",
        [
            Query(value("ready_replicas"), "Ready", style.READY),
            Query(value("replicas"), "Ordered", style.ORDERED),
            Query(known("desired_replicas", ONE_SERVICE, ()), "Recommended", style.WANTED, dashed=True),
            Query(value("blocked_replicas"), "Blocked", style.BLOCKED),
            *more,
        ],
        decimals=0 if not more else None,
        calcs=("min", "max", "lastNotNull"),
    )


def limits_panel(limit: str, title: str, description: str) -> Panel:
    """A limit of engines: in force, best by the cost model, and the engines' capacity."""
    return lines(
        title,
        f"{description} In force: the limit set by the operator. Best by cost model: the limit at which the targets "
        "are kept with the most requests per second; the operator approaches it step by step, and a limit that served "
        "worse is taken back. Capacity: the most that the engines accept.",
        "short",
        [
            Query(value(limit), "In force", style.IN_FORCE),
            Query(value(f"model_{limit}"), "Best by cost model", style.MODELLED, dashed=True),
            Query(
                f"min(inflight_{limit}_capacity{{{ONE_SERVICE}}})", "Capacity of the engines", style.TARGET, dashed=True
            ),
        ],
        calcs=("min", "max", "lastNotNull"),
    )
