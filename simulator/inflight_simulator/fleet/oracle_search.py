"""The oracle's schedule: few replicas that reach the attainment, found by repeated simulation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from inflight_simulator.fleet.config import FleetConfig
from inflight_simulator.fleet.outcome import FleetRun
from inflight_simulator.fleet.requests import Counts, Requests
from inflight_simulator.fleet.scalers.oracle import STRETCH_S, Oracle, needed, start_up_stretches
from inflight_simulator.fleet.view import Scaler

ATTAINMENT = 0.99
MOST_RUNS = 8
MARGIN, LESS = 0.9, 0.85
"""Share of the capacity model's need that the first simulation has; each further one that has too much has `LESS` of
the one before."""
_MISSED = 0.01
"""Share of the requests of a stretch that may miss their targets before it gets more replicas."""
_MORE = 0.1
"""Of its replicas, at least one."""
_AVOIDABLE = 0.0005
"""Share of all requests: if fewer miss after the first start-up, more replicas do not help."""


def search_oracle(requests: Requests, config: FleetConfig, simulate: Callable[[Scaler], FleetRun]) -> FleetRun:
    """The cheapest run that keeps `ATTAINMENT`, of at most `MOST_RUNS` simulations; where none does, the best one.

    Margins on the capacity model's need decrease until they are too small. After that each stretch in which requests
    missed their targets gets more replicas, and so does the previous one, until the attainment is reached. Requests
    that arrive before a replica could be ordered for them miss their targets in any case.

    Args:
        simulate: runs all requests under a scaler.
    """
    need = needed(requests, config)
    # The first decision comes at the end of the first stretch.
    orderable = start_up_stretches(config.start_up_s) + 1
    margin, falling = MARGIN, True
    counts = need.counts(margin)
    runs: list[FleetRun] = []
    for _ in range(MOST_RUNS):
        run = simulate(Oracle(need.begin_s, counts, config.start_up_s))
        runs.append(run)
        enough = run.attainment >= ATTAINMENT
        if enough and not falling:
            break
        if enough:
            margin *= LESS
            counts = need.counts(margin)
            continue
        falling = False
        missed, total = _missed(run, need.begin_s, len(counts))
        if missed[orderable:].sum() < _AVOIDABLE * len(requests):
            break
        counts = _raised(counts, missed / np.maximum(total, 1) > _MISSED, orderable)
    kept = [run for run in runs if run.attainment >= ATTAINMENT]
    if kept:
        return min(kept, key=lambda run: run.replica_hours)
    return max(runs, key=lambda run: run.attainment)


def _missed(run: FleetRun, begin_s: float, stretches: int) -> tuple[Counts, Counts]:
    """int64 [stretches] each: requests that missed their targets, by stretch of their arrival, and all requests."""
    stretch = np.minimum((run.arrival_s - begin_s) // STRETCH_S, stretches - 1).astype(np.int64)
    return np.bincount(stretch, ~run.kept, stretches).astype(np.int64), np.bincount(stretch, minlength=stretches)


def _raised(counts: Sequence[int], late: npt.NDArray[np.bool_], orderable: int) -> list[int]:
    """More replicas for the stretches that are `late`, and for those before them, as far as they can be ordered."""
    wanted = late.copy()
    wanted[:-1] |= late[1:]
    wanted[:orderable] = False
    return [
        count + max(1, math.ceil(_MORE * count)) if more else count
        for count, more in zip(counts, wanted.tolist(), strict=True)
    ]
