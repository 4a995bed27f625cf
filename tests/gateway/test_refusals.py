from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inflight_gateway.refusals import REFUSAL_S, Refusals


def test_a_refusal_is_recent_for_a_second_from_the_last_one():
    refusals = Refusals()
    assert not refusals.recent("a", 0.0)
    refusals.refused("a", 0.0)
    refusals.refused("a", 0.5)
    assert refusals.recent("a", 0.4 + REFUSAL_S)
    assert not refusals.recent("b", 0.4 + REFUSAL_S)
    assert not refusals.recent("a", 0.5 + REFUSAL_S)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 1)), max_size=50))
def test_only_recent_refusals_are_remembered(refused):
    refusals, last, now = Refusals(), {}, 0.0
    for address, pause in refused:
        now += pause
        refusals.expire(now)
        refusals.refused(address, now)
        last[address] = now
        for one in "abc":
            assert refusals.recent(one, now) == (one in last and now < last[one] + REFUSAL_S)
    refusals.expire(now + REFUSAL_S)
    assert not refusals
