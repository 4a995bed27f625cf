from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.relay.answers.kept import Kept

A, B = ServiceKey("ns", "a"), ServiceKey("ns", "b")
MIB = 2**20


def test_a_service_takes_at_most_half_so_that_others_go_on():
    kept = Kept(8 * MIB)
    answers = [kept.answer(A) for _ in range(5)]
    assert [each.fits(MIB) for each in answers] == [True] * 4 + [False]
    assert kept.answer(B).fits(MIB)


def test_all_answers_together_are_bounded():
    kept = Kept(8 * MIB)
    services = [ServiceKey("ns", str(number)) for number in range(9)]
    assert [kept.answer(each).fits(MIB) for each in services] == [True] * 8 + [False]


def test_an_answer_that_shrinks_always_fits():
    kept = Kept(2 * MIB)
    answer = kept.answer(A)
    assert not answer.fits(4 * MIB)
    assert answer.fits(3 * MIB)
    assert not answer.fits(4 * MIB)


@given(steps=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3 * MIB)), max_size=50))
def test_what_ended_takes_nothing(steps):
    kept = Kept(8 * MIB)
    answers = [kept.answer(A), kept.answer(A), kept.answer(B), kept.answer(B)]
    for index, size in steps:
        answers[index].fits(size)
    for answer in answers:
        answer.release()
        answer.release()
    assert (kept.size, kept._of) == (0, {})
