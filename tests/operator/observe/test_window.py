"""Windows and histograms: differences, restarts, percentiles."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_operator.observe.histogram import Histogram, summed
from inflight_operator.observe.window import Window
from tests.operator.model_engine import Buckets, ModelEngine

BOUNDS = (0.1, 0.2, 0.5, 1.0, math.inf)


def histogram(*values):
    buckets = Buckets(BOUNDS)
    for value in values:
        buckets.observe(value)
    return buckets.value()


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


def test_a_restart_counts_from_zero():
    assert histogram(0.3).since(histogram(0.3, 0.3, 0.3)).count == 1


def test_pods_with_other_buckets_are_merged_where_they_agree():
    other = Histogram((0.2, 1.0, math.inf), (1.0, 3.0, 4.0), 2.0)
    both = summed([histogram(0.15, 0.7), other])
    assert both.bounds == (0.2, 1.0, math.inf)
    assert both.counts == (2.0, 5.0, 6.0)


def sample(time, **more):
    return replace(ModelEngine().sample(), time=time, **more)


def test_counters_grow_over_pods_and_restarts():
    window = Window(span=100.0)
    for time, first, second in ((0.0, 10, 100), (5.0, 30, 110), (10.0, 4, 130)):
        samples = {"a": sample(time, generation_tokens=first), "b": sample(time, generation_tokens=second)}
        window = window.with_samples(samples, {"a", "b"}, time)
    span = window.since(0.0)
    assert span.increase(lambda one: one.generation_tokens) == 20 + 4 + 10 + 20
    assert span.rate(lambda one: one.generation_tokens) == 5.4
    assert window.since(5.0).increase(lambda one: one.generation_tokens) == 4 + 20


def test_a_pod_that_went_or_came_back_under_its_name_starts_anew():
    window = Window().with_samples({"a": sample(0.0, generation_tokens=50)}, {"a"}, 0.0)
    window = window.with_samples({"b": sample(3.0, generation_tokens=70)}, {"b"}, 3.0)
    assert set(window.pods) == {"b"}
    assert window.since(0.0).increase(lambda one: one.generation_tokens) == 0


def test_what_is_too_old_goes_and_stale_pods_are_not_in_the_latest():
    window = Window(span=30.0)
    window = window.with_samples({"a": sample(0.0), "b": sample(0.0)}, {"a", "b"}, 0.0)
    window = window.with_samples({"a": sample(20.0)}, {"a", "b"}, 20.0)
    assert set(window.latest(20.0, 10.0)) == {"a"}
    assert window.oldest_age(20.0) == 20.0
    window = window.with_samples({}, {"a", "b"}, 40.0)
    assert window.pods["b"] == ()
    assert len(window.pods["a"]) == 1


def test_gauges_leave_out_the_base_sample():
    window = Window()
    for time, running in ((0.0, 60), (3.0, 10), (6.0, 20)):
        window = window.with_samples({"a": sample(time, running=running)}, {"a"}, time)
    span = window.since(0.0)
    assert span.mean_per_pod(lambda one: one.running) == 15
    assert span.peak(lambda one: one.running) == 20
    assert span.largest_now(lambda one: one.running) == 20
    assert span.mean_per_pod(lambda one: one.revision) is None
