"""`oracle`: knows all future requests and the start-up time, and so is an upper bound for scalers.

For each stretch of time the capacity model (`inflight_cost.capacity`) says how many replicas the requests of that
stretch need. The oracle orders the most that are needed until a replica ordered now would be ready, so that each is
ready when needed, and a gap is bridged if that is cheaper than a new start.

The capacity model uses means. `search_oracle` finds by simulation where fewer replicas suffice and where more are
needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from inflight_cost.capacity import Replica, Workload, largest_rate
from inflight_simulator.fleet.commands.traffic import workload_of
from inflight_simulator.fleet.config import FleetConfig
from inflight_simulator.fleet.outcome import FleetRun
from inflight_simulator.fleet.requests import Counts, Requests
from inflight_simulator.fleet.scalers.signals import rounded_up
from inflight_simulator.fleet.view import FleetView, Scaler

STRETCH_S = 5.0
"""Seconds for which one number of replicas is needed; also between two decisions."""
MEAN_S = 15.0
"""Seconds whose mean is taken for the stretch in their middle: less would follow noise that a queue smooths."""


@dataclass(frozen=True, slots=True)
class Need:
    """Replicas, in fractions, that the requests of each stretch of `STRETCH_S` need, from `begin_s` on."""

    begin_s: float
    replicas: tuple[float, ...]

    def counts(self, margin: float) -> list[int]:
        """Whole replicas for `margin` times the need."""
        return [max(1, rounded_up(margin * each)) for each in self.replicas]


def needed(requests: Requests, config: FleetConfig) -> Need:
    """Returns the need by the capacity model, at the limits and targets of `config`."""
    begin = float(requests.arrival_s[0])
    stretches = int((float(requests.arrival_s[-1]) - begin) // STRETCH_S) + 1
    middle = begin + STRETCH_S * (np.arange(stretches) + 0.5)
    starts, ends = np.searchsorted(requests.arrival_s, [middle - MEAN_S / 2, middle + MEAN_S / 2], "left")
    replicas = [
        _replicas(requests, slice(start, end), config)
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    ]
    return Need(begin, tuple(replicas))


def largest_rate_of(load: Workload, config: FleetConfig) -> float:
    """Requests a second that one replica of `config` carries within its targets."""
    model = config.replica
    replica = Replica(model.cost, model.kv_tokens * (1 - model.kv_headroom))
    return largest_rate(replica, load, config.service_targets, config.limits)


def _replicas(requests: Requests, part: slice, config: FleetConfig) -> float:
    prompts, outputs = requests.prompt_tokens[part], requests.output_tokens[part]
    if not len(prompts):
        return 0.0
    rate = largest_rate_of(workload_of(prompts, outputs), config)
    # A stretch whose requests no replica can serve within its targets is served as well as possible.
    return len(prompts) / MEAN_S / rate if rate > 0 else float(config.max_replicas)


def start_up_stretches(start_up_s: float) -> int:
    """Stretches from the order of a replica until it is ready."""
    return math.ceil(start_up_s / STRETCH_S)


class Oracle:
    """
    Args:
        begin_s: of the first stretch.
        counts: replicas that each stretch is to have.
        start_up_s: from order to ready.
    """

    interval_s = STRETCH_S

    def __init__(self, begin_s: float, counts: Sequence[int], start_up_s: float) -> None:
        self._begin_s = begin_s
        ahead = start_up_stretches(start_up_s)
        self._ordered = [max(counts[at : at + ahead + 1]) for at in range(len(counts))]

    def replicas(self, view: FleetView) -> int:
        at = int((view.now - self._begin_s) // STRETCH_S)
        return self._ordered[min(max(at, 0), len(self._ordered) - 1)]


ATTAINMENT = 0.99
MOST_RUNS = 8
MARGIN, LESS = 0.9, 0.85
"""Share of the capacity model's need that the first simulation has; each further one that has too much has `LESS` of
the one before."""
_MISSED = 0.01
"""Share of the requests of a stretch that may miss their targets before it gets more replicas."""
_MORE = 0.1
"""Share of its replicas that such a stretch gets in addition, at least one replica."""
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
    """Returns more replicas for the stretches that are `late` and, as far as possible, for those before them."""
    wanted = late.copy()
    wanted[:-1] |= late[1:]
    wanted[:orderable] = False
    return [
        count + max(1, math.ceil(_MORE * count)) if more else count
        for count, more in zip(counts, wanted.tolist(), strict=True)
    ]
