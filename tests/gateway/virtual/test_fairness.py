"""Tenants that connect to different gateway pods share a service as at one pod.

Time is virtual: the delays that remain are those of the pods' decisions, and of the way between pods.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.gateway.virtual.engine import Shape
from tests.gateway.virtual.fleet import Fleet, run

WHERE = [
    pytest.param(1, "one", "one", id="one pod"),
    pytest.param(2, "owner", "other", id="flood at the owner, of two"),
    pytest.param(2, "other", "owner", id="client at the owner, of two"),
    pytest.param(3, "owner", "other", id="flood at the owner, of three"),
    pytest.param(3, "other", "owner", id="client at the owner, of three"),
    pytest.param(3, "other", "third", id="neither at the owner"),
]
"""Pods, and the pods that the flood and the client connect to."""


def pod(fleet, place):
    others = [each for each in fleet.pods if each is not fleet.owner]
    return fleet.owner if place in ("one", "owner") else others[place == "third"]


def closed_loop(fleet, at, clients, **sizes):
    """Starts clients of tenant `flood` that send one request after the other; returns what ends them."""

    async def client():
        while True:
            await fleet.generate(at, "flood", **sizes)

    tasks = [asyncio.create_task(client()) for _ in range(clients)]
    return lambda: [each.cancel() for each in tasks]


@pytest.mark.parametrize(("pods", "flooded", "calm"), WHERE)
def test_beside_a_flood_of_500_a_request_of_another_tenant_starts_when_the_first_answer_ends(pods, flooded, calm):
    async def main():
        fleet = Fleet(Shape(slots=16), pods)
        await fleet.start()
        end = closed_loop(fleet, pod(fleet, flooded), 500)
        await asyncio.sleep(20.0)
        already = len(fleet.done)
        sent = await fleet.generate(pod(fleet, calm), "client")
        end()
        return sent, min(each.ended for each in fleet.done[already:])

    sent, first_end = run(main)
    assert sent.started <= first_end + 0.002


@pytest.mark.parametrize("clients", [48, 200])
@pytest.mark.parametrize(("pods", "flooded", "calm"), WHERE[1:])
def test_beside_a_flood_at_another_pod_latency_is_within_a_tenth_of_alone(pods, flooded, calm, clients):
    """At the median and at p95: 48 or 200 clients in a closed loop, one tenant; a request a second, another."""

    def latencies(beside):
        async def main():
            fleet = Fleet(Shape(slots=8), pods)
            await fleet.start()
            end = closed_loop(fleet, pod(fleet, flooded), clients) if beside else list
            await asyncio.sleep(10.0)
            arrivals, tasks = random.Random(1), []
            for _ in range(100):
                await asyncio.sleep(arrivals.expovariate(1.0))
                tasks.append(asyncio.create_task(fleet.generate(pod(fleet, calm), "client")))
            taken = [each.ended - each.at for each in await asyncio.gather(*tasks)]
            end()
            return sorted(taken)

        return run(main)

    alone, beside = latencies(False), latencies(True)
    for place in (50, 95):
        assert beside[place] <= 1.1 * alone[place]
