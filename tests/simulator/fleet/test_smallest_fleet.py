import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_settings.limits import Limits
from inflight_simulator.fleet.config import FleetConfig
from inflight_simulator.fleet.plan import smallest, smallest_fleet
from inflight_simulator.fleet.requests import Requests


@given(needed=st.integers(1, 70), guess=st.integers(0, 80), most=st.integers(1, 64))
def test_the_smallest_that_keeps_is_found_from_any_guess(needed, guess, most):
    asked = []

    def keeps(count):
        assert 1 <= count <= most
        asked.append(count)
        return count >= needed

    assert smallest(keeps, guess, most) == (needed if needed <= most else None)
    assert len(asked) <= 16


def test_a_good_guess_takes_two_questions():
    asked = []
    assert smallest(lambda count: asked.append(count) or count >= 8, 8, 100) == 8
    assert asked == [8, 7]


@pytest.mark.parametrize("guess", [1, 12])
def test_the_smallest_fleet_keeps_the_attainment_and_one_less_does_not(guess):
    times = np.arange(0, 20, 1 / 30.0)
    requests = Requests(times, np.full(len(times), 2000), np.full(len(times), 100))
    config = FleetConfig(limits=Limits(64, 2048))
    found = smallest_fleet(requests, config, 0.99, guess, 20)
    assert found.run.attainment >= 0.99
    fewer = smallest_fleet(requests, config, 0.99, guess, found.replicas - 1)
    assert fewer is None
