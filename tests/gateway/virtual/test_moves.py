"""Services that move from one gateway pod to another, in virtual time."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from inflight_gateway.types import HoldBounds
from tests.gateway.virtual.engine import Shape
from tests.gateway.virtual.fleet import BETWEEN_S, Fleet, run

PODS = 3
pod = st.integers(0, PODS - 1)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.lists(pod, min_size=1, max_size=12)),
        st.tuples(st.just("wait"), st.sampled_from([0.01, 0.3, 1.0, 3.0])),
        st.tuples(st.just("ready"), st.sets(pod, min_size=1)),
        st.tuples(st.just("kill"), pod),
        st.tuples(st.just("start"), pod),
        st.tuples(st.just("hang"), pod),
        st.tuples(st.just("wake"), pod),
    ),
    min_size=3,
    max_size=14,
)
APART_S = 0.002
"""Between two requests: more than the way from one pod to another."""

CONNECTED_S = 3.0
"""Until all relays have noticed what happened to a picker: one thing happens at a time."""

TOLD_S = 0.3
"""Until all relays know the ready pods."""


class Play:
    """Attributes: ready, dead, hung: numbers of pods."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.ready, self.dead, self.hung = set(range(PODS)), set[int](), set[int]()
        self.tasks: list[asyncio.Task] = []

    def serves(self, ready, dead, hung):
        return bool(ready - dead - hung)

    async def step(self, kind, value):
        pods = self.fleet.pods
        if kind == "ask":
            for number in value:
                name = f"{len(self.tasks):03d}"
                self.tasks.append(asyncio.create_task(self.fleet.generate(pods[number], "", 64, 24, name)))
                await asyncio.sleep(APART_S)
        elif kind == "wait":
            await asyncio.sleep(value)
        elif kind == "ready" and not self.dead | self.hung:  # relays hear of it from the picker of their own pod
            self.ready = value
            self.fleet.set_ready(*(pods[number] for number in value))
            await asyncio.sleep(TOLD_S)
        elif kind == "kill" and self.serves(self.ready, self.dead | {value}, self.hung) and value not in self.dead:
            self.dead.add(value)
            self.hung.discard(value)
            pods[value].picker.wake()
            pods[value].picker.kill()
            await asyncio.sleep(CONNECTED_S)
        elif kind == "start" and value in self.dead:
            self.dead.discard(value)
            pods[value].start_picker()
            await asyncio.sleep(CONNECTED_S)
        elif kind == "hang" and self.serves(self.ready, self.dead, self.hung | {value}) and value not in self.dead:
            self.hung.add(value)
            pods[value].picker.hang()
            # A relay that has a new question for the picker takes it for hung a second earlier than others.
            await asyncio.sleep(CONNECTED_S)
        elif kind == "wake" and value in self.hung:
            self.hung.discard(value)
            pods[value].picker.wake()
            await asyncio.sleep(CONNECTED_S)


@settings(max_examples=40)
@given(STEPS)
def test_whatever_happens_to_owners_no_request_is_lost_and_all_start_in_the_order_in_which_they_came(steps):
    """While one picker of a ready pod works. Pickers are killed and start again, hang and go on, one after the other;
    pods become ready and not ready while all work. Engines get at most as many requests as two pickers would send that
    do not know of each other.
    """

    async def main():
        fleet = Fleet(Shape(slots=2), PODS, hold=HoldBounds(max_requests=1000, max_wait_s=1000.0))
        await fleet.start()
        play = Play(fleet)
        for kind, value in steps:
            await play.step(kind, value)
        await asyncio.wait_for(asyncio.gather(*play.tasks), 300.0)
        return fleet, len(play.tasks)

    fleet, sent = run(main)
    assert fleet.refused == []
    assert len(fleet.done) == sent
    assert fleet.most <= 6
    last = 0.0
    for each in sorted(fleet.started, key=lambda each: each.name):
        assert each.started >= last - BETWEEN_S - 1e-9
        last = max(last, each.started)
