"""A picture of simulations: who held a slot when, the queue, and the KV cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from inflight_simulator.outcome import Outcome, Phase, Run, Span
from inflight_simulator.report import request_name

MAX_REQUEST_ROWS = 40
"""Up to so many requests get a row each; beyond it there is a row for each slot."""
MAX_POINTS = 3000
"""Of a curve; more are drawn as the largest of each stretch."""

# Okabe and Ito's palette, which colour-blind readers can tell apart.
_WAITING, _HELD = "#e4e4e4", "#cfe3f1"
_COLORS = {
    Phase.PREFILL: "#e69f00",
    Phase.DECODE: "#0072b2",
    Phase.PADDING: "#9a9a9a",
    Phase.PREEMPTED: "#d55e00",
}
_NEXT_DECODE = "#56b4e9"
_CURVES = ("#0072b2", "#d55e00", "#009e73")

_Bar: TypeAlias = tuple[float, float, float]
"""Row, start, end."""

_STYLE: Any = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.titlelocation": "left"}


def plot(path: Path, runs: Mapping[str, Run]) -> None:
    """Draw simulations of the same requests over one time axis: a timeline of each, by name, above queue and KV cache.

    Raises:
        OSError: the file cannot be written.
    """
    heights = [_timeline_height(run) for run in runs.values()]
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(11, sum(heights) + 3.4), dpi=110, layout="constrained")
        axes: list[Axes] = figure.subplots(
            len(runs) + 2, 1, sharex=True, squeeze=False, height_ratios=[*heights, 1.0, 1.0]
        )[:, 0].tolist()
        for axis, (name, run) in zip(axes, runs.items(), strict=False):
            _draw_timeline(axis, name, run)
        _draw_curves(axes[-2], axes[-1], runs)
        end = max(_end(run) for run in runs.values())
        begin = min(outcome.arrival.arrival_s for run in runs.values() for outcome in run.outcomes)
        axes[-1].set_xlim(begin - 0.005 * (end - begin), end + 0.005 * (end - begin))
        axes[-1].set_xlabel("seconds")
        figure.savefig(path, format="png")


def _end(run: Run) -> float:
    return max(outcome.finished_s for outcome in run.outcomes)


def _by_request(run: Run) -> bool:
    return len(run.outcomes) <= MAX_REQUEST_ROWS


def _timeline_height(run: Run) -> float:
    """Inches."""
    rows = len(run.outcomes) if _by_request(run) else max(span.slot for span in run.timeline) + 1
    return min(max(0.26 * rows, 1.3), 5.0) + 0.3


def _draw_timeline(axis: Axes, name: str, run: Run) -> None:
    legend = _draw_requests(axis, run) if _by_request(run) else _draw_slots(axis, run)
    axis.set_title(name, fontweight="bold")
    axis.invert_yaxis()
    axis.legend(handles=legend, loc="lower right", bbox_to_anchor=(1, 1), ncols=len(legend), frameon=False)


def _draw_requests(axis: Axes, run: Run) -> list[Patch]:
    """A row for each request, from its arrival to its end."""
    outcomes = sorted(run.outcomes, key=lambda outcome: outcome.request_id)
    row_of = {outcome.request_id: row for row, outcome in enumerate(outcomes)}
    waiting = [(row, each.arrival.arrival_s, each.admitted_s) for row, each in enumerate(outcomes)]
    held = [(row, each.admitted_s, each.finished_s) for row, each in enumerate(outcomes)]
    _add_bars(axis, waiting, _WAITING, edge="#bdbdbd")
    _add_bars(axis, held, _HELD)
    phases = [phase for phase in Phase if any(span.phase is phase for span in run.timeline)]
    for phase in phases:
        bars = [(row_of[span.request_id], span.start_s, span.end_s) for span in run.timeline if span.phase is phase]
        _add_bars(axis, bars, _COLORS[phase], edge="white" if phase is Phase.PREFILL else None)
    axis.set_yticks(range(len(outcomes)), [_label(outcome) for outcome in outcomes])
    axis.set_ylim(-0.6, len(outcomes) - 0.4)
    axis.tick_params(axis="y", length=0)
    return [Patch(color=_WAITING, label="waiting"), *(Patch(color=_COLORS[phase], label=phase) for phase in phases)]


def _label(outcome: Outcome) -> str:
    arrival = outcome.arrival
    return f"{request_name(outcome.request_id)}: {arrival.prompt_tokens:,} in, {arrival.output_tokens:,} out"


def _draw_slots(axis: Axes, run: Run) -> list[Patch]:
    """A row for each slot; two blues take turns, so that one request ends visibly where the next begins."""
    spans = sorted(run.timeline, key=lambda span: (span.slot, span.start_s))
    decodes: tuple[list[_Bar], list[_Bar]] = ([], [])
    last_slot, last_request, turn = -1, -1, 0
    for span in spans:
        if span.phase is Phase.DECODE:
            if (span.slot, span.request_id) != (last_slot, last_request):
                turn = 1 - turn if span.slot == last_slot else 0
            last_slot, last_request = span.slot, span.request_id
            decodes[turn].append(_bar(span))
    for bars, color in zip(decodes, (_COLORS[Phase.DECODE], _NEXT_DECODE), strict=True):
        _add_bars(axis, bars, color)
    legend = [
        Patch(color=_COLORS[Phase.DECODE], label="decode"),
        Patch(color=_NEXT_DECODE, label="decode, next request"),
    ]
    for phase in (Phase.PREFILL, Phase.PADDING):
        bars = [_bar(span) for span in spans if span.phase is phase]
        if bars:
            _add_bars(axis, bars, _COLORS[phase])
            legend.append(Patch(color=_COLORS[phase], label=phase))
    lost = [span for span in spans if span.phase is Phase.PREEMPTED]
    if lost:
        color = _COLORS[Phase.PREEMPTED]
        axis.plot(
            [s.start_s for s in lost], [s.slot for s in lost], "|", color=color, markersize=5, markeredgewidth=1.5
        )
        legend.append(Patch(color=color, label="preempted"))
    axis.set_ylim(-0.6, spans[-1].slot + 0.6)
    axis.set_ylabel("slot")
    axis.yaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, min_n_ticks=1))
    return legend


def _bar(span: Span) -> _Bar:
    return span.slot, span.start_s, span.end_s


def _add_bars(axis: Axes, bars: Sequence[_Bar], color: str, edge: str | None = None) -> None:
    if not bars:
        return
    row, start, end = np.array(bars, np.float64).T
    low, high = row - 0.4, row + 0.4
    # [bars, 4 corners, 2]
    corners = np.stack([np.stack([start, start, end, end], 1), np.stack([low, high, high, low], 1)], 2)
    collection = PolyCollection(
        list(corners),
        facecolors=color,
        edgecolors=edge or color,
        linewidths=0.5 if edge else 0.0,
        antialiased=bool(edge),
    )
    axis.add_collection(collection, autolim=False)


def _draw_curves(queue: Axes, cache: Axes, runs: Mapping[str, Run]) -> None:
    alone = len(runs) == 1
    for (name, run), color in zip(runs.items(), _CURVES, strict=False):
        series = run.series
        times = np.append(np.frombuffer(series.times), _end(run))
        curves = [
            (queue, np.frombuffer(series.waiting, np.int64), color, "waiting" if alone else name),
            (cache, 100 * np.frombuffer(series.kv_usage), color, name),
        ]
        if alone:
            curves.append((queue, np.frombuffer(series.running, np.int64), _CURVES[2], "running"))
        for axis, values, line, label in curves:
            x, y = _thinned(times, np.append(values, 0.0))
            axis.step(x, y, where="post", color=line, label=label, linewidth=1.2)
            if alone:
                axis.fill_between(x, y, step="post", color=line, alpha=0.15, linewidth=0)
    queue.set_ylabel("requests" if alone else "waiting\nrequests")
    queue.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, min_n_ticks=1))
    queue.legend(loc="lower right", bbox_to_anchor=(1, 0.97), ncols=3, frameon=False)
    cache.set_ylabel("KV cache\nin use, %")
    for axis in (queue, cache):
        axis.set_ylim(bottom=0)
        axis.grid(axis="y", color="#e0e0e0", linewidth=0.6)


def _thinned(
    times: npt.NDArray[np.float64], values: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The largest value of each stretch of time."""
    if len(times) <= MAX_POINTS:
        return times, values
    edges = np.linspace(times[0], times[-1], MAX_POINTS + 1)[:-1]
    first = np.unique(np.searchsorted(times, edges))
    return times[first], np.maximum.reduceat(values, first)
