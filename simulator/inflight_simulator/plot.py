"""Plot of simulations: the use of slots, the queue, and the KV cache over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

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
"""Most requests that get a row each; beyond it there is a row for each slot."""
MAX_POINTS = 3000
"""Most points of a curve; more are drawn as the largest of each stretch."""
SMALLEST_OUTLINED = 0.005
"""Share of the time axis from which a prefill chunk is wide enough to be outlined."""

# Okabe and Ito's palette, which colour-blind readers can distinguish.
_WAITING, _PAUSED = "#e4e4e4", "#b5dcf2"
_COLORS = {
    Phase.PREFILL: "#e69f00",
    Phase.DECODE: "#0072b2",
    Phase.PADDING: "#9a9a9a",
    Phase.PREEMPTED: "#d55e00",
}
_NEXT_DECODE = "#56b4e9"
COLORS_OF_CURVES = ("#0072b2", "#d55e00", "#009e73")

STYLE: Any = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.titlelocation": "left"}


class Window(NamedTuple):
    """Seconds that are drawn."""

    begin: float
    end: float

    def shows(self, start_s: float, end_s: float) -> bool:
        return start_s < self.end and end_s > self.begin


class _Bar(NamedTuple):
    row: int
    start_s: float
    end_s: float


def whole(runs: Mapping[str, Run]) -> Window:
    """Returns the time from the first arrival to the last end."""
    outcomes = [outcome for run in runs.values() for outcome in run.outcomes]
    return Window(min(each.arrival.arrival_s for each in outcomes), max(each.finished_s for each in outcomes))


def plot(path: Path, runs: Mapping[str, Run], window: Window) -> None:
    """Draw simulations of the same requests over one time axis: a timeline of each, by name, above queue and KV cache.

    Raises:
        OSError: the file cannot be written.
    """
    visible = {name: _visible(run, window) for name, run in runs.items()}
    by_request = all(len(outcomes) <= MAX_REQUEST_ROWS for outcomes in visible.values())
    spans = {
        name: [span for span in run.timeline if window.shows(span.start_s, span.end_s)] for name, run in runs.items()
    }
    heights = [_timeline_height(len(visible[name]) if by_request else _num_slots(spans[name])) for name in runs]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(11, sum(heights) + 3.2), dpi=110, layout="constrained")
        axes: list[Axes] = figure.subplots(
            len(runs) + 2, 1, sharex=True, squeeze=False, height_ratios=[*heights, 1.0, 1.0]
        )[:, 0].tolist()
        for axis, name in zip(axes, runs, strict=False):
            if by_request:
                legend = _draw_requests(axis, visible[name], spans[name], runs[name].stalls, window)
            else:
                legend = _draw_slots(axis, spans[name])
            axis.set_title(name, fontweight="bold")
            axis.invert_yaxis()
            axis.legend(handles=legend, loc="lower right", bbox_to_anchor=(1, 1), ncols=len(legend), frameon=False)
        _draw_curves(axes[-2], axes[-1], runs, window)
        margin = 0.005 * (window.end - window.begin)
        axes[-1].set_xlim(window.begin - margin, window.end + margin)
        axes[-1].set_xlabel("seconds")
        figure.savefig(path, format="png")


def _visible(run: Run, window: Window) -> list[Outcome]:
    """Returns the outcomes in the window, in order of arrival."""
    return sorted(
        (each for each in run.outcomes if window.shows(each.arrival.arrival_s, each.finished_s)),
        key=lambda outcome: outcome.request_id,
    )


def _num_slots(spans: Sequence[Span]) -> int:
    """Returns the number of slots up to the last one in use: the scheduler takes the lowest free one."""
    return max((span.slot for span in spans), default=0) + 1


def _timeline_height(rows: int) -> float:
    """Returns the height in inches."""
    return min(max(0.26 * rows, 1.2), 5.0) + 0.3


def _draw_requests(
    axis: Axes,
    outcomes: Sequence[Outcome],
    spans: Sequence[Span],
    stalls: Sequence[tuple[float, float]],
    window: Window,
) -> list[Patch]:
    """A row for each request, from its arrival to its end."""
    row_of = {outcome.request_id: row for row, outcome in enumerate(outcomes)}
    waiting = [_Bar(row, each.arrival.arrival_s, each.admitted_s) for row, each in enumerate(outcomes)]
    held = [_Bar(row, each.admitted_s, each.finished_s) for row, each in enumerate(outcomes)]
    _add_bars(axis, waiting, _WAITING, edge="#bdbdbd")
    _add_bars(axis, held, _PAUSED)
    phases = [phase for phase in Phase if any(span.phase is phase for span in spans)]
    for phase in phases:
        bars = [_Bar(row_of[span.request_id], span.start_s, span.end_s) for span in spans if span.phase is phase]
        longest = max(bar.end_s - bar.start_s for bar in bars)
        outlined = phase is Phase.PREFILL and longest > SMALLEST_OUTLINED * (window.end - window.begin)
        _add_bars(axis, bars, _COLORS[phase], edge="white" if outlined else None)
    stalled = [
        _Bar(row_of[span.request_id], *stall)
        for span in spans
        if span.phase is Phase.DECODE
        for stall in stalls
        if span.start_s <= stall[0] and stall[1] <= span.end_s
    ]
    _add_bars(axis, stalled, _PAUSED)
    axis.set_yticks(range(len(outcomes)), [_label(outcome) for outcome in outcomes])
    axis.set_ylim(-0.6, len(outcomes) - 0.4)
    axis.tick_params(axis="y", length=0)
    legend = [Patch(color=_WAITING, label="waiting"), *(Patch(color=_COLORS[phase], label=phase) for phase in phases)]
    if stalled or _has_gaps(spans):
        legend.append(Patch(color=_PAUSED, label="waits in its slot"))
    return legend


def _has_gaps(spans: Sequence[Span]) -> bool:
    """A request has a slot but is not computed: other requests used the budget of the step."""
    in_order = sorted(spans, key=lambda span: (span.request_id, span.start_s))
    return any(
        before.request_id == after.request_id and before.end_s < after.start_s for before, after in pairwise(in_order)
    )


def _label(outcome: Outcome) -> str:
    arrival = outcome.arrival
    return f"{request_name(outcome.request_id)}: {arrival.prompt_tokens:,} in, {arrival.output_tokens:,} out"


def _draw_slots(axis: Axes, visible: Sequence[Span]) -> list[Patch]:
    """A row for each slot; two blues take turns, so that one request ends visibly where the next begins."""
    spans = sorted(visible, key=lambda span: (span.slot, span.start_s))
    num_slots = _num_slots(spans)
    # Between more rows there is no room for a gap.
    half = 0.4 if num_slots <= MAX_REQUEST_ROWS else 0.5
    decodes: tuple[list[_Bar], list[_Bar]] = ([], [])
    last_slot, last_request, turn = -1, -1, 0
    for span in spans:
        if span.phase is Phase.DECODE:
            if (span.slot, span.request_id) != (last_slot, last_request):
                turn = 1 - turn if span.slot == last_slot else 0
            last_slot, last_request = span.slot, span.request_id
            decodes[turn].append(_bar_in_slot(span))
    for bars, color in zip(decodes, (_COLORS[Phase.DECODE], _NEXT_DECODE), strict=True):
        _add_bars(axis, bars, color, half=half)
    legend = [
        Patch(color=_COLORS[Phase.DECODE], label="decode"),
        Patch(color=_NEXT_DECODE, label="decode, next request"),
    ]
    for phase in (Phase.PREFILL, Phase.PADDING):
        bars = [_bar_in_slot(span) for span in spans if span.phase is phase]
        if bars:
            _add_bars(axis, bars, _COLORS[phase], half=half)
            legend.append(Patch(color=_COLORS[phase], label=phase))
    lost = [span for span in spans if span.phase is Phase.PREEMPTED]
    if lost:
        color = _COLORS[Phase.PREEMPTED]
        axis.plot(
            [s.start_s for s in lost], [s.slot for s in lost], "|", color=color, markersize=5, markeredgewidth=1.5
        )
        legend.append(Patch(color=color, label="preempted"))
    axis.set_ylim(-0.6, num_slots - 0.4)
    axis.set_ylabel("slot")
    axis.yaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, min_n_ticks=1))
    return legend


def _bar_in_slot(span: Span) -> _Bar:
    return _Bar(span.slot, span.start_s, span.end_s)


def _add_bars(axis: Axes, bars: Sequence[_Bar], color: str, edge: str | None = None, half: float = 0.4) -> None:
    if not bars:
        return
    row, start, end = np.array(bars, np.float64).T
    low, high = row - half, row + half
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


def _draw_curves(queue: Axes, cache: Axes, runs: Mapping[str, Run], window: Window) -> None:
    alone = len(runs) == 1
    for (name, run), color in zip(runs.items(), COLORS_OF_CURVES, strict=False):
        end = max(outcome.finished_s for outcome in run.outcomes)
        times = np.append(np.frombuffer(run.series.times), end)
        curves = [
            (queue, *_waiting(run), color, "waiting" if alone else name),
            (cache, times, np.append(100 * np.frombuffer(run.series.kv_usage), 0.0), color, name),
        ]
        if alone:
            running = np.append(np.frombuffer(run.series.running, np.int64), 0)
            curves.append((queue, times, running.astype(np.float64), COLORS_OF_CURVES[2], "running"))
        for axis, x, y, line, label in curves:
            x, y = _thinned(x, y, window)
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


_Curve = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]
"""Times, and the state from each on."""


def _waiting(run: Run) -> _Curve:
    """Arrived requests without a slot."""
    changes = [(each.arrival.arrival_s, 1) for each in run.outcomes]
    changes += [(each.admitted_s, -1) for each in run.outcomes]
    for span in run.timeline:
        if span.phase is Phase.PREEMPTED:
            changes += [(span.start_s, 1), (span.end_s, -1)]
    times, by = np.array(sorted(changes), np.float64).T
    # Of changes at one time only the last is valid from then on.
    last = np.append(np.flatnonzero(np.diff(times)), len(times) - 1)
    return times[last], np.cumsum(by)[last]


def _thinned(times: npt.NDArray[np.float64], values: npt.NDArray[np.float64], window: Window) -> _Curve:
    """Points in the window, at most MAX_POINTS: the largest of each stretch."""
    begin = max(int(np.searchsorted(times, window.begin, "right")) - 1, 0)
    # One more, to which the curve goes on.
    end = int(np.searchsorted(times, window.end, "right")) + 1
    times, values = times[begin:end], values[begin:end]
    if len(times) <= MAX_POINTS:
        return times, values
    first = np.unique(np.searchsorted(times, np.linspace(times[0], times[-1], MAX_POINTS + 1)[:-1]))
    return times[first], np.maximum.reduceat(values, first)
