"""A series' next value, as Dynamo's planner predicts its load."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

FEWEST = 5
"""Points from which there is a model; before, the last value is the forecast."""


def next_value(series: Sequence[float]) -> float:
    """ARIMA(1, 1, 0) without a constant, by least squares: the last difference goes on by a share of itself.

    Dynamo lets pmdarima choose the order; with the 20 points of an hour this is what is left to choose. Never below 0.
    """
    if len(series) < FEWEST:
        return series[-1]
    steps = [after - before for before, after in pairwise(series)]
    squares = sum(step * step for step in steps[:-1])
    share = sum(before * after for before, after in pairwise(steps)) / squares if squares else 0.0
    # Outside of (-1, 1) the model is not stationary and would run away.
    return max(0.0, series[-1] + min(max(share, -1.0), 1.0) * steps[-1])
