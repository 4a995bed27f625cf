"""The error of a fit in steps that it has not seen."""

import numpy as np
import pytest

from inflight_cost.model import CostModel, StepWork
from tools.bench.vllm_plugin import held_out


def test_the_error_of_unseen_steps_is_the_noise_of_the_machine():
    rng = np.random.default_rng(1)
    cost = CostModel(0.004, 0.0005, 0.0001, 1e-6, 1e-8)
    works = np.column_stack(
        [rng.integers(0, 17, 900), rng.integers(0, 128, 900), *rng.uniform(0, 4000, (2, 900)), np.zeros(900)]
    )
    exact = np.array([cost.seconds(StepWork(*work)) for work in works])
    assert held_out(works, exact).median < 0.01
    noisy = held_out(works, exact * rng.lognormal(0, 0.2, 900))
    assert noisy.median == pytest.approx(0.135, abs=0.03)
    assert noisy.p90 > 0.25
    assert 200 < noisy.steps < 340
