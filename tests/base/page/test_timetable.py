"""A timetable: each item once, in order, at its moment or a little before."""

import asyncio

import uvloop
from hypothesis import given
from hypothesis import strategies as st

from inflight_base.page.timetable import GRAIN_SECONDS, Timetable
from tests.base.virtual_time import in_virtual_time, run


@given(st.lists(st.tuples(st.floats(0, 0.05), st.floats(0, 0.2)), max_size=40))
def test_each_item_comes_once_and_at_most_a_grain_early(additions):
    async def play():
        loop, came, expected = asyncio.get_running_loop(), [], {}
        table = Timetable(lambda item: came.append((loop.time(), item)))
        for item, (pause, delay) in enumerate(additions):
            await asyncio.sleep(pause)
            expected[item] = loop.time() + delay
            table.add(delay, item)
        await asyncio.sleep(1.0)
        assert sorted(item for _, item in came) == sorted(expected)
        for time, item in came:
            assert expected[item] - GRAIN_SECONDS - 1e-9 <= time <= expected[item] + 1e-9

    run(play())


@in_virtual_time
async def test_many_items_of_a_moment_take_few_timers():
    loop, calls = asyncio.get_running_loop(), []
    call_at = loop.call_at
    loop.call_at = lambda when, call, *arguments, **named: (
        calls.append(when) or call_at(when, call, *arguments, **named)
    )
    came = []
    table = Timetable(came.append)
    for item in range(1000):
        table.add(0.1 + item / 10_000, item)
    while len(came) < 1000:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert came == list(range(1000))
    assert len([when for when in calls if when]) <= 60


@in_virtual_time
async def test_items_that_are_due_may_add_items_and_none_comes_after_it_was_cleared():
    came = []

    def due(item):
        came.append(item)
        if item < 5:
            table.add(0.0, item + 1)

    table = Timetable(due)
    table.add(0.0, 0)
    await asyncio.sleep(1.0)
    assert came == [0, 1, 2, 3, 4, 5]
    table.add(0.1, 6)
    table.clear()
    await asyncio.sleep(1.0)
    assert came[-1] == 5
    table.add(0.1, 7)
    await asyncio.sleep(1.0)
    assert came[-1] == 7


def test_with_uvloop_an_item_may_be_due_in_no_time_before_an_earlier_one():
    """Its handle for less than half a millisecond has no time."""

    async def play():
        came = []
        table = Timetable(came.append)
        for item, delay in enumerate((0.0004, 0.0003, 0.0, 0.01)):
            table.add(delay, item)
        async with asyncio.timeout(5.0):
            while len(came) < 4:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        assert sorted(came) == [0, 1, 2, 3]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(play())
