"""Histograms: differences, sums, percentiles."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_base.page.histogram import Histogram, summed
from tests.base.page.pages import BOUNDS, histogram

values = st.lists(st.floats(0.001, 3), max_size=30)


@given(values, values)
def test_a_difference_is_what_came_after(first, second):
    later = histogram(*first, *second)
    difference = later.since(histogram(*first))
    assert difference.counts == histogram(*second).counts
    assert difference.total == pytest.approx(sum(second))


@given(values, values)
def test_a_sum_is_all_together(first, second):
    assert summed([histogram(*first), histogram(*second)]).counts == histogram(*first, *second).counts


@given(st.lists(st.floats(0.001, 0.99), min_size=1, max_size=50), st.floats(0.01, 1))
def test_a_percentile_lies_in_the_bucket_of_the_true_one(observed, q):
    true = sorted(observed)[max(0, math.ceil(q * len(observed)) - 1)]
    upper = next(bound for bound in BOUNDS if true <= bound)
    lower = max([0.0, *(bound for bound in BOUNDS if bound < upper)])
    assert lower <= histogram(*observed).percentile(q) <= upper


def test_percentiles_without_observations_and_beyond_the_last_bound():
    assert histogram().percentile(0.95) is None
    assert histogram().mean is None
    assert Histogram().percentile(0.5) is None
    assert histogram(7.0, 9.0).percentile(0.95) == 1.0


@given(st.lists(st.floats(0.001, 3), min_size=1, max_size=30), st.floats(0.001, 3))
def test_the_share_above_a_bound_is_never_more_than_the_true_one_and_exact_at_a_boundary(observed, bound):
    seen = histogram(*observed)
    above = sum(value > bound for value in observed) / len(observed)
    assert seen.share_above(bound) <= above + 1e-9
    for upper in BOUNDS:
        assert seen.share_above(upper) == pytest.approx(sum(value > upper for value in observed) / len(observed))
    assert Histogram().share_above(bound) == 0


def test_a_restart_counts_from_zero():
    assert histogram(0.3).since(histogram(0.3, 0.3, 0.3)).count == 1


def test_pods_with_other_buckets_are_merged_where_they_agree():
    other = Histogram((0.2, 1.0, math.inf), (1.0, 3.0, 4.0), 2.0)
    both = summed([histogram(0.15, 0.7), other])
    assert both.bounds == (0.2, 1.0, math.inf)
    assert tuple(both.counts) == (2.0, 5.0, 6.0)


@pytest.mark.parametrize(
    ("buckets", "expected"),
    [
        ({0.1: 95.0, 1.0: 100.0, math.inf: 100.0}, 0.1),
        ({0.1: 0.0, 1.0: 0.0, math.inf: 5.0}, 1.0),
        ({0.1: 0.0, math.inf: 0.0}, None),
        ({}, None),
    ],
)
def test_percentiles_are_those_of_histogram_quantile(buckets, expected):
    found = Histogram(tuple(buckets), tuple(buckets.values())).percentile(0.95)
    assert found == (None if expected is None else pytest.approx(expected))
