"""The simulation against a naive one."""

import numpy as np
import pytest

from inflight_settings.limits import Limits
from inflight_simulator.fleet.config import FleetConfig, ReplicaModel
from inflight_simulator.fleet.fleet import Fleet
from inflight_simulator.fleet.requests import Requests
from inflight_simulator.fleet.run import run_fleet, simulate_fleet
from inflight_simulator.fleet.view import Fixed
from tests.simulator.fleet.naive import naive_fleet


def random_requests(count, rate, seed, *, prompt=300, output=60, together=False):
    """Poisson arrivals; `together`: in whole seconds, so that many come at once."""
    random = np.random.default_rng(seed)
    arrival_s = np.cumsum(random.exponential(1 / rate, count))
    if together:
        arrival_s = np.floor(arrival_s)
    prompts = np.maximum(1, random.exponential(prompt, count)).astype(np.int64)
    outputs = np.maximum(1, random.exponential(output, count)).astype(np.int64)
    return Requests(arrival_s, prompts, outputs)


SMALL_CACHE = ReplicaModel(kv_tokens=2400, block_size=8)
CASES = {
    "light": (FleetConfig(), random_requests(400, 20, 1)),
    "heavy": (FleetConfig(limits=Limits(16, 128)), random_requests(500, 60, 2)),
    "prompts in chunks": (FleetConfig(limits=Limits(8, 40)), random_requests(200, 10, 3)),
    "short of blocks": (
        FleetConfig(replica=SMALL_CACHE, limits=Limits(64, 512)),
        random_requests(300, 80, 4, prompt=60, output=120),
    ),
    "no noise, at once": (
        FleetConfig(replica=ReplicaModel(noise=0.0), limits=Limits(32, 512)),
        random_requests(300, 30, 5, together=True),
    ),
    "one token": (FleetConfig(), random_requests(300, 100, 6, output=0.5)),
}


@pytest.mark.parametrize("routing", ["round-robin", "least-requests", "least-work"])
@pytest.mark.parametrize("name", CASES)
def test_every_request_gets_its_tokens_when_a_naive_simulation_says(name, routing):
    config, requests = CASES[name]
    config = FleetConfig(replica=config.replica, limits=config.limits, routing=routing, seed=7)
    run = simulate_fleet(requests, config, Fixed(3))
    first, ended, _, preemptions = naive_fleet(requests, config, 3)
    np.testing.assert_allclose(run.ttft + requests.arrival_s, first, rtol=0, atol=1e-9)
    last = run.ttft + requests.arrival_s + run.tpot * np.maximum(1, requests.output_tokens - 1)
    np.testing.assert_allclose(last, ended, rtol=0, atol=1e-9)
    assert run.preemptions == preemptions
    if name == "short of blocks":
        assert preemptions > 5


class Looks:
    """Looks at all metrics now and then, which changes nothing."""

    def __init__(self, interval_s: float = 0.7) -> None:
        self.interval_s = interval_s

    def update(self, fleet: Fleet, now: float) -> None:
        for pod in fleet.live:
            pod.replica.take_in_until(now)


def test_looking_at_metrics_changes_nothing():
    config, requests = CASES["short of blocks"]
    plain, looked = (run_fleet(requests, config, controllers) for controllers in ([], [Looks()]))
    np.testing.assert_array_equal(plain.ttft, looked.ttft)
    np.testing.assert_array_equal(plain.tpot, looked.tpot)


def test_the_same_seed_gives_equal_results_and_another_one_does_not():
    config, requests = CASES["light"]
    first, again = (simulate_fleet(requests, config, Fixed(2)) for _ in range(2))
    np.testing.assert_array_equal(first.ttft, again.ttft)
    other = simulate_fleet(requests, FleetConfig(seed=1), Fixed(2))
    assert not np.array_equal(first.ttft, other.ttft)
    assert np.median(np.abs(first.tpot - other.tpot) / first.tpot.clip(1e-9)) < 0.1
