"""Pauses and intervals: bounded, and the longer the busier the event loop is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_operator.pacing import APART_SECONDS, LONGEST_REST_SECONDS, MOST_STRETCH, Stretch, first_apart, rest


@given(st.floats(0, 100))
def test_a_service_takes_at_most_a_twentieth_of_the_loop_for_its_events(busy):
    assert APART_SECONDS <= rest(busy) <= LONGEST_REST_SECONDS
    assert rest(busy) >= min(LONGEST_REST_SECONDS, 20 * busy)


@given(st.integers(0, 100_000), st.floats(1, 60))
def test_first_turns_are_over_within_an_interval_and_a_few_at_once(count, interval):
    assert count * first_apart(count, interval) <= interval * 1.001
    assert first_apart(3, interval) <= 0.01


@given(st.lists(st.floats(-1, 1000), max_size=50))
def test_intervals_are_stretched_while_the_loop_is_late_and_return_to_what_was_set(lags):
    stretch = Stretch()
    for lag in lags:
        stretch.note(lag)
        assert 1.0 <= stretch.factor <= MOST_STRETCH
    for _ in range(60):
        stretch.note(0.0)
    assert stretch.factor == pytest.approx(1.0, abs=0.01)
    stretch.note(0.25)
    assert stretch.factor > 1.4
