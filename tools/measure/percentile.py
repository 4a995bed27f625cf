"""Percentiles of measured values."""

from __future__ import annotations

import math
from collections.abc import Sequence


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values, 0 to 1, do not exceed (nearest rank).

    Raises:
        ValueError: no values.
    """
    if not values:
        raise ValueError("a percentile needs at least one value")
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def rounded_percentile(values: Sequence[float], share: float) -> float | None:
    """Returns the percentile to three decimals; None without values."""
    return round(percentile(values, share), 3) if values else None
