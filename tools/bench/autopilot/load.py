"""The load at which the best fixed setting is not enough for all requests, so that settings can be told apart."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

LOW, HIGH = 0.80, 0.95
"""Share of its requests that the best fixed setting keeps, at least and at most."""

_STEP = 1.15
"""Factor between two loads while the wanted one is not yet between two that were probed. Where requests that are too
many are late and no others, it does not lead past loads of which `LOW` to `HIGH` are kept."""
_MOST_PROBES = 9


@dataclass(frozen=True, slots=True)
class Load:
    """A load and what was measured with it.

    Attributes:
        requests: in one slice of the trace.
        kept: share of them that the best setting kept, 0 to 1.
    """

    requests: int
    kept: float

    @property
    def tells_apart(self) -> bool:
        """True if the best setting keeps neither all requests nor too few."""
        return LOW <= self.kept <= HIGH


async def found_load(first: int, kept: Callable[[int], Awaitable[float]]) -> Load:
    """Searches by probes, from `first` requests on, until one tells settings apart.

    Args:
        kept: measures the share that the best setting keeps of so many requests.

    Returns the probe that comes nearest to the middle of the wanted shares: where no probe is between them, too.
    """
    probes: dict[int, Load] = {}
    below, above = 0, math.inf
    requests = max(1, first)
    while requests not in probes and len(probes) < _MOST_PROBES:
        probe = probes[requests] = Load(requests, await kept(requests))
        if probe.tells_apart:
            return probe
        if probe.kept > HIGH:
            below = max(below, requests)
        else:
            above = min(above, requests)
        if math.isinf(above):
            requests = math.ceil(below * _STEP)
        elif below == 0:
            requests = max(1, math.floor(above / _STEP))
        else:
            requests = round(math.sqrt(below * above))
    return min(probes.values(), key=lambda each: abs(each.kept - (LOW + HIGH) / 2))
