"""Output lengths are estimated without the bias of those that have ended."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight_fit.output_lengths import HALF_LIFE_SECONDS, OutputLengths


def watched(lengths, arrivals, now, cancelled=()):
    """The estimate at `now` for requests that generate a token a second from their arrival on, and the mean of those
    that have ended. `cancelled`: by request, the tokens after which its client leaves."""
    seen, ended = OutputLengths(), []
    cuts = dict(cancelled)
    for number, (length, arrival) in enumerate(zip(lengths.tolist(), arrivals.tolist(), strict=True)):
        cut = min(cuts.get(number, math.inf), now - arrival)
        if cut < 0:
            continue
        seen.generated(0, int(min(length, cut)))
        if length <= cut:
            seen.ended(length)
            ended.append(length)
    return seen.estimate(), float(np.mean(ended))


DISTRIBUTIONS = {
    "geometric": lambda random: random.geometric(1 / 150, 6000),
    "lognormal": lambda random: np.maximum(1, random.lognormal(4.5, 0.7, 6000)).astype(int),
    "short and long": lambda random: np.where(random.random(6000) < 0.6, 20, 400),
    "all alike": lambda random: np.full(6000, 100),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), cancelling=st.booleans())
def test_mean_and_second_moment_hold_while_many_still_run_where_the_naive_mean_is_too_small(name, seed, cancelling):
    random = np.random.default_rng(seed)
    lengths = DISTRIBUTIONS[name](random)
    cancelled = [(each, random.integers(1, 300)) for each in range(0, 6000, 4)] if cancelling else []
    # Long enough that a request of any length could have ended, in load that grows: most are young.
    arrivals = 1000 * random.random(6000) ** 0.4
    estimate, naive = watched(lengths, arrivals, 1000, cancelled)
    assert estimate.mean == pytest.approx(lengths.mean(), rel=0.06)
    assert estimate.second_moment == pytest.approx((lengths.astype(float) ** 2).mean(), rel=0.2)
    if name == "short and long":
        assert naive < 0.9 * lengths.mean()


def test_nothing_is_estimated_before_an_end_and_an_answer_without_tokens_is_none():
    seen = OutputLengths()
    seen.generated(0, 50)
    seen.ended(0)
    assert seen.estimate() is None
    seen.generated(50, 60)
    seen.ended(60)
    assert seen.estimate().mean == pytest.approx(60, rel=0.05)


def test_the_past_is_forgotten_in_half_lives_but_not_the_latest_ends():
    seen = OutputLengths()
    seen.forget(0.0)
    for _ in range(1000):
        seen.generated(0, 400)
        seen.ended(400)
    seen.forget(100 * HALF_LIFE_SECONDS)
    assert seen.estimate().mean == pytest.approx(400, rel=0.05)
    for _ in range(200):
        seen.generated(0, 20)
        seen.ended(20)
    assert seen.estimate().mean == pytest.approx(210, rel=0.05)
    for hour in range(1, 6):
        for _ in range(400):
            seen.generated(0, 20)
            seen.ended(20)
        seen.forget((100 + 6 * hour) * HALF_LIFE_SECONDS)
    assert seen.estimate().mean < 25


def test_outputs_longer_than_any_range_count_in_the_last():
    seen = OutputLengths()
    seen.generated(0, 3 << 20)
    seen.ended(3 << 20)
    assert seen.estimate().mean > 1 << 19


@given(st.lists(st.tuples(st.integers(0, 1 << 21), st.integers(0, 1 << 20)), min_size=1))
def test_many_outputs_at_once_count_as_one_by_one(outputs):
    one, many = OutputLengths(), OutputLengths()
    pairs = [(0, 900), *((begin, begin + more) for begin, more in outputs)]
    for begin, end in pairs:
        one.generated(begin, end)
    many.generated_many(*zip(*pairs, strict=True))
    for each in (one, many):
        each.ended(5)
        each.ended(900)
    assert one.estimate() == many.estimate()


def test_the_ends_of_outputs_that_others_generated_give_no_estimate():
    lengths = OutputLengths()
    lengths.ended(7)
    assert lengths.estimate() is None
