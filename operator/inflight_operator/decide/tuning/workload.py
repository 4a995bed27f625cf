"""Workload of the last minutes: limits follow a shift of the traffic sooner than replicas do."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

from inflight_cost.capacity import Workload
from inflight_operator.decide.replicas.demand import LONGEST_STEP, DemandHistory, points_of

SECONDS, REQUESTS = 120.0, 200.0
"""Minimum seconds and requests of the newest demand that are used, as far as there are."""

FEWEST = 20.0
"""Minimum number of requests from which their mean sizes are used."""


def recent_workload(demand: DemandHistory) -> Workload | None:
    """`demand.workload` with the latest prompts; unchanged if engines do not report arrivals."""
    return None if demand.workload is None else _recent(demand.series, demand.workload)


@lru_cache(maxsize=4)
def _recent(series: bytes, known: Workload) -> Workload:
    """Args: series: points of `DemandHistory`; a round asks several times."""
    seconds = requests = tokens = squares = 0.0
    for was, point in reversed(list(pairwise(points_of(series)))):
        width = min(point.time - was.time, LONGEST_STEP)
        seconds += width
        requests += point.requests * width
        tokens += point.tokens * width
        squares += point.squares * width
        if seconds >= SECONDS and requests >= REQUESTS:
            break
    if requests < FEWEST or tokens <= 0 or squares <= 0:
        return known
    prompt = tokens / requests
    return replace(
        known,
        prompt=prompt,
        computed=prompt * known.computed / known.prompt,
        prompt_square=max(squares / requests, prompt**2),
    )
