"""Services that move from one gateway pod to another, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from inflight_gateway.types import HoldBounds
from tests.gateway.virtual.engine import Sent, Shape
from tests.gateway.virtual.fleet import BETWEEN_S, Fleet, run

PODS = 3
SLOTS = 2
APART_S = 0.002
"""Between two requests: more than the way from one pod to another."""
NOTICED_S = 3.0
"""Until all relays have noticed what happened to a picker, and trust one that is back."""
MIDDLE_S = 0.25
"""The middle of the time between two beats."""

pod = st.integers(0, PODS - 1)
ASKS = st.lists(pod, max_size=12)
"""Pods that get a request each, one after the other."""
EVENT = st.one_of(
    st.tuples(st.sampled_from(["kill", "start", "hang", "wake"]), pod),
    st.tuples(st.just("ready"), st.sets(pod, min_size=1)),
)


class Play:
    """Attributes: ready, dead, hung: numbers of pods. at: number of the pod of each request."""

    def __init__(self) -> None:
        self.fleet = Fleet(Shape(slots=SLOTS), PODS, hold=HoldBounds(max_requests=1000, max_wait_s=1000.0))
        self.ready, self.dead, self.hung = set(range(PODS)), set[int](), set[int]()
        self.at: list[int] = []
        self._tasks: list[asyncio.Task] = []

    async def ask(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            name = f"{len(self.at):03d}"
            self.at.append(number)
            self._tasks.append(asyncio.create_task(self.fleet.generate(self.fleet.pods[number], "", name=name)))
            await asyncio.sleep(APART_S)

    def happens(self, kind: str, value) -> None:
        """Lets it happen, unless it cannot, or no picker of a ready pod would be left."""
        ready, dead, hung = set(self.ready), set(self.dead), set(self.hung)
        if kind == "ready":
            ready = value
        else:
            dead |= {value} if kind == "kill" else set()
            dead -= {value} if kind == "start" else set()
            hung -= {value} if kind != "hang" else set()
            hung |= {value} - dead if kind == "hang" else set()
        if (ready, dead, hung) == (self.ready, self.dead, self.hung) or not ready - dead - hung:
            return
        self.ready, self.dead, self.hung = ready, dead, hung
        if kind == "ready":
            self.fleet.set_ready(*(self.fleet.pods[number] for number in value))
            return
        picker = self.fleet.pods[value].picker
        match kind:
            case "kill":
                picker.wake()
                picker.kill()
            case "start":
                self.fleet.pods[value].start_picker()
            case "hang":
                picker.hang()
            case "wake":
                picker.wake()

    async def end(self) -> None:
        """Waits until all requests have ended, and nothing is left of them."""
        await asyncio.wait_for(asyncio.gather(*self._tasks), 300.0)
        assert self.fleet.refused == []
        assert len({each.name for each in self.fleet.started}) == len(self.fleet.started) == len(self.at)
        for number in self.hung:
            self.fleet.pods[number].picker.wake()
        await asyncio.sleep(8.0)
        for number in set(range(PODS)) - self.dead:
            assert len(self.fleet.pods[number].picker.requests) == 0

    def of(self, number: int) -> list[Sent]:
        """The requests of a pod."""
        return [each for each in self.fleet.started if self.at[int(each.name)] == number]


def assert_in_order(started: Sequence[Sent]) -> None:
    last = 0.0
    for each in sorted(started, key=lambda each: each.name):
        assert each.started >= last - BETWEEN_S - 1e-9
        last = max(last, each.started)


@settings(max_examples=25)
@given(st.lists(st.tuples(ASKS, EVENT, ASKS), min_size=1, max_size=4))
def test_when_one_thing_after_the_other_happens_to_owners_all_requests_start_in_the_order_in_which_they_came(steps):
    """None is lost, and engines get no request more than from one picker. Requests come also while relays do not know
    yet what has happened, except while a picker is back and not trusted by all of them."""

    async def main():
        play = Play()
        await play.fleet.start()
        for before, (kind, value), after in steps:
            await play.ask(before)
            await asyncio.sleep(MIDDLE_S)
            play.happens(kind, value)
            if kind not in ("start", "wake"):
                await play.ask(after)
            await asyncio.sleep(NOTICED_S)
        await play.end()
        return play

    play = run(main)
    assert_in_order(play.fleet.started)
    assert play.fleet.most <= SLOTS + 1


@settings(max_examples=35)
@given(st.lists(st.tuples(ASKS, EVENT, st.sampled_from([0.0, 0.01, 0.05, 0.1, 0.3, 1.0, 3.0])), max_size=8))
def test_whatever_happens_to_owners_no_request_is_lost_or_starts_twice_and_each_relay_keeps_its_order(steps):
    async def main():
        play = Play()
        await play.fleet.start()
        for asks, event, seconds in steps:
            await play.ask(asks)
            play.happens(*event)
            await asyncio.sleep(seconds)
        await play.end()
        return play

    play = run(main)
    for number in range(PODS):
        assert_in_order(play.of(number))
