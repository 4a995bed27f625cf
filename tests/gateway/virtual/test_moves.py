"""Services that move from one gateway pod to another, in virtual time."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from inflight_gateway.types import HoldBounds
from tests.gateway.virtual.engine import Shape
from tests.gateway.virtual.fleet import BETWEEN_S, Fleet, run

PODS = 3
SENT = st.lists(st.integers(0, PODS - 1), min_size=1, max_size=12)
"""Pods that get a request each, one after the other."""
APART_S = 0.002
"""Between two requests: more than the way from one pod to another."""
NOTICED_S = 3.0
"""Until all relays have noticed what happened to a picker."""


@settings(max_examples=30)
@given(SENT, st.sampled_from(["killed", "hung", "not ready"]), SENT)
def test_when_a_service_gets_another_owner_no_request_is_lost_and_all_start_in_the_order_in_which_they_came(
    before, happens, after
):
    """The new owner knows what runs: engines get no request more than from one picker."""

    async def main():
        fleet = Fleet(Shape(slots=2), PODS, hold=HoldBounds(max_requests=1000, max_wait_s=1000.0))
        await fleet.start()
        owner, tasks = fleet.owner, []

        async def send(numbers):
            for number in numbers:
                name = f"{len(tasks):03d}"
                tasks.append(asyncio.create_task(fleet.generate(fleet.pods[number], "", name=name)))
                await asyncio.sleep(APART_S)

        await send(before)
        if happens == "killed":
            owner.picker.kill()
        elif happens == "hung":
            owner.picker.hang()
        else:
            fleet.set_ready(*(pod for pod in fleet.pods if pod is not owner))
        await asyncio.sleep(NOTICED_S)
        await send(after)
        await asyncio.wait_for(asyncio.gather(*tasks), 300.0)
        return fleet

    fleet = run(main)
    assert fleet.refused == []
    assert len(fleet.done) == len(before) + len(after)
    assert fleet.most <= 3
    last = 0.0
    for each in sorted(fleet.started, key=lambda each: each.name):
        assert each.started >= last - BETWEEN_S - 1e-9
        last = max(last, each.started)
