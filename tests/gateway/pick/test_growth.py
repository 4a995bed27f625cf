"""Growth of a KV cache's use, against a count step by step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_gateway.pick.growth import NO_GROWTH, Growing, Growth

TOKENS = st.integers(0, 60)
REQUESTS = st.lists(st.builds(Growing, left=TOKENS, held=TOKENS), max_size=8)


def most_in_steps(requests, prompt, answer, weight):
    """The largest use of any step, above that with the prompt of the new request."""
    running = [(left, held, weight) for left, held in requests] + [(answer, prompt, 1)]
    before = sum(held * count for _, held, count in running)
    return max(
        sum((held + step) * count for left, held, count in running if left >= step) - before for step in range(62)
    )


@given(REQUESTS, TOKENS, TOKENS, st.sampled_from((1, 2, 3)))
def test_it_is_the_most_of_any_step(requests, prompt, answer, weight):
    assert Growth(requests, weight).most(prompt, answer) == most_in_steps(requests, prompt, answer, weight)


@given(REQUESTS, TOKENS, TOKENS, st.sampled_from((1, 2)), st.integers(0, 300))
def test_it_fits_where_that_is_no_more_than_the_room(requests, prompt, answer, weight, room):
    growth = Growth(requests, weight)
    assert growth.fits(room, prompt, answer) == (growth.most(prompt, answer) <= room)


def test_alone_a_request_grows_by_its_answer():
    assert NO_GROWTH.most(100, 30) == 30


def test_an_answer_that_ends_first_makes_room():
    assert Growth([Growing(left=10, held=500)]).most(100, 300) == 20
    assert Growth([Growing(left=290, held=500)]).most(100, 300) == 580


@given(REQUESTS, TOKENS, TOKENS)
def test_requests_of_others_count_like_those_that_are_known(requests, prompt, answer):
    assert Growth(requests, 1.5).most(prompt, answer) == pytest.approx(
        most_in_steps(requests, prompt, answer, weight=1.5)
    )
