from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_engine.cache.swap import SwapRates, swapping_is_cheaper


@pytest.mark.parametrize(
    ("prefill", "copy", "swaps"),
    [
        (1000.0, 1000.0, False),
        (1000.0, 1999.0, False),
        (1000.0, 2000.0, False),
        (1000.0, 2001.0, True),
        (1000.0, 100_000.0, True),
        (1000.0, 0.0, False),
    ],
)
def test_a_swap_must_copy_twice_as_fast_as_the_prefill_computes(prefill, copy, swaps):
    assert swapping_is_cheaper(500, SwapRates(prefill, copy)) is swaps


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 10**9))
def test_the_cheaper_one_is_chosen(num_tokens, prefill, copy):
    seconds_to_swap, seconds_to_compute = Fraction(2 * num_tokens, copy), Fraction(num_tokens, prefill)
    assert swapping_is_cheaper(num_tokens, SwapRates(prefill, copy)) == (seconds_to_swap < seconds_to_compute)


def test_with_nothing_computed_there_is_nothing_to_swap():
    assert not swapping_is_cheaper(0, SwapRates(prefill=1.0, copy=1e9))
