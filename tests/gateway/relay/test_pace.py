from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from inflight_gateway.relay.pace import BUSY_READS_PER_S, FULL_TURN, REST_S, Pace

TURN_S = 0.001
BUSY = round(BUSY_READS_PER_S * TURN_S) + 2
"""Reads of each turn at more than the rate, and fewer than those of a full turn."""


def rests(turns: Sequence[int], turn_s: float = TURN_S) -> list[bool]:
    """Returns after which turns a rest follows. Args: turns: reads in each turn, `turn_s` apart."""
    taken: list[float] = []
    now = 100.0

    async def run() -> list[bool]:
        nonlocal now
        asyncio.get_running_loop().time = lambda: now  # type: ignore[method-assign]
        pace, found = Pace(taken.append), []
        for reads in turns:
            taken.clear()
            for _ in range(reads):
                pace.read()
            await asyncio.sleep(0)
            now += turn_s
            found.append(bool(taken))
            assert taken in ([], [REST_S])
        return found

    return asyncio.run(run())


def test_streams_below_the_rate_are_never_delayed():
    few = round(BUSY_READS_PER_S * TURN_S) - 1
    assert not any(rests([few] * 3000))


def test_one_stream_is_never_delayed_however_long_it_lasts():
    assert not any(rests([1] * 5000, turn_s=0.005))


def test_while_many_tokens_pass_a_rest_follows_each_turn_with_few():
    found = rests([BUSY] * 1000)
    assert not any(found[:30])
    assert all(found[100:])


def test_a_process_that_falls_behind_does_not_rest():
    # Once at most: of the turn in which the load begins, only the last reads are counted.
    assert sum(rests([FULL_TURN] * 1000)) <= 1


def test_rests_end_with_the_load():
    found = rests([BUSY] * 200 + [1] * 200)
    assert found[199]
    assert not any(found[300:])


def test_a_burst_after_a_silence_is_not_delayed():
    assert not any(rests([0] * 1000 + [3] * 30 + [0] * 1000 + [3] * 30))


@given(turns=st.lists(st.integers(0, 40), max_size=300))
def test_a_turn_is_followed_by_one_rest_at_most_and_by_none_without_reads(turns):
    assert all(turn for turn, rested in zip(turns, rests(turns), strict=True) if rested)
