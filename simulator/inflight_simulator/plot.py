"""Plot of simulations: the use of slots, the queue, and the KV cache over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from inflight_simulator.outcome import Outcome, Phase, Run, Span
from inflight_simulator.panels import (
    BLUE,
    GRAY,
    GREEN,
    ORANGE,
    PALE,
    RED,
    SKY,
    Curve,
    Floats,
    draw_curves,
    open_at,
    panels,
)
from inflight_simulator.report import request_name

MAX_REQUEST_ROWS = 40
"""Most requests that get a row each; beyond it there is a row for each slot."""
SMALLEST_OUTLINED = 0.005
"""Share of the time axis from which a prefill chunk is wide enough to be outlined."""
MARK = 0.0015
"""Share of the time axis that marks a preemption."""

_IN_SLOT, _NEXT_DECODE = "waits in its slot", "decode, next request"
_COLORS: dict[str, str] = {
    "waiting": "#e4e4e4",
    _IN_SLOT: PALE,
    _NEXT_DECODE: SKY,
    Phase.PREFILL: ORANGE,
    Phase.DECODE: BLUE,
    Phase.PADDING: GRAY,
    Phase.PREEMPTED: RED,
}


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


_Bars = list[tuple[str, list[_Bar]]]
"""Bars by the name of their color, in the order in which they are drawn over each other."""


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
    # The scheduler takes the lowest free slot.
    rows = {
        name: len(visible[name]) if by_request else max((span.slot for span in spans[name]), default=0) + 1
        for name in runs
    }
    heights = [min(max(0.26 * count, 1.2), 5.0) + 0.3 for count in rows.values()]
    with panels(path, [*heights, 1.0, 1.0]) as (*timelines, queue, cache):
        for axis, (name, run) in zip(timelines, runs.items(), strict=True):
            if by_request:
                _draw_bars(axis, _bars_of_requests(visible[name], spans[name], run.stalls), rows[name], window)
                axis.set_yticks(range(rows[name]), [_label(outcome) for outcome in visible[name]])
                axis.tick_params(axis="y", length=0)
            else:
                _draw_bars(axis, _bars_of_slots(spans[name], window), rows[name], window)
                axis.set_ylabel("slot")
                axis.yaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, min_n_ticks=1))
            axis.set_title(name, fontweight="bold")
        curves = [
            _curves(name, run, color) for (name, run), color in zip(runs.items(), (BLUE, RED, GREEN), strict=False)
        ]
        if len(runs) == 1:
            waiting, running, _ = curves[0]
            queued = [waiting._replace(label="waiting"), running._replace(color=GREEN, label="running")]
        else:
            queued = [waiting for waiting, _, _ in curves]
        draw_curves(queue, "requests" if len(runs) == 1 else "waiting\nrequests", queued, window)
        draw_curves(cache, "KV cache\nin use, %", [in_use._replace(label="") for _, _, in_use in curves], window)


def _visible(run: Run, window: Window) -> list[Outcome]:
    """Returns the outcomes in the window, in order of arrival."""
    return sorted(
        (each for each in run.outcomes if window.shows(each.arrival.arrival_s, each.finished_s)),
        key=lambda outcome: outcome.request_id,
    )


def _label(outcome: Outcome) -> str:
    arrival = outcome.arrival
    return f"{request_name(outcome.request_id)}: {arrival.prompt_tokens:,} in, {arrival.output_tokens:,} out"


def _bars_of_requests(
    outcomes: Sequence[Outcome], spans: Sequence[Span], stalls: Sequence[tuple[float, float]]
) -> _Bars:
    """A row for each request, from its arrival to its end."""
    row_of = {outcome.request_id: row for row, outcome in enumerate(outcomes)}
    bars = {
        phase: [_Bar(row_of[s.request_id], s.start_s, s.end_s) for s in spans if s.phase is phase] for phase in Phase
    }
    stalled = [
        _Bar(row, *stall)
        for row, start_s, end_s in bars[Phase.DECODE]
        for stall in stalls
        if start_s <= stall[0] and stall[1] <= end_s
    ]
    return [
        ("waiting", [_Bar(row, each.arrival.arrival_s, each.admitted_s) for row, each in enumerate(outcomes)]),
        (_IN_SLOT, [_Bar(row, each.admitted_s, each.finished_s) for row, each in enumerate(outcomes)]),
        *bars.items(),
        (_IN_SLOT, stalled),
    ]


def _bars_of_slots(spans: Sequence[Span], window: Window) -> _Bars:
    """A row for each slot; two blues take turns, so that one request ends visibly where the next begins."""
    bars: dict[str, list[_Bar]] = {name: [] for name in (Phase.DECODE, _NEXT_DECODE, *Phase)}
    last: dict[int, tuple[int, str]] = {}
    for span in sorted(spans, key=lambda span: span.start_s):
        color, end_s = str(span.phase), span.end_s
        if span.phase is Phase.DECODE:
            request_id, color = last.get(span.slot, (-1, _NEXT_DECODE))
            if request_id != span.request_id:
                color = _NEXT_DECODE if color == Phase.DECODE else Phase.DECODE
            last[span.slot] = (span.request_id, color)
        elif span.phase is Phase.PREEMPTED:
            end_s = span.start_s + MARK * (window.end - window.begin)
        bars[color].append(_Bar(span.slot, span.start_s, end_s))
    return list(bars.items())


def _draw_bars(axis: Axes, bars: _Bars, num_rows: int, window: Window) -> None:
    # Between more rows there is no room for a gap.
    half = 0.4 if num_rows <= MAX_REQUEST_ROWS else 0.5
    for name, group in bars:
        if not group:
            continue
        row, start, end = np.array(group, np.float64).T
        low, high = row - half, row + half
        # [bars, 4 corners, 2]
        corners = np.stack([np.stack([start, start, end, end], 1), np.stack([low, high, high, low], 1)], 2)
        outlined = name == Phase.PREFILL and max(end - start) > SMALLEST_OUTLINED * (window.end - window.begin)
        edges: dict[str, Any] = (
            {"edgecolors": "white", "linewidths": 0.5} if outlined else {"linewidths": 0.0, "antialiased": False}
        )
        axis.add_collection(PolyCollection(list(corners), facecolors=_COLORS[name], **edges), autolim=False)
    axis.set_ylim(num_rows - 0.4, -0.6)
    legend = [Patch(color=_COLORS[name], label=name) for name in dict.fromkeys(name for name, group in bars if group)]
    axis.legend(handles=legend, loc="lower right", bbox_to_anchor=(1, 1), ncols=len(legend), frameon=False)


def _curves(name: str, run: Run, color: str) -> tuple[Curve, Curve, Curve]:
    """Returns waiting requests, running ones, and the percentage of the KV cache that is in use."""
    times = np.append(np.frombuffer(run.series.times), max(outcome.finished_s for outcome in run.outcomes))
    running = np.append(np.frombuffer(run.series.running, np.int64), 0)
    in_use = np.append(100 * np.frombuffer(run.series.kv_usage), 0.0)
    return Curve(*_waiting(run), color, name), Curve(times, running, color, name), Curve(times, in_use, color, name)


def _waiting(run: Run) -> tuple[Floats, Floats]:
    """Returns times in seconds, and from each on the number of arrived requests without a slot."""
    lost = [(span.start_s, span.end_s) for span in run.timeline if span.phase is Phase.PREEMPTED]
    begun, ended = np.array([(each.arrival.arrival_s, each.admitted_s) for each in run.outcomes] + lost).T
    times = np.unique([begun, ended])
    return times, open_at(times, begun, ended)
