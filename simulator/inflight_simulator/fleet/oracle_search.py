"""The oracle's margin: the smallest that keeps the attainment, found by running the simulation several times."""

from __future__ import annotations

from dataclasses import dataclass

from inflight_simulator.fleet.config import FleetConfig
from inflight_simulator.fleet.outcome import FleetRun
from inflight_simulator.fleet.requests import Requests
from inflight_simulator.fleet.run import Progress, simulate_fleet
from inflight_simulator.fleet.scalers.oracle import Oracle, needed

ATTAINMENT = 0.99
_LEAST, _MOST = 0.6, 1.8
_SHORT = 0.001
"""Share of requests in target that the oracle gives up for fewer replicas, where it cannot reach the attainment."""
_HALVINGS = 5
"""Simulations after the first; they leave a margin that is at most 0.04 too large."""


@dataclass(frozen=True, slots=True, eq=False)
class OracleRun:
    """Attributes:
    margin: factor of the capacity model's need.
    run: the simulation with it.
    """

    margin: float
    run: FleetRun


def search_oracle(
    requests: Requests, config: FleetConfig, attainment: float = ATTAINMENT, progress: Progress | None = None
) -> OracleRun:
    """The oracle that keeps `attainment` with the fewest replicas by bisection of its margin, which takes 6
    simulations. Where no margin keeps it, as when the first replicas start too late for 1% of the requests, the one
    that comes within `_SHORT` of the best."""
    need = needed(requests, config)

    def with_margin(margin: float) -> OracleRun:
        return OracleRun(margin, simulate_fleet(requests, config, Oracle(need, margin, config.start_up_s), progress))

    best = with_margin(_MOST)
    low, high = _LEAST, _MOST
    attainment = min(attainment, best.run.attainment - _SHORT)
    for _ in range(_HALVINGS):
        found = with_margin((low + high) / 2)
        if found.run.attainment < attainment:
            low = found.margin
        else:
            high = found.margin
            best = min(best, found, key=lambda each: each.run.replica_hours)
    return best
