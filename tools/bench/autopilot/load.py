"""The load that settings are compared at: just below the highest one of which a fixed setting keeps nearly all.

Beyond the load that an engine can carry, the share of requests that keep their targets falls off a cliff: a queue that
grew once stays, and the same setting keeps nearly all of one window and half of the next. A difference between two
settings there is chance. Below, a setting that is good enough keeps all, and a bad one still shows: what it lacks of
the best setting's capacity is late.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

CARRIED = 0.95
"""Share of its requests that the best fixed setting keeps, at least, of a load that the engine carries."""

SPARE = 0.9
"""Share of the highest such load that settings are compared at."""

POOR = 0.80
"""Share of its requests below which a setting is clearly worse than the best one."""

_STEP, _CLOSE = 1.15, 1.08
"""Factor between two probes while all of them are carried, or none; and between those that end the search."""
_MOST_PROBES = 9


async def found_load(first: int, kept: Callable[[int], Awaitable[float]]) -> int:
    """Returns the number of requests in one slice of the trace: `SPARE` of the most that are carried twice in a row.

    Args:
        first: number of requests that the search begins with.
        kept: measures the share that the best setting keeps of so many requests.
    """
    below, above = 0, math.inf
    requests = max(1, first)
    for _ in range(_MOST_PROBES):
        if await kept(requests) >= CARRIED and await kept(requests) >= CARRIED:
            below = requests
        else:
            above = requests
        if above <= max(below * _CLOSE, below + 1):
            break
        if math.isinf(above):
            requests = math.ceil(below * _STEP)
        elif below == 0:
            requests = math.floor(above / _STEP)
        else:
            requests = round(math.sqrt(below * above))
    return max(1, math.floor((below or requests) * SPARE))
