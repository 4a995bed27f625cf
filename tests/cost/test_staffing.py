"""Replicas for a rate of requests, against what is known of queues."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_cost.staffing import Staffing, share_late, smallest

EXPONENTIAL = Staffing(service=1.0, variation=1.0, patience=1.0)


def replicas_needed(rate, staffing, share):
    return smallest(lambda replicas: share_late(replicas, rate, staffing) <= share, math.ceil(rate), 10_000)


def erlang_c(servers, load):
    """Share of requests that wait, of an M/M/n queue."""
    last = load**servers / math.factorial(servers) * servers / (servers - load)
    return last / (sum(load**k / math.factorial(k) for k in range(servers)) + last)


@pytest.mark.parametrize(("servers", "load"), [(1, 0.5), (4, 3.0), (10, 9.0)])
def test_without_an_order_the_share_that_waits_too_long_is_erlangs(servers, load):
    staffing = Staffing(service=1.0, variation=1.0, patience=0.7, ordered=False)
    expected = erlang_c(servers, load) * math.exp(-(servers - load) * 0.7)
    assert share_late(servers, load, staffing) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("servers", "rate"), [(1, 0.8), (3, 2.9), (8, 8.5)])
def test_with_an_order_it_is_what_impatient_requests_of_a_simulated_queue_lose(servers, rate):
    random.seed(7)
    now, free, lost, count = 0.0, [0.0] * servers, 0, 200_000
    for _ in range(count):
        now += random.expovariate(rate)
        index = min(range(servers), key=free.__getitem__)
        if free[index] - now > EXPONENTIAL.patience:
            lost += 1
        else:
            free[index] = max(now, free[index]) + random.expovariate(1.0)
    assert share_late(servers, rate, EXPONENTIAL) == pytest.approx(lost / count, rel=0.1, abs=0.003)


def test_overload_is_lost_as_far_as_it_is_too_much():
    assert share_late(4, 400.0, EXPONENTIAL) == pytest.approx(0.99, abs=0.001)


def test_replicas_that_share_no_queue_are_more():
    apart = Staffing(service=1.0, variation=1.0, patience=1.0, pooled=False)
    assert replicas_needed(20.0, apart, 0.01) > 1.5 * replicas_needed(20.0, EXPONENTIAL, 0.01)


@given(rate=st.floats(0.01, 500), variation=st.floats(0, 8), patience=st.floats(0.05, 20))
def test_the_fewest_replicas_that_hold_are_found_and_the_margin_shrinks_with_size(rate, variation, patience):
    staffing = Staffing(1.0, variation, patience)
    found = replicas_needed(rate, staffing, 0.005)
    assert share_late(found, rate, staffing) <= 0.005
    assert found == 1 or share_late(found - 1, rate, staffing) > 0.005
    assert replicas_needed(2 * rate, staffing, 0.005) <= 2 * found


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
