import numpy as np
import pytest

from inflight_settings.limits import Limits
from inflight_simulator.fleet.commands.traffic import workload_of
from inflight_simulator.fleet.config import FleetConfig, ReplicaModel, undivided
from inflight_simulator.fleet.requests import Requests
from inflight_simulator.fleet.run import simulate_fleet
from inflight_simulator.fleet.scalers.oracle import (
    MOST_RUNS,
    Need,
    Oracle,
    _raised,
    largest_rate_of,
    needed,
    search_oracle,
)
from inflight_simulator.fleet.view import Fixed
from tests.simulator.fleet.scalers_support import sample, view


def arrivals(*rates, seconds=60.0, prompt=2000, output=100):
    """Requests at each of these rates for so many seconds, evenly."""
    times = [at * seconds + (i + 0.5) / rate for at, rate in enumerate(rates) for i in range(int(rate * seconds))]
    return Requests(np.array(times), np.full(len(times), prompt), np.full(len(times), output))


def test_the_need_is_the_rate_by_that_of_one_replica():
    requests = arrivals(10.0, 30.0)
    config = FleetConfig()
    rate = largest_rate_of(workload_of(requests.prompt_tokens, requests.output_tokens), config)
    need = needed(requests, config)
    assert need.replicas[6] == pytest.approx(10 / rate, rel=0.05)
    assert need.replicas[18] == pytest.approx(30 / rate, rel=0.05)
    assert len(need.replicas) == 24


def test_a_time_without_requests_needs_no_replica():
    requests = Requests(np.array([0.0, 100.0]), np.array([100, 100]), np.array([10, 10]))
    assert needed(requests, FleetConfig()).replicas[10] == 0.0


def test_replicas_are_ordered_so_that_they_are_ready_when_needed_and_go_when_they_are_not():
    need = Need(0.0, (0.5,) * 6 + (2.5,) * 2 + (0.5,) * 10)
    oracle = Oracle(0.0, need.counts(1.0), start_up_s=10.0)
    ordered = [oracle.replicas(view([sample()], now=5.0 * step)) for step in range(18)]
    # Needed from 30 s on and so ordered at 20 s.
    assert ordered == [1] * 4 + [3] * 4 + [1] * 10


def test_a_gap_that_is_shorter_than_a_start_up_is_bridged():
    need = Need(0.0, (2.5, 0.5, 2.5, 0.5, 0.5, 2.5, 0.5, 0.5))
    ordered = [Oracle(0.0, need.counts(1.0), start_up_s=10.0).replicas(view([], now=5.0 * step)) for step in range(7)]
    assert ordered == [3, 3, 3, 3, 3, 3, 1]


def test_the_margin_multiplies_the_need():
    assert Need(0.0, (2.5, 0.1)).counts(2.0) == [5, 1]


SMALL = FleetConfig(
    replica=ReplicaModel(kv_tokens=100_000), limits=Limits(64, 2048), start_up=undivided(10.0), initial_replicas=2
)


def test_the_search_keeps_the_attainment_for_less_than_a_fixed_fleet_needs():
    requests = arrivals(3.0, 3.0, 20.0, 3.0, 3.0, seconds=25.0)
    found = search_oracle(requests, SMALL, lambda scaler: simulate_fleet(requests, SMALL, scaler))
    assert found.attainment >= 0.99
    most = max(row.ordered for row in found.replicas)
    fixed = simulate_fleet(requests, FleetConfig(SMALL.replica, SMALL.limits, initial_replicas=most), Fixed(most))
    assert found.replica_hours < 0.7 * fixed.replica_hours


def test_where_nothing_keeps_the_attainment_the_search_ends_with_the_best():
    """A burst at once: it is over before the first replica that it could order is ready."""
    requests = arrivals(50.0, 3.0, 3.0, seconds=12.0)
    config = FleetConfig(SMALL.replica, SMALL.limits, start_up=undivided(30.0))
    runs = []

    def simulate(scaler):
        runs.append(simulate_fleet(requests, config, scaler))
        return runs[-1]

    found = search_oracle(requests, config, simulate)
    assert found.attainment < 0.9
    assert found.attainment == max(run.attainment for run in runs)
    assert len(runs) <= MOST_RUNS


def test_stretches_in_which_requests_were_late_and_the_ones_before_get_more_replicas():
    late = np.array([True, False, False, True, False, True])
    assert _raised([1, 1, 1, 30, 1, 1], late, orderable=2) == [1, 1, 2, 33, 2, 2]
