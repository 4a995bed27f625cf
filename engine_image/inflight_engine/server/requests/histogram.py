"""A histogram for one thread that counts many equal observations at once."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client.utils import floatToGoString


class Histogram:
    """Counts per bucket and their sum, in Prometheus' sense (a bucket holds what is at most its bound).

    prometheus-client's own takes a lock and walks the bounds for every observation; the tokens of one decode step all
    have the same inter-token latency, so here they are one call.
    """

    __slots__ = ("_bounds", "_counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds`: increasing, without infinity."""
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += count
        self.sum += value * count

    def buckets(self) -> Iterator[tuple[str, float]]:
        """`le` and the cumulative count, ending with +Inf."""
        bounds = (*self._bounds, float("inf"))
        return zip(map(floatToGoString, bounds), map(float, accumulate(self._counts)), strict=True)
