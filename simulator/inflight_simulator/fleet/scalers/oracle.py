"""`oracle`: knows all future requests and the start-up time, and so is an upper bound for scalers.

For each stretch of time the capacity model (`inflight_cost.capacity`) says how many replicas the requests of that
stretch need. The oracle orders the most that are needed until a replica ordered now would be ready, so that each is
ready when needed, and a gap is bridged if that is cheaper than a new start.

The capacity model uses means. `fleet.oracle_search` finds by simulation where fewer replicas suffice and where more are
needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from inflight_cost.capacity import Replica, Workload, largest_rate
from inflight_simulator.fleet.config import FleetConfig
from inflight_simulator.fleet.requests import Requests
from inflight_simulator.fleet.scalers.signals import rounded_up
from inflight_simulator.fleet.traffic import workload_of
from inflight_simulator.fleet.view import FleetView

STRETCH_S = 5.0
"""Seconds for which one number of replicas is needed; also between two decisions."""
MEAN_S = 15.0
"""Of the requests whose mean is taken for the stretch in their middle: less would follow noise that a queue smooths."""


@dataclass(frozen=True, slots=True)
class Need:
    """Replicas, in fractions, that the requests of each stretch of `STRETCH_S` need, from `begin_s` on."""

    begin_s: float
    replicas: tuple[float, ...]

    def counts(self, margin: float) -> list[int]:
        """Whole replicas for `margin` times the need."""
        return [max(1, rounded_up(margin * each)) for each in self.replicas]


def needed(requests: Requests, config: FleetConfig) -> Need:
    """By the capacity model, at the limits and targets of `config`."""
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
