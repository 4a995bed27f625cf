"""Pictures of fleet simulations: one over time, and many against each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from inflight_simulator.fleet.outcome import FleetRun
from inflight_simulator.fleet.requests import Floats
from inflight_simulator.plot import COLORS_OF_CURVES, STYLE

WINDOW_S = 10.0
"""Seconds over which arrivals are counted and the share in target is taken."""
_LEGEND_ABOVE: Any = {"loc": "lower right", "bbox_to_anchor": (1, 0.97), "frameon": False}
_GRAY, _LIGHT, _GREEN = "#7f7f7f", "#b5dcf2", "#009e73"
_KEPT_AXIS = (0.0, 1.04)


def plot_fleet(path: Path, name: str, run: FleetRun) -> None:
    """Plots a run over time: replicas, arrivals, share of requests in target, and requests without a first token.

    Raises:
        OSError: the file cannot be written.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(11, 8), dpi=110, layout="constrained")
        replicas, arrivals, kept, queue = figure.subplots(4, 1, sharex=True, height_ratios=[1.6, 1, 1, 1])
        figure.suptitle(
            f"{name}: {run.attainment:.2%} of requests in target, {run.replica_hours:.2f} replica-hours",
            fontweight="bold",
            x=0.01,
            ha="left",
        )
        _draw_replicas(replicas, run)
        windows, rate, share = _windows(run)
        arrivals.step(windows, rate, where="post", color=_GRAY, linewidth=1.2)
        arrivals.set_ylabel("arrivals\nper second")
        kept.step(windows, 100 * share, where="post", color=_GREEN, linewidth=1.2)
        kept.set_ylabel("in target, %")
        kept.set_ylim(*(100 * edge for edge in _KEPT_AXIS))
        times, waiting = without_first_token(run)
        queue.step(times, waiting, where="post", color=COLORS_OF_CURVES[1], linewidth=1.0)
        queue.set_ylabel("requests without\na first token")
        queue.set_xlabel("seconds")
        queue.set_xlim(run.arrival_s[0], run.arrival_s[-1])
        for axis in (replicas, arrivals, kept, queue):
            axis.grid(axis="y", color="#e0e0e0", linewidth=0.6)
        for axis in (replicas, arrivals, queue):
            axis.set_ylim(bottom=0)
        figure.savefig(path, format="png")


def plot_comparison(path: Path, runs: Mapping[str, FleetRun], followed: Sequence[str]) -> None:
    """Replica-hours of all runs against their share of requests in target; below, replicas over time of `followed`.

    Raises:
        OSError: the file cannot be written.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(11, 9.5), dpi=110, layout="constrained")
        every, over_time, arrivals = figure.subplots(3, 1, height_ratios=[2.4, 1.5, 0.6])
        _draw_points(every, runs, followed)
        for name, color in zip(followed, _colors(), strict=False):
            rows = runs[name].replicas
            end = runs[name].arrival_s[-1]
            times, ordered = [*(row.time_s for row in rows), end], [*(row.ordered for row in rows), rows[-1].ordered]
            over_time.step(times, ordered, where="post", color=color, linewidth=1.4, label=name)
        over_time.set_ylabel("replicas ordered")
        over_time.set_ylim(bottom=0)
        over_time.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
        over_time.legend(ncols=len(followed), **_LEGEND_ABOVE)
        first = next(iter(runs.values()))
        windows, rate, _ = _windows(first)
        arrivals.fill_between(windows, rate, step="post", color=_LIGHT, linewidth=0)
        arrivals.set_ylabel("arrivals\nper second")
        arrivals.set_ylim(bottom=0)
        arrivals.set_xlabel("seconds")
        for axis in (over_time, arrivals):
            axis.set_xlim(first.arrival_s[0], first.arrival_s[-1])
            axis.grid(axis="y", color="#e0e0e0", linewidth=0.6)
        figure.savefig(path, format="png")


def _colors() -> Iterable[str]:
    return (*COLORS_OF_CURVES, "#e69f00", "#cc79a7", "#56b4e9")


def _draw_points(axis: Axes, runs: Mapping[str, FleetRun], followed: Sequence[str]) -> None:
    color_of = dict(zip(followed, _colors(), strict=False))
    points = {name: (run.replica_hours, 100 * run.attainment) for name, run in runs.items()}
    for name, (hours, kept) in points.items():
        axis.plot(hours, kept, "o", color=color_of.get(name, _GRAY), markersize=7 if name in color_of else 5)
    most = max(hours for hours, _ in points.values())
    low = min(kept for _, kept in points.values())
    axis.set_xlim(0, 1.18 * most)
    axis.set_ylim(low - 0.12 * (101.5 - low) - 0.5, 101.5)
    axis.axhline(99, color=_GRAY, linewidth=0.8, linestyle="--")
    axis.set_xlabel("replica-hours")
    axis.set_ylabel("requests in target, %")
    axis.grid(color="#e0e0e0", linewidth=0.6)
    heights = label_heights(list(points.values()), (1.18 * most, 1.12 * (101.5 - low) + 0.5))
    for (name, (hours, kept)), height in zip(points.items(), heights, strict=True):
        axis.annotate(
            name,
            (hours, kept),
            xytext=(hours + 0.012 * most, height),
            color=color_of.get(name, "#404040"),
            fontweight="bold" if name in color_of else "normal",
            fontsize=8,
            va="center",
            arrowprops={"arrowstyle": "-", "color": "#bdbdbd", "linewidth": 0.5} if height != kept else None,
        )


def label_heights(points: Sequence[tuple[float, float]], spans: tuple[float, float]) -> list[float]:
    """Positions of point labels without overlap: each as near to its point as possible.

    Args:
        spans: of the axes. A label is taken to be 0.15 of the first wide and 0.032 of the second high.
    """
    width, height = 0.15 * spans[0], 0.032 * spans[1]
    placed: list[tuple[float, float]] = []
    found = [0.0] * len(points)
    for index in sorted(range(len(points)), key=lambda each: -points[each][1]):
        x, y = points[index]
        near = [other for left, other in placed if abs(left - x) < width]
        steps = (y + sign * step * height / 2 for step in range(4 * len(points) + 1) for sign in (-1, 1))
        found[index] = next(at for at in steps if all(abs(at - other) >= 0.999 * height for other in near))
        placed.append((x, found[index]))
    return found


def _draw_replicas(axis: Axes, run: FleetRun) -> None:
    end = run.arrival_s[-1]
    times = np.array([*(row.time_s for row in run.replicas), end])
    last = run.replicas[-1]
    for label, color, counts in (
        ("there", _LIGHT, [*(row.existing for row in run.replicas), last.existing]),
        ("ready", COLORS_OF_CURVES[0], [*(row.ready for row in run.replicas), last.ready]),
        ("ordered", COLORS_OF_CURVES[1], [*(row.ordered for row in run.replicas), last.ordered]),
    ):
        if label == "there":
            axis.fill_between(times, counts, step="post", color=color, linewidth=0, label="starting, ready or draining")
        else:
            axis.step(times, counts, where="post", color=color, linewidth=1.4, label=label)
    axis.set_ylabel("replicas")
    axis.yaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, min_n_ticks=1))
    axis.legend(ncols=3, **_LEGEND_ABOVE)


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
    arrived, first = np.sort(run.arrival_s[served]), np.sort((run.arrival_s + run.ttft)[served])
    seconds = np.arange(run.arrival_s[0], run.arrival_s[-1] + 1.0)
    came, began = (np.searchsorted(times, seconds, "right") for times in (arrived, first))
    return seconds, (came - began).astype(np.float64)
