"""Measured figures with their spread, and results as a table for a person and as JSON."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tools.measure import report as measure

_WIDTH = 118


@dataclass(frozen=True, slots=True)
class Figure:
    """Several runs of one measurement: the median, and the least and most."""

    median: float
    least: float
    most: float
    num_runs: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Figure:
        """Raises ValueError without a value."""
        if not values:
            raise ValueError("a figure needs at least one run")
        return cls(statistics.median(values), min(values), max(values), len(values))

    def __str__(self) -> str:
        if self.num_runs == 1:
            return number(self.median)
        return f"{number(self.median)} ({number(self.least)}-{number(self.most)})"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no figure: one line."""

    reason: str


Cell: TypeAlias = Figure | Failure | None
"""Cell of a table. None: not measured, because the engine has no such thing or was not chosen."""


def ratio(ours: Cell, theirs: Cell, *, more_is_better: bool) -> float | None:
    """Returns how many times better ours is, by the medians; None if there is nothing to compare."""
    if not isinstance(ours, Figure) or not isinstance(theirs, Figure):
        return None
    return ours.median / theirs.median if more_is_better else theirs.median / ours.median


def shares(result: Result, whole: Result) -> str:
    """Each engine's figure as a share of its own in another row."""
    engines = {"Inflight": (result.ours, whole.ours), "one core": (result.one_core, whole.one_core)}
    engines |= {name: (cell, whole.peers.get(name)) for name, cell in result.peers.items()}
    of = {name: ratio(*each, more_is_better=True) for name, each in engines.items()}
    written = ", ".join(f"{name} {share:.1%}" for name, share in of.items() if share is not None)
    return f"share of {whole.title}: {written}" if written else ""


def number(value: float) -> str:
    """Three significant digits, and no fewer digits than a whole number has."""
    if value == 0 or abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


@dataclass(frozen=True, slots=True)
class Result:
    """A row.

    Attributes:
        unit: unit of all its figures, such as tokens/s.
        peers: cells of the peers, by title of the column.
        limit: upper bound by the machine, in the same unit; None: unknown.
        limit_by: `memory`, `matrix` or both.
        note: remark on the row's ratio or conditions.
        one_core: our figure on one core; None: not a row about cores.
    """

    title: str
    unit: str
    more_is_better: bool
    ours: Cell
    peers: dict[str, Cell] = field(default_factory=dict)
    limit: float | None = None
    limit_by: str = ""
    note: str = ""
    one_core: Cell = None


@dataclass(frozen=True, slots=True)
class Report:
    """All of a run.

    Attributes:
        machine: what it ran on, a line each.
        engines: what each engine says of itself, a line each.
        columns: titles of the peers.
    """

    machine: tuple[str, ...]
    engines: tuple[str, ...]
    columns: tuple[str, ...]
    results: tuple[Result, ...]


def cells(report: Report) -> tuple[list[str], list[list[str]], list[str]]:
    """Header, rows, and the notes that the cells refer to by number."""
    notes: list[str] = []

    def reference(text: str) -> str:
        if text not in notes:
            notes.append(text)
        return f"[{notes.index(text) + 1}]"

    def show(cell: Cell) -> str:
        if isinstance(cell, Failure):
            return f"failed {reference(cell.reason)}"
        return "-" if cell is None else str(cell)

    header = ["", "unit", "Inflight", "limit", "share of limit", "one core", "all cores / one"]
    for column in report.columns:
        header += [column, f"Inflight / {column}"]
    rows = []
    for result in report.results:
        title = f"{result.title} {reference(result.note)}" if result.note else result.title
        row = [title, result.unit, show(result.ours), *_roofline(result)]
        for cell in (result.one_core, *map(result.peers.get, report.columns)):
            times = ratio(result.ours, cell, more_is_better=result.more_is_better)
            row += [show(cell), "-" if times is None else f"{times:.2f}x"]
        rows.append(row)
    return header, rows, notes


def _roofline(result: Result) -> tuple[str, str]:
    if result.limit is None:
        return "-", "-"
    limit = f"{number(result.limit)} ({result.limit_by})"
    if not isinstance(result.ours, Figure):
        return limit, "-"
    share = result.ours.median / result.limit if result.more_is_better else result.limit / result.ours.median
    return limit, f"{share:.0%}"


_EXPLANATIONS = (
    "Figures are medians, with minimum and maximum of several runs in parentheses. Ratios above 1 mean that Inflight, "
    "or the run on all cores, is faster.",
    "Limit: the roofline model's upper bound for this machine, from memory bandwidth and the peak of matrix products, "
    "both measured in this run.",
)


def text(report: Report) -> str:
    """Formats the report for a terminal."""
    header, rows, notes = cells(report)
    lines = [*report.machine, *report.engines, "", *measure.table([header, *rows]), ""]
    for line in (*(f"[{index}] {note}" for index, note in enumerate(notes, 1)), *_EXPLANATIONS):
        lines += textwrap.wrap(line, _WIDTH)
    return "\n".join(lines)
