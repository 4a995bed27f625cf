"""Expected lengths of answers, from those that ended and those under way."""

from random import Random
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_gateway.tenants.answer_lengths import FIRST_ANSWER, RECENT, REFRESH_S, Lengths, Residual

UNLIMITED = float("inf")
ENDED = st.lists(st.integers(1, 3000), max_size=RECENT).map(sorted)
RUNNING = st.lists(st.floats(0, 5000), max_size=20).map(sorted)


@given(ENDED, st.floats(0, 3000))
def test_without_answers_under_way_it_is_the_mean_of_what_longer_ones_had_left(ended, generated):
    longer = [each - generated for each in ended if each > generated]
    if longer:
        assert Residual(ended, []).left(generated) == pytest.approx(mean(longer))


@given(ENDED, RUNNING, st.floats(0, 6000))
def test_it_is_never_negative_and_an_answer_goes_on_at_most_as_twice_the_longest(ended, running, generated):
    left = Residual(ended, running).left(generated)
    assert left >= 0
    assert generated + left <= 2 * max([generated, *ended, *running]) + 1e-6


def test_short_answers_that_end_first_do_not_hide_the_long_ones_under_way():
    """Half of the answers have 100 tokens, half of them 4,000, and none of these has ended."""
    assert Residual([100] * 30, [500.0] * 30).left(0) > 400
    assert Residual([100] * 30, [500.0] * 30).left(500) > 400


@pytest.mark.parametrize("at", [1500.0, 3000.0])
def test_with_answers_under_way_it_is_near_the_true_mean_though_that_of_the_ended_is_not(at):
    """Exponential lengths, all of them started within the last `at` tokens."""
    random = Random(1)
    ended, running = [], []
    for number in range(200):
        length, age = max(1, round(random.expovariate(1 / 1000))), at * number / 200
        if length <= age:
            ended.append(length)
        else:
            running.append(age)
    assert mean(ended) < 700
    for generated in (0.0, 500.0):
        assert Residual(sorted(ended), running).left(generated) == pytest.approx(1000, rel=0.3)


def test_of_a_tenants_first_answers_all_that_they_allow_is_expected_or_twice_the_longest():
    lengths = Lengths()
    assert lengths.left(0, UNLIMITED) == FIRST_ANSWER
    assert lengths.left(0, 100) == 100
    assert lengths.left(0, 5000) == 5000
    long = lengths.begin(UNLIMITED)
    long.generated = 1000.0
    lengths.progressed(1.0)
    assert lengths.left(0, UNLIMITED) == 2000
    assert long.left() == 1000
    lengths.leave(long)
    lengths.progressed(1.0 + REFRESH_S)
    assert lengths.left(0, UNLIMITED) == FIRST_ANSWER


def test_requests_that_generate_nothing_are_no_answers_under_way():
    lengths = Lengths()
    for _ in range(9):
        lengths.begin(0).generated = 150.0
    lengths.ended(100)
    long = lengths.begin(UNLIMITED)
    long.generated = 200.0
    only = Lengths()
    only.ended(100)
    only.begin(UNLIMITED).generated = 200.0
    assert long.left() == only.left(200.0, UNLIMITED)
    assert lengths.left(0, UNLIMITED) == only.left(0, UNLIMITED)


@given(ENDED.filter(bool), RUNNING, st.integers(1, 4000), st.floats(0, 4000))
def test_no_more_is_expected_than_the_request_allows(ended, running, most, generated):
    lengths = Lengths()
    for each in ended:
        lengths.ended(each)
    for each in running:
        lengths.begin(UNLIMITED).generated = each
    assert 0 <= lengths.left(generated, most) <= max(0, most - generated)


def test_old_answers_are_forgotten():
    lengths = Lengths()
    for tokens in [5000] * RECENT + [100] * RECENT:
        lengths.ended(tokens)
    assert (lengths.mean(), lengths.left(0, UNLIMITED)) == (100, 100)


def test_progress_counts_once_a_second():
    lengths = Lengths()
    lengths.ended(100)
    answer = lengths.begin(UNLIMITED)
    lengths.progressed(1.0)
    assert answer.left() == 100
    answer.generated = 90.0
    lengths.progressed(1.5)
    assert answer.left() == 10
    assert lengths.left(0, UNLIMITED) == 100
    answer.generated = 500.0
    lengths.progressed(2.0)
    assert lengths.left(0, UNLIMITED) > 300
