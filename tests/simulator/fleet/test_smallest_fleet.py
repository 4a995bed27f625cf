import numpy as np
import pytest

from inflight_settings.limits import Limits
from inflight_simulator.fleet.commands.plan import smallest_fleet
from inflight_simulator.fleet.config import FleetConfig
from inflight_simulator.fleet.requests import Requests


@pytest.mark.parametrize("guess", [1, 12])
def test_the_smallest_fleet_keeps_the_attainment_and_one_less_does_not(guess):
    times = np.arange(0, 20, 1 / 30.0)
    requests = Requests(times, np.full(len(times), 2000), np.full(len(times), 100))
    config = FleetConfig(limits=Limits(64, 2048))
    found = smallest_fleet(requests, config, 0.99, guess, 20)
    assert found.run.attainment >= 0.99
    fewer = smallest_fleet(requests, config, 0.99, guess, found.replicas - 1)
    assert fewer is None
