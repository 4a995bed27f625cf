"""Shares of scrapes: groups take turns, and no group keeps a place from the others."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from inflight_base.page.places import Places, Turns
from tests.base import virtual_time
from tests.base.virtual_time import in_virtual_time


def test_groups_take_turns_and_those_of_one_group_keep_their_order():
    turns = Turns()
    for group, item in [("a", 1), ("a", 2), ("a", 3), ("b", 4), ("b", 5), ("c", 6)]:
        turns.add(group, item)
    assert [turns.next() for _ in range(6)] == [1, 4, 6, 2, 5, 3]
    assert not turns


class Holder:
    """Holds a place until it has to leave. Attributes: had: it got a place. leave: when it leaves."""

    def __init__(self, places, group):
        self.had, self.leave = False, asyncio.Event()
        self.task = asyncio.create_task(self._hold(places, group))

    async def _hold(self, places, group):
        async with places.held(group, self.leave.set):
            self.had = True
            await self.leave.wait()


class Leaver(Holder):
    """A holder that comes back at once."""

    async def _hold(self, places, group):
        while True:
            async with places.held(group, self.leave.set):
                self.had = True
                await self.leave.wait()
            self.leave.clear()


@in_virtual_time
async def test_a_place_is_kept_while_no_other_waits():
    places = Places(2, 1.0)
    one, two = Holder(places, "a"), Holder(places, "a")
    await asyncio.sleep(100.0)
    assert one.had
    assert two.had
    assert not one.leave.is_set()
    assert not two.leave.is_set()


@in_virtual_time
async def test_a_group_waits_for_one_place_however_many_of_others_wait_before_it():
    places = Places(64, 1.0)
    hostile = [Holder(places, f"hostile-{number % 4}") for number in range(1000)]
    await asyncio.sleep(0.5)
    assert sum(one.had for one in hostile) == 64
    honest = Holder(places, "honest")
    await asyncio.sleep(0.501)
    assert honest.had
    assert not honest.leave.is_set()


@in_virtual_time
async def test_each_of_many_groups_gets_a_place_in_time():
    places = Places(8, 1.0, 0.5)
    for number in range(1000):
        Leaver(places, f"hostile-{number}")
    await asyncio.sleep(0.01)
    honest = Leaver(places, "honest")
    await asyncio.sleep(0.51)
    assert honest.had


@in_virtual_time
async def test_only_as_many_leave_as_others_wait():
    places = Places(8, 1.0)
    first = [Holder(places, "a") for _ in range(8)]
    await asyncio.sleep(5.0)
    later = [Holder(places, "b") for _ in range(3)]
    await asyncio.sleep(0.5)
    assert all(one.had for one in later)
    assert [one.leave.is_set() for one in first] == [True] * 3 + [False] * 5


@given(
    st.integers(1, 3),
    st.lists(
        st.one_of(
            st.tuples(st.just("come"), st.integers(0, 3)),
            st.tuples(st.sampled_from(["leave", "cancel", "leave and cancel"]), st.integers(0, 20)),
            st.tuples(st.just("wait"), st.integers(0, 3)),
            st.tuples(st.just("turn"), st.just(0)),
        ),
        max_size=40,
    ),
)
def test_no_place_is_lost_or_held_twice_in_any_order_of_events(count, events):
    async def play():
        places, holders = Places(count, 1.0), []
        for what, number in events:
            if what == "come":
                holders.append(Holder(places, f"{number}"))
            elif what == "wait":
                await asyncio.sleep(number / 2)
            elif what == "turn":
                await asyncio.sleep(0)
            elif holders:
                one = holders[number % len(holders)]
                if "leave" in what:
                    one.leave.set()
                if "cancel" in what:
                    one.task.cancel()
            assert sum(one.had and not one.task.done() for one in holders) <= count
        await asyncio.sleep(len(holders) + 1.0)
        assert sum(one.had and not one.task.done() for one in holders) <= count
        assert all(one.had or one.task.cancelled() for one in holders), "all got a place, or gave up"
        for one in holders:
            one.leave.set()
            one.task.cancel()
        await asyncio.gather(*(one.task for one in holders), return_exceptions=True)
        assert (places._free, places._num_waiting, places._num_ending) == (count, 0, 0)
        assert not places._held

    virtual_time.run(play())
