from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inflight_gateway.timers import Timers

SECONDS = 1.0


def test_a_timer_runs_from_its_last_beginning():
    timers = Timers(SECONDS)
    assert not timers.runs("a", 0.0)
    timers.begin("a", 0.0)
    timers.begin("a", 0.5)
    assert timers.runs("a", 0.4 + SECONDS)
    assert not timers.runs("b", 0.4 + SECONDS)
    assert not timers.runs("a", 0.5 + SECONDS)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 1)), max_size=50))
def test_only_timers_that_run_are_kept(begun):
    timers, last, now = Timers(SECONDS), {}, 0.0
    for address, pause in begun:
        now += pause
        timers.expire(now)
        timers.begin(address, now)
        last[address] = now
        for one in "abc":
            assert timers.runs(one, now) == (one in last and now < last[one] + SECONDS)
    timers.expire(now + SECONDS)
    assert not timers
