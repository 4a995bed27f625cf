"""Pictures of fleet simulations: one over time, and many against each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from inflight_simulator.fleet.outcome import FleetRun
from inflight_simulator.fleet.requests import Floats
from inflight_simulator.panels import (
    BLUE,
    GRAY,
    GREEN,
    ORANGE,
    PALE,
    PINK,
    RED,
    SKY,
    Curve,
    draw_curves,
    open_at,
    panels,
)

WINDOW_S = 10.0
"""Seconds over which arrivals are counted and the share in target is taken."""
_COLORS = (BLUE, RED, GREEN, ORANGE, PINK, SKY)


def plot_fleet(path: Path, name: str, run: FleetRun) -> None:
    """Plots a run over time: replicas, arrivals, share of requests in target, and requests without a first token.

    Raises:
        OSError: the file cannot be written.
    """
    window = (run.arrival_s[0], run.arrival_s[-1])
    replicas = [
        _replicas(run, field, color, label)
        for field, color, label in (
            ("existing", PALE, "starting, ready or draining"),
            ("ready", BLUE, "ready"),
            ("ordered", RED, "ordered"),
        )
    ]
    edges, rate, share = _windows(run)
    with panels(path, [2.4, 1.5, 1.5, 1.5]) as axes:
        draw_curves(axes[0], "replicas", replicas, window)
        axes[0].set_title(
            f"{name}: {run.attainment:.2%} of requests in target, {run.replica_hours:.2f} replica-hours",
            fontweight="bold",
        )
        draw_curves(axes[1], "arrivals\nper second", [Curve(edges, rate, GRAY)], window)
        draw_curves(axes[2], "in target, %", [Curve(edges, 100 * share, GREEN)], window)
        waiting = Curve(*without_first_token(run), RED)
        draw_curves(axes[3], "requests without\na first token", [waiting], window)


def plot_comparison(path: Path, runs: Mapping[str, FleetRun], followed: Sequence[str]) -> None:
    """Replica-hours of all runs against their share of requests in target; below, replicas over time of `followed`.

    Raises:
        OSError: the file cannot be written.
    """
    first = next(iter(runs.values()))
    window = (first.arrival_s[0], first.arrival_s[-1])
    edges, rate, _ = _windows(first)
    color_of = dict(zip(followed, _COLORS, strict=False))
    with panels(path, [4.5, 2.6, 1.2], one_time_axis=False) as (every, over_time, arrivals):
        for index, (name, run) in enumerate(runs.items()):
            color, marker = color_of.get(name, GRAY), "osv^D*PX<>"[index % 10]
            every.plot(run.replica_hours, 100 * run.attainment, marker, color=color, label=name)
        every.axhline(99, color=GRAY, linewidth=0.8, linestyle="--")
        every.set_xlim(left=0)
        every.set_xlabel("replica-hours")
        every.set_ylabel("requests in target, %")
        every.grid(color="#e0e0e0", linewidth=0.6)
        every.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
        curves = [_replicas(runs[name], "ordered", color, name) for name, color in color_of.items()]
        draw_curves(over_time, "replicas ordered", curves, window)
        draw_curves(arrivals, "arrivals\nper second", [Curve(edges, rate, GRAY)], window)


def _replicas(run: FleetRun, field: str, color: str, label: str) -> Curve:
    counts = [getattr(row, field) for row in run.replicas]
    return Curve([*(row.time_s for row in run.replicas), run.arrival_s[-1]], [*counts, counts[-1]], color, label)


def _windows(run: FleetRun) -> tuple[Floats, Floats, Floats]:
    """float64 [windows + 1] each: when a window begins, arrivals per second in it, share of them that kept their
    targets, not a number where nothing arrived. The last is the end, with what the last window has."""
    begin = run.arrival_s[0]
    window = ((run.arrival_s - begin) // WINDOW_S).astype(np.int64)
    arrived = np.bincount(window).astype(np.float64)
    kept = np.bincount(window, weights=run.kept)
    share = np.divide(kept, arrived, out=np.full(len(arrived), np.nan), where=arrived > 0)
    edges = begin + WINDOW_S * np.arange(len(arrived) + 1)
    return edges, *(np.append(values, values[-1]) for values in (arrived / WINDOW_S, share))


def without_first_token(run: FleetRun) -> tuple[Floats, Floats]:
    """float64 [seconds] each: each second, and how many requests have arrived by then whose first token has not come.
    Refused requests are left out."""
    served = ~np.isnan(run.ttft)
    arrived = run.arrival_s[served]
    seconds = np.arange(run.arrival_s[0], run.arrival_s[-1] + 1.0)
    return seconds, open_at(seconds, arrived, arrived + run.ttft[served])
