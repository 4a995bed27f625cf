"""Waiting prompt tokens as seconds."""

import pytest

from inflight_cost.backlog import backlog_seconds
from inflight_cost.model import CostModel, StepWork

COST = CostModel(0.01, 0.001, 0.0001, 1e-7, 1e-8)


def test_a_backlog_takes_full_steps_and_a_last_one_beside_what_decodes():
    decoding = StepWork(12, 0, 6000, 0)
    full, last = StepWork(12, 500, 6000, 50_000), StepWork(12, 200, 6000, 20_000)
    expected = 3 * COST.seconds(full) + COST.seconds(last)
    assert backlog_seconds(COST, 1700, 100, decoding, 512) == pytest.approx(expected)


def test_no_tokens_take_no_time_and_a_budget_below_the_decodes_still_ends():
    decoding = StepWork(12, 0, 6000, 0)
    assert backlog_seconds(COST, 0, 100, decoding, 512) == 0
    assert backlog_seconds(COST, 2, 100, decoding, 8) == pytest.approx(2 * COST.seconds(StepWork(12, 1, 6000, 100)))
