"""Prometheus histograms as values: differences, sums over pods, percentiles."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import lt, sub


@dataclass(frozen=True, slots=True)
class Histogram:
    """Cumulative buckets of one histogram.

    Attributes:
        bounds: upper bounds, rising, the last one infinity. Engines of one version share one tuple.
        counts: observations at or below each bound; kept as an array of doubles, which takes a quarter of a tuple's
            memory, and never changed.
        total: sum of all observations.
    """

    bounds: tuple[float, ...] = ()
    counts: Sequence[float] = ()
    total: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.counts, array):
            object.__setattr__(self, "counts", array("d", self.counts))

    @property
    def count(self) -> float:
        return self.counts[-1] if self.counts else 0.0

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count > 0 else None

    def follows(self, earlier: Histogram) -> bool:
        """Returns True if this is a later state of the same process's histogram. A decreased count means that the
        process restarted, other bounds mean another version of the engine: all of this histogram is new then."""
        return earlier.bounds == self.bounds and not any(map(lt, self.counts, earlier.counts))

    def since(self, earlier: Histogram) -> Histogram:
        """Observations after `earlier`."""
        if not self.follows(earlier):
            return self
        counts = [*map(sub, self.counts, earlier.counts)]
        return Histogram(self.bounds, counts, max(0.0, self.total - earlier.total))

    def percentile(self, q: float) -> float | None:
        """The `q`-quantile (0 to 1), linear within its bucket as PromQL's histogram_quantile; None without
        observations. Values above the last finite bound are reported as that bound."""
        if self.count <= 0:
            return None
        rank = q * self.count
        index = next(i for i, count in enumerate(self.counts) if count >= rank and count > 0)
        upper = self.bounds[index]
        if math.isinf(upper):
            return self.bounds[index - 1] if index > 0 else None
        lower = self.bounds[index - 1] if index > 0 else min(0.0, upper)
        below = self.counts[index - 1] if index > 0 else 0.0
        return lower + (upper - lower) * (rank - below) / (self.counts[index] - below)

    def share_within(self, bound: float) -> float:
        """Share of the observations at or below `bound`, linear within its bucket; 1 without observations."""
        return self.count_within(bound) / self.count if self.count > 0 else 1.0

    def count_within(self, bound: float) -> float:
        """Returns the number of observations at or below `bound`, linear within its bucket."""
        if not self.counts:
            return 0.0
        index = min(bisect_left(self.bounds, bound), len(self.bounds) - 1)
        lower, below = (self.bounds[index - 1], self.counts[index - 1]) if index > 0 else (0.0, 0.0)
        upper = self.bounds[index]
        if math.isinf(upper):
            return below
        part = min(1.0, (bound - lower) / (upper - lower)) if upper > lower else 1.0
        return below + (self.counts[index] - below) * part

    def share_above(self, bound: float) -> float:
        """Share of the observations that are above `bound` for certain: not those in its bucket; 0 without any."""
        if self.count <= 0:
            return 0.0
        return 1 - self.counts[bisect_left(self.bounds, bound)] / self.count


def summed(histograms: Iterable[Histogram]) -> Histogram:
    """The sum of histograms; where bounds differ (pods of two versions side by side) buckets are merged at the bounds
    that all share, which keeps counts exact and percentiles coarser."""
    parts = [one for one in histograms if one.bounds]
    if not parts:
        return Histogram()
    total, bounds = sum(one.total for one in parts), parts[0].bounds
    if all(one.bounds == bounds for one in parts):
        return Histogram(bounds, [*map(sum, zip(*(one.counts for one in parts), strict=True))], total)
    shared = sorted(set.intersection(*(set(one.bounds) for one in parts)))
    counts = [sum(one.counts[one.bounds.index(bound)] for one in parts) for bound in shared]
    return Histogram(tuple(shared), counts, total)
