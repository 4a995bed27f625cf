"""Work of steps, and the seconds that it should take, by term."""

import pytest

from inflight_cost.model import TERMS, CostModel, StepWork
from inflight_engine.server.requests.counts import CURVE, StepParts

WORK = StepWork(4, 60, 2000, 1500, 32)
COST = CostModel(0.01, 0.001, 0.002, 1e-6, 1e-7, 1e-5, curve=((1.0, 0.02), (64.0, 0.25)))


def test_work_is_added_up_for_all_steps_and_predicted_seconds_for_those_with_a_fit():
    parts = StepParts()
    parts.count(WORK, None)
    assert sum(parts.predicted_s.values()) == 0
    parts.count(WORK, COST)
    assert parts.work == dict(zip(TERMS, (2, 8, 120, 4000, 3000, 64), strict=True))
    assert parts.predicted_s["prefill_token"] == pytest.approx(0.12)
    assert parts.predicted_s[CURVE] == pytest.approx(0.25)


def test_parts_of_a_step_add_up_to_what_the_model_says_of_it():
    parts = StepParts()
    parts.count(WORK, COST)
    assert sum(parts.predicted_s.values()) == pytest.approx(COST.seconds(WORK))


def test_every_number_of_a_step_has_a_term():
    assert len(TERMS) == 1 + len(StepWork._fields)
