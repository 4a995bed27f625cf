"""Requests of half of the KV cache in the simulator, which decides as the engine does."""

import numpy as np
import pytest

from inflight_cost.model import CostModel
from inflight_settings.limits import Limits
from inflight_simulator.fleet.config import FleetConfig, ReplicaModel
from inflight_simulator.fleet.replicas.scheduler import FleetScheduler
from inflight_simulator.fleet.requests import Requests
from inflight_simulator.fleet.run import simulate_fleet
from inflight_simulator.fleet.view import Fixed
from tests.engine.scheduling import test_large_requests as load


@pytest.mark.parametrize("giants", [load.THREE_EACH_MINUTE, load.ALONE], ids=["half", "alone"])
@pytest.mark.parametrize("sharing", load.SHARINGS.values(), ids=load.SHARINGS)
def test_each_request_starts_in_the_step_in_which_the_engine_starts_it(giants, sharing):
    assert load.waits(3000, giants, sharing, FleetScheduler) == load.waits(3000, giants, sharing)


SECOND_S, PREFILL_S = 5.0, 2.0
MINUTES = 60.0, 120.0, 180.0
TWO_EACH_MINUTE = [
    (at, load.BLOCKS * load.SIZE // 2, 600, "giant") for each in MINUTES for at in (each, each + SECOND_S)
]
"""The second waits until the first has ended."""
SMALL = [(load.EVERY * load.STEP_SECONDS * each, 200, load.ANSWER, "small") for each in range(220)]


def ttft(giants, policy):
    """Returns that of the small requests, by arrival, and that of the giants."""
    cost = CostModel(load.STEP_SECONDS, 0.0, 1e-5, 0.0, 0.0)
    model = ReplicaModel(
        cost=cost, kv_tokens=load.BLOCKS * load.SIZE, block_size=load.SIZE, kv_headroom=0.03, noise=0.0
    )
    rows = sorted([*SMALL, *giants])
    arrival, prompt, output, tenants = zip(*rows, strict=True)
    requests = Requests(np.array(arrival), np.array(prompt), np.array(output), tenants=tenants)
    run = simulate_fleet(requests, FleetConfig(replica=model, limits=Limits(64, 2048), policy=policy), Fixed(1))
    small = np.array([each == "small" for each in tenants])
    return run.ttft[small], run.ttft[~small]


@pytest.mark.parametrize("policy", ["fcfs", "fair"])
def test_the_ttft_at_p95_of_those_that_come_while_a_giant_waits_is_within_twice_that_without_giants(policy):
    alone, _ = ttft([], policy)
    small, giants = ttft(TWO_EACH_MINUTE, policy)
    arrival = np.array([each[0] for each in SMALL])
    waits = np.zeros(len(SMALL), np.bool_)
    for minute, wait in zip(MINUTES, giants[1::2], strict=True):
        waits |= (minute + SECOND_S <= arrival) & (arrival < minute + SECOND_S + wait - PREFILL_S)
    assert np.count_nonzero(waits) > 50
    assert max(giants) <= 30
    assert np.percentile(small[waits], 95) <= 2 * np.percentile(alone[waits], 95)
