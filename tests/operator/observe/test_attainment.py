"""Requests within their targets, counted from cumulative histograms."""

from types import SimpleNamespace

import pytest

from inflight_base.page.histogram import Histogram
from inflight_operator.observe.attainment import Attainment

BOUNDS = (0.1, 0.5, 1.0, float("inf"))


def sample(ttft, tpot=(0, 0, 0, 0)):
    """Stands in for a `Sample`: only its two histograms are read. Counts are cumulative over the buckets."""
    return SimpleNamespace(ttft=Histogram(BOUNDS, ttft), tpot=Histogram(BOUNDS, tpot))


def seen(*rounds, alive=None, ttft=0.5, tpot=0.1):
    attainment = Attainment()
    for fresh in rounds:
        attainment = attainment.with_samples(fresh, set(fresh) if alive is None else alive, ttft, tpot)
    return attainment


def test_growth_between_two_samples_counts_and_what_was_before_the_first_does_not():
    counted = seen({"a": sample((5, 5, 9, 9))}, {"a": sample((6, 8, 12, 13))})
    assert (counted.ttft.total, counted.ttft.within) == (4, 3)


def test_a_target_inside_a_bucket_counts_its_share_of_it():
    counted = seen({"a": sample((0, 0, 0, 0))}, {"a": sample((0, 10, 10, 10))}, ttft=0.3)
    assert counted.ttft.within == pytest.approx(5)


def test_pods_add_up_and_one_that_comes_or_goes_counts_while_it_is_there():
    counted = seen(
        {"a": sample((1, 1, 1, 1))},
        {"a": sample((2, 2, 2, 2)), "b": sample((7, 7, 7, 7))},
        {"b": sample((7, 7, 7, 9))},
    )
    assert (counted.ttft.total, counted.ttft.within) == (3, 1)
    assert set(counted.seen) == {"b"}


def test_what_happens_while_a_pod_gives_no_sample_is_counted_with_the_next():
    counted = seen({"a": sample((1, 1, 1, 1))}, {}, {"a": sample((4, 4, 4, 4))}, alive={"a"})
    assert counted.ttft.total == 3


def test_an_engine_process_that_starts_anew_counts_from_zero():
    counted = seen({"a": sample((8, 8, 8, 8), tpot=(4, 4, 4, 4))}, {"a": sample((2, 2, 3, 3), tpot=(0, 1, 1, 1))})
    assert (counted.ttft.total, counted.ttft.within) == (3, 2)
    assert (counted.tpot.total, counted.tpot.within) == (1, 0)
