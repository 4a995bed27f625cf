"""Measured numbers and their statistics: medians, spreads, ratios."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias


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


def number(value: float) -> str:
    """Three significant digits, and no fewer digits than a whole number has."""
    if value == 0 or abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
