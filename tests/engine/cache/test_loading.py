import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_cost.model import CostModel
from inflight_engine.cache.loading import LoadRates, loading_is_cheaper


@pytest.mark.parametrize(
    ("prefill", "copy", "loads"),
    [
        (1000.0, 999.0, False),
        (1000.0, 1000.0, False),
        (1000.0, 1001.0, True),
        (1000.0, 100_000.0, True),
        (1000.0, 0.0, False),
    ],
)
def test_loads_must_copy_faster_than_the_prefill_computes(prefill, copy, loads):
    assert loading_is_cheaper(500, 0, LoadRates(prefill, copy), None) is loads


@given(st.integers(1, 10**6), st.integers(0, 10**6), st.integers(1, 10**9))
def test_a_cost_model_says_what_computing_takes(num_tokens, num_before, copy):
    cost = CostModel(0.0, 0.0, 1e-4, 0.0, 1e-8)
    cheaper = num_tokens / copy < cost.prefill_seconds(num_tokens, num_before)
    assert loading_is_cheaper(num_tokens, num_before, LoadRates(1.0, float(copy)), cost) == cheaper


def test_behind_a_long_context_loading_pays_where_it_does_not_at_the_start():
    cost, rates = CostModel(0.0, 0.0, 1e-4, 0.0, 1e-8), LoadRates(1e4, 5e3)
    assert not loading_is_cheaper(16, 0, rates, cost)
    assert loading_is_cheaper(16, 100_000, rates, cost)
