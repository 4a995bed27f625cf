"""The smallest number of fixed replicas that reaches the attainment, found by repeated simulation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from inflight_simulator.fleet.config import FleetConfig
from inflight_simulator.fleet.outcome import FleetRun
from inflight_simulator.fleet.requests import Requests
from inflight_simulator.fleet.run import simulate_fleet
from inflight_simulator.fleet.view import Fixed


@dataclass(frozen=True, slots=True, eq=False)
class FixedRun:
    """Attributes:
    one_less: the run with one replica less, which does not keep the attainment; None: there is none less than 1.
    """

    replicas: int
    run: FleetRun
    one_less: FleetRun | None


def smallest(keeps: Callable[[int], bool], guess: int, most: int) -> int | None:
    """The smallest count from 1 to `most` that meets the monotonic condition: by doubling steps away from `guess`, then
    bisection. None: `most` does not meet it."""
    at = min(max(guess, 1), most)
    step = 1
    if keeps(at):
        low, high = 0, at
        while high > 1:
            below = max(1, high - step)
            if not keeps(below):
                low = below
                break
            high, step = below, 2 * step
    else:
        low, high = at, at
        while True:
            if high == most:
                return None
            high, step = min(most, high + step), 2 * step
            if keeps(high):
                break
            low = high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if keeps(middle) else (middle, high)
    return high


def smallest_fleet(
    requests: Requests, config: FleetConfig, attainment: float, guess: int, most: int
) -> FixedRun | None:
    """The smallest number of replicas that reaches `attainment`; None: even `most` do not reach it, so the number of
    replicas is not the cause."""
    runs: dict[int, FleetRun] = {}

    def keeps(replicas: int) -> bool:
        if replicas not in runs:
            fixed = replace(config, initial_replicas=replicas, min_replicas=replicas, max_replicas=replicas)
            runs[replicas] = simulate_fleet(requests, fixed, Fixed(replicas))
        return runs[replicas].attainment >= attainment

    found = smallest(keeps, guess, most)
    return None if found is None else FixedRun(found, runs[found], runs.get(found - 1))
