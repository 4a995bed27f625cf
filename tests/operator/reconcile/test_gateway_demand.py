"""Replicas for the demand at the gateway, which engines see only as far as they can start it."""

import pytest

from inflight_operator.observe.gateway_view import GatewayDemand
from tests.operator.reconcile.test_capacity import SPEC, telling

LATE_BINDING = 8
"""Most requests that the gateway leaves at an engine."""

ESTIMATED = 150
"""Tokens that the gateway estimates for a prompt of 200."""


class Behind:
    """Requests of 200 + 30 tokens through a gateway that sends an engine only what it can start."""

    def __init__(self, world, *, counts=True, **scaling):
        world.behind_gateway()
        world.service(spec={**SPEC, "gateway": {"enabled": True}, "scaling": {"maxReplicas": 50, **scaling}})
        self.world, self.due, self.held, self.most_held = world, 0.0, 0, 10_000
        self.counts, self.most_at_engine = counts, LATE_BINDING
        self.arrived = self.sent = self.refused = 0

    async def round(self, rate, seconds=3.0):
        self.due += rate * seconds
        new, self.due = int(self.due), self.due % 1
        self.arrived += new
        self.held += new
        for engine in self.world.engines.values():
            model = engine.model
            while self.held and not engine.silent and len(model.waiting) + len(model.running) < self.most_at_engine:
                model.add(200, 30)
                self.held, self.sent = self.held - 1, self.sent + 1
        if self.held > self.most_held:
            self.refused, self.held = self.refused + self.held - self.most_held, self.most_held
        self.says()
        await self.world.round(seconds)

    def says(self):
        counters = GatewayDemand(
            *(self.arrived, ESTIMATED * self.arrived, ESTIMATED**2 * self.arrived, 30 * self.arrived, self.refused),
            *(self.sent, ESTIMATED * self.sent, 30 * self.sent),
        )
        demand = {"gw-0": counters, "gw-1": GatewayDemand()} if self.counts else {}
        self.world.gateway.says(held=self.held, held_prompt_tokens=ESTIMATED * self.held, idle_s=0.0, demand=demand)


async def warmed_up(world, rate=1.0, **scaling):
    behind = Behind(world, **scaling)
    telling(world, 1)
    for _ in range(60):
        await behind.round(rate)
    return behind


async def test_a_jump_that_the_gateway_holds_back_is_ordered_in_its_full_size_within_fifteen_seconds(world):
    behind = await warmed_up(world)
    assert world.replicas() == 1
    each = float(world.status["demand"]["replicaRequestsPerSecond"])
    behind.most_held = 20
    for _ in range(5):
        await behind.round(10 * each)
    assert world.replicas() >= 10


async def test_a_jump_from_ten_to_twenty_four_replicas_worth_of_demand_is_ordered_in_one_decision(world):
    behind, rate = Behind(world), 45.0
    behind.most_at_engine = 16
    telling(world, 1)
    for _ in range(120):
        await behind.round(rate, seconds=2.0)
        for number in range(1, world.replicas() + 1):
            telling(world, number)
    each, before = float(world.status["demand"]["replicaRequestsPerSecond"]), world.replicas()
    assert rate / each == pytest.approx(10, rel=0.1)
    assert 10 <= before < 16
    decided = len(world.status["decisions"])
    await behind.round(24 * each, seconds=15.0)
    (decision,) = world.status["decisions"][decided:]
    assert decision["from"] == before
    assert 24 <= decision["to"] == world.replicas()
    assert "tokens need" in decision["reason"]


async def test_a_gateway_of_an_earlier_release_has_demand_as_far_as_engines_see_it(world):
    behind = await warmed_up(world, counts=False)
    each = float(world.status["demand"]["replicaRequestsPerSecond"])
    behind.most_held = 20
    for _ in range(5):
        await behind.round(10 * each)
    assert 1 <= world.replicas() < 5


async def test_refused_requests_are_shown_beside_the_demand_that_they_are_part_of(world):
    behind = await warmed_up(world, maxReplicas=1)
    behind.most_held = 20
    for _ in range(60):
        await behind.round(30.0)
    demand = world.status["demand"]
    assert demand["requestsPerSecond"] == pytest.approx(30.0, rel=0.1)
    assert 10.0 < demand["refusedRequestsPerSecond"] < 30.0


async def test_the_queue_of_the_status_is_that_of_gateway_and_engines(world):
    behind = await warmed_up(world, maxReplicas=1)
    for _ in range(60):
        await behind.round(30.0)
    queue = world.status["queue"]
    assert queue["atGateway"] > 100
    assert queue["waiting"] == queue["atGateway"] + queue["inEngines"]


async def test_a_steady_load_through_the_gateway_keeps_one_replica(world):
    behind = await warmed_up(world)
    for _ in range(200):
        await behind.round(1.0)
        assert world.replicas() == 1


async def test_while_no_engine_is_measured_the_demand_at_the_gateway_orders_replicas(world):
    behind = await warmed_up(world)
    each = float(world.status["demand"]["replicaRequestsPerSecond"])
    world.engines["10.0.0.1"].silent = True
    for _ in range(12):
        await behind.round(6 * each)
    assert world.replicas() >= 6
    assert world.condition("ScalingActive")["status"] == "False"


async def test_held_requests_order_replicas_before_any_engine_was_measured(world):
    """An egress policy, say, keeps the operator from all metrics."""
    behind = Behind(world)
    telling(world, 1)
    world.engines["10.0.0.1"].silent = True
    for _ in range(5):
        await behind.round(100.0)
    assert world.replicas() > 1
    assert "at the gateway and none of 1 ready pod has recent metrics" in world.status["decisions"][-1]["reason"]


async def test_held_requests_order_no_further_replica_while_the_first_one_starts(world):
    behind = Behind(world)
    telling(world, 1, ready=False)
    world.engines["10.0.0.1"].silent = True
    for _ in range(10):
        await behind.round(100.0)
    assert world.replicas() == 1
