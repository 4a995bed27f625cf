"""How fast a fleet is simulated: `python -m tools.bench.fleet`.

Requests of a conversation's sizes at a constant mean rate, so that it needs no file: CPU seconds of one core for an
hour of a fleet of fixed replicas, by the number of replicas. Shorter spans are measured and multiplied.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import numpy as np

from inflight_settings.flag_types import number
from inflight_simulator.fleet.config import FleetConfig
from inflight_simulator.fleet.requests import Requests
from inflight_simulator.fleet.run import simulate_fleet
from inflight_simulator.fleet.view import Fixed
from tools.measure.report import cpu_model

GOALS = {8: 30.0, 1000: 600.0}
"""CPU seconds for an hour, by replicas."""
RATES = {8: 8.3, 1000: 1.0}
"""Requests a second for each replica."""
SPANS = {8: 300.0, 1000: 60.0}
"""Seconds that are simulated."""
MEAN_PROMPT, MEAN_OUTPUT = 1155, 211
"""Tokens, of lognormal lengths: those of the public Azure conversation trace of 2023."""
SPREAD = 0.9
"""Standard deviation of the logarithm of the lengths."""


@dataclass(frozen=True, slots=True)
class Row:
    """Results at one size of the fleet. Attributes: cpu_s: for the span."""

    replicas: int
    requests: int
    span_s: float
    cpu_s: float

    @property
    def cpu_s_per_hour(self) -> float:
        return self.cpu_s * 3600 / self.span_s


def load(replicas: int, seed: int = 0) -> Requests:
    """Poisson arrivals over the span of a fleet of this size."""
    random = np.random.default_rng(seed)
    span = SPANS[replicas]
    count = random.poisson(span * RATES[replicas] * replicas)

    def lengths(mean: float) -> np.ndarray:
        drawn = random.lognormal(np.log(mean) - SPREAD**2 / 2, SPREAD, count)
        return np.clip(drawn, 1, 14_000).astype(np.int64)

    return Requests(np.sort(random.random(count) * span), lengths(MEAN_PROMPT), lengths(MEAN_OUTPUT))


def measure(replicas: int) -> Row:
    requests = load(replicas)
    begun = time.process_time()
    simulate_fleet(requests, FleetConfig(), Fixed(replicas))
    return Row(replicas, len(requests), SPANS[replicas], time.process_time() - begun)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench.fleet", description=__doc__.partition("\n")[0], allow_abbrev=False
    )
    parser.add_argument(
        "--replicas",
        type=number(int, 1),
        nargs="+",
        default=[*GOALS],
        choices=[*GOALS],
        metavar="N",
        help=f"sizes of fleets, of {', '.join(map(str, GOALS))} (default: all)",
    )
    flags = parser.parse_args()
    print(f"One core of {cpu_model()}\n")
    print(
        f"{'replicas':>8}{'requests':>10}{'seconds':>9}{'CPU s':>8}{'us a request':>14}{'CPU s an hour':>15}{'goal':>7}"
    )
    good = True
    for replicas in flags.replicas:
        row = measure(replicas)
        each = 1e6 * row.cpu_s / row.requests
        goal = GOALS[replicas]
        good &= row.cpu_s_per_hour <= goal
        print(
            f"{replicas:>8}{row.requests:>10}{row.span_s:>9.0f}{row.cpu_s:>8.1f}{each:>14.0f}"
            f"{row.cpu_s_per_hour:>15.0f}{goal:>7.0f}"
        )
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
