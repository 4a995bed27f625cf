"""Runs requests through a fleet of replicas on one clock."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import numpy as np

from inflight_cost.model import CostModel
from inflight_simulator.fleet.config import FleetConfig, RequestTargets
from inflight_simulator.fleet.control import ScalerController
from inflight_simulator.fleet.fleet import Fleet
from inflight_simulator.fleet.outcome import FleetRun
from inflight_simulator.fleet.requests import Floats, Requests
from inflight_simulator.fleet.view import Fixed, Scaler

Progress = Callable[[float], None]

_THE_END = sys.float_info.max
_PROGRESS_EVERY = 4096


class Controller(Protocol):
    """A controller that periodically observes and changes the fleet.

    Attributes:
        interval_s: seconds between two updates.
    """

    interval_s: float

    def update(self, fleet: Fleet, now: float) -> None: ...


def simulate_fleet(
    requests: Requests, config: FleetConfig, scaler: Scaler, progress: Progress | None = None
) -> FleetRun:
    """Simulates all requests from their arrival to their end. Scalers decide up to the last arrival; a fixed number of
    replicas is there from the start, whatever the bounds.

    Args:
        progress: called periodically with the share of arrived requests.
    """
    if isinstance(scaler, Fixed):
        return run_fleet(requests, replace(config, initial_replicas=scaler.count), [], progress)
    return run_fleet(requests, config, [ScalerController(scaler)], progress)


def run_fleet(
    requests: Requests, config: FleetConfig, controllers: list[Controller], progress: Progress | None = None
) -> FleetRun:
    """Does the same with any controllers; of two that are due at the same time, the first in the list runs first."""
    arrival_s = requests.arrival_s.tolist()
    begin, last = arrival_s[0], arrival_s[-1]
    fleet = Fleet(config, requests, begin, metered=bool(controllers))
    ticks: list[Controller] = [] if fleet.gateway is None else [GatewayTicks()]
    schedule = _Schedule(fleet, [*ticks, *controllers], begin)
    for request_id, now in enumerate(arrival_s):
        if schedule.next_s <= now or fleet.next_message_s <= now:
            schedule.run_until(now)
        fleet.advance(now)
        fleet.send(request_id, now)
        if progress is not None and request_id % _PROGRESS_EVERY == 0:
            progress(request_id / len(arrival_s))
    _empty_gateway(fleet, last)
    fleet.advance(_THE_END)
    return _outcome(requests, fleet, begin, last)


def _empty_gateway(fleet: Fleet, last: float) -> None:
    """Sends requests that the gateway still holds, or that the prefill set has, after the last arrival to pods as they
    become free."""
    now = last
    while fleet.gateway is not None and fleet.gateway.num_unplaced:
        now = min(now + GatewayTicks.interval_s, fleet.next_message_s)
        fleet.advance(now)
        fleet.start_pods(now)
        fleet.gateway.run(now)
        GatewayTicks().update(fleet, now)


class GatewayTicks:
    """The gateway's periodic dispatch of held requests, between arrivals."""

    interval_s = 0.05

    def update(self, fleet: Fleet, now: float) -> None:
        if fleet.gateway is not None:
            fleet.gateway.update(fleet.behind_gateway, now)
            fleet.gateway.tick(now)


class _Schedule:
    """Updates by controllers and pods that become ready, in order of time.

    Attributes:
        next_s: time of the next event.
    """

    def __init__(self, fleet: Fleet, controllers: list[Controller], begin: float) -> None:
        self._fleet = fleet
        self._controllers = controllers
        self._begin = begin
        self._counts = [1] * len(controllers)
        self.next_s = begin
        self._find_next()

    def run_until(self, now: float) -> None:
        """Runs all events up to now."""
        fleet = self._fleet
        while (time := min(self.next_s, fleet.next_message_s)) <= now:
            fleet.advance(time)
            fleet.start_pods(time)
            if fleet.gateway is not None:
                fleet.gateway.run(time)
            for index, controller in enumerate(self._controllers):
                if self._due(index) <= time:
                    self._counts[index] += 1
                    controller.update(fleet, time)
            self._find_next()

    def _due(self, index: int) -> float:
        return self._begin + self._counts[index] * self._controllers[index].interval_s

    def _find_next(self) -> None:
        starting = (pod.starts_s for pod in self._fleet.live if not pod.ready)
        updates = map(self._due, range(len(self._controllers)))
        self.next_s = min(*starting, *updates, float("inf"), float("inf"))


def ttft_targets(requests: Requests, targets: RequestTargets, cost: CostModel) -> Floats:
    """Returns the TTFT target of each request, float64 [requests], in seconds."""
    plain = np.where(requests.prompt_tokens > targets.long_prompt, targets.long_ttft, targets.ttft)
    if targets.prefill_factor is None:
        return plain
    lengths, places = np.unique(requests.prompt_tokens, return_inverse=True)
    alone = np.array([cost.base_s + cost.prefill_seconds(tokens) for tokens in lengths.tolist()])
    return np.maximum(plain, targets.ttft + targets.prefill_factor * alone[places])


def _outcome(requests: Requests, fleet: Fleet, begin: float, last: float) -> FleetRun:
    states, config = fleet.states, fleet.config
    first, end = np.array(states.first_s), np.array(states.end_s)
    seconds = sum(max(0.0, min(pod.ended_s, last) - max(pod.created_s, begin)) for pod in fleet.pods)
    return FleetRun(
        arrival_s=requests.arrival_s,
        ttft=first - requests.arrival_s,
        tpot=(end - first) / np.maximum(1, requests.output_tokens - 1),
        ttft_target=ttft_targets(requests, config.targets, config.replica.cost),
        tpot_target=np.full(len(requests), config.targets.tpot),
        replicas=tuple(row for row in fleet.counts if row.time_s <= last),
        replica_hours=seconds / 3600,
        preemptions=sum(pod.replica.scheduler.preemptor.num_preemptions for pod in fleet.pods),
        refused=sum(len(pod.replica.refused) for pod in fleet.pods) + len(states.refused),
        refusals=dict(sorted(Counter(states.refused.values()).items())),
        tenants=requests.tenants,
        prefix_queries=sum(pod.replica.scheduler.admission.prefix_queries for pod in fleet.pods),
        prefix_hits=sum(pod.replica.scheduler.admission.prefix_hits for pod in fleet.pods),
        reads=None if config.prefill is None else np.array(states.reads),
        gaps=None if config.prefill is None else np.array(states.gaps),
    )
