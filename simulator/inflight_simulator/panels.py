"""Form of all plots: panels with curves over time, one above the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

Floats = npt.NDArray[np.float64]

# Okabe and Ito's palette, which colour-blind readers can distinguish.
BLUE, RED, GREEN, ORANGE, PINK, SKY = "#0072b2", "#d55e00", "#009e73", "#e69f00", "#cc79a7", "#56b4e9"
GRAY, PALE = "#9a9a9a", "#b5dcf2"

_STYLE: Any = {
    **{"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.titlelocation": "left"},
    # Agg cannot rasterize a path of very many points at once.
    "agg.path.chunksize": 10_000,
}


class Curve(NamedTuple):
    """Values that each hold from their time, in seconds, to that of the next."""

    times: npt.ArrayLike
    values: npt.ArrayLike
    color: str
    label: str = ""


@contextmanager
def panels(path: Path, heights: Sequence[float], *, one_time_axis: bool = True) -> Iterator[list[Axes]]:
    """Gives panels of these heights in inches to draw in, and writes them as a PNG at the end.

    Raises:
        OSError: the file cannot be written.
    """
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(11, sum(heights) + 1.2), dpi=110, layout="constrained")
        axes = figure.subplots(len(heights), 1, sharex=one_time_axis, squeeze=False, height_ratios=heights)
        yield axes[:, 0].tolist()
        axes[-1, 0].set_xlabel("seconds")
        figure.savefig(path, format="png")


def draw_curves(axis: Axes, label: str, curves: Sequence[Curve], window: tuple[float, float]) -> None:
    """Draws what curves have between two times; the legend has those with a label."""
    begin, end = window
    for curve in curves:
        times, values = np.asarray(curve.times, np.float64), np.asarray(curve.values, np.float64)
        # From the value at the beginning to the one that the curve goes on to.
        shown = slice(max(int(times.searchsorted(begin, "right")) - 1, 0), int(times.searchsorted(end, "right")) + 1)
        axis.step(times[shown], values[shown], where="post", color=curve.color, label=curve.label, linewidth=1.3)
    axis.set_ylabel(label)
    axis.set_ylim(bottom=0)
    axis.set_xlim(begin - 0.005 * (end - begin), end + 0.005 * (end - begin))
    axis.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
    axis.grid(axis="y", color="#e0e0e0", linewidth=0.6)
    if any(curve.label for curve in curves):
        axis.legend(loc="lower right", bbox_to_anchor=(1, 0.97), ncols=len(curves), frameon=False)


def open_at(times: Floats, begun: Floats, ended: Floats) -> Floats:
    """Returns how many of the intervals [begun, ended) contain each time."""
    before, after = (np.searchsorted(np.sort(edges), times, "right") for edges in (begun, ended))
    return (before - after).astype(np.float64)
