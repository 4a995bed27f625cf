"""Rounds of a service whose engines report the costs of their steps: replicas by capacity, through to status and
events."""

from datetime import datetime
from itertools import pairwise
from random import Random

import pytest

from inflight_operator.decide.replicas.autopilot import AutopilotPolicy
from tests.operator.reconcile.world import SMALL, World

QUIET_TUNING = {"tuning": {"mode": "Off"}}
SPEC = {**SMALL, **QUIET_TUNING, "slo": {"ttftP95": "5s", "tpotP95": "400ms"}, "scaling": {"maxReplicas": 8}}
START_UP = 120.0


def spec(**scaling):
    return {**SPEC, "scaling": {**SPEC["scaling"], **scaling}}


class Traffic:
    """Requests of 200 + 30 tokens at a steady rate, each to the ready engine with the fewest."""

    def __init__(self, world):
        self.world, self.due = world, 0.0

    async def round(self, rate, seconds=3.0):
        self.due += rate * seconds
        pods = [one for one in self.world.engines.values() if not one.silent]
        while self.due >= 1:
            self.due -= 1
            least = min(pods, key=lambda one: len(one.model.waiting) + len(one.model.running))
            least.model.add(200, 30)
        await self.world.round(seconds)


def telling(world, number, **more):
    engine = world.pod(number, **more)
    engine.model.reported_cost = engine.model.true_cost
    return engine


async def warmed_up(world, rate, **scaling):
    """A service with one pod that has been watched for a while."""
    world.service(spec=spec(**scaling))
    telling(world, 1)
    traffic = Traffic(world)
    for _ in range(40):
        await traffic.round(rate)
    return traffic


async def test_demand_above_the_capacity_of_one_pod_orders_replicas_and_says_why(world):
    traffic = await warmed_up(world, 2.0)
    assert world.replicas() == 1
    while world.replicas() == 1:
        await traffic.round(9.0)
    decision = world.status["decisions"][-1]
    assert (decision["kind"], decision["code"], decision["from"]) == ("Scaling", "Demand", 1)
    assert {"rate", "need", "each", "margin", "prompt", "output"} <= decision["numbers"].keys()
    assert "requests/s of 200 + 30 tokens need" in decision["reason"]
    assert any(event[2] == "Scaled" and "tokens need" in event[3] for event in world.api.of("event"))
    assert world.condition("ScalingActive")["status"] == "True"
    (family,) = (one for one in world.metrics.of_services.collect() if one.name.endswith("timestamp_seconds"))
    shown = {sample.labels["knob"]: sample for sample in family.samples}["replicas"]
    assert shown.labels["reason"] == "Demand"
    assert shown.labels["to"] == str(decision["to"])
    assert shown.value == pytest.approx(datetime.fromisoformat(decision["time"]).timestamp(), abs=1)


async def test_no_more_is_ordered_while_replicas_start(world):
    """A load of 120 s: what is ordered stays what the demand needs and what waits until then takes."""
    traffic = await warmed_up(world, 2.0)
    ordered = []
    for _ in range(int(START_UP / 3)):
        await traffic.round(7.0)
        for number in range(2, world.replicas() + 1):
            telling(world, number, ready=False)
            world.engines[f"10.0.0.{number}"].silent = True
        ordered.append(world.replicas())
    assert ordered[-1] > 1
    first = next(index for index, count in enumerate(ordered) if count > 1)
    assert ordered[-1] <= ordered[first] + 2
    changes = sum(one != other for one, other in pairwise(ordered))
    assert changes <= 3


async def test_a_queue_that_the_model_says_is_worked_off_orders_nothing(world):
    traffic = await warmed_up(world, 2.0)
    traffic.due += 20
    for _ in range(20):
        await traffic.round(2.0)
        assert world.replicas() == 1


async def test_a_target_of_the_user_s_own_counts_beside_the_model(world):
    traffic = await warmed_up(world, 2.0, targets={"concurrency": 1})
    for _ in range(20):
        await traffic.round(3.0, seconds=1.0)
    assert world.replicas() > 1
    reasons = [one["reason"] for one in world.status["decisions"]]
    assert any("requests in each replica, 1 is the target" in reason for reason in reasons)


async def test_a_pod_that_was_not_ready_for_a_moment_brings_no_demand_when_it_is_ready_again(world):
    traffic = await warmed_up(world, 2.0)
    for _ in range(100):
        await traffic.round(2.0)
    telling(world, 1, ready=False)
    for _ in range(3):
        await traffic.round(2.0)
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": world.clock.calendar().isoformat()}
    telling(world, 1, status={"conditions": [ready]})
    for _ in range(20):
        await traffic.round(2.0)
        assert world.replicas() == 1


async def test_where_limits_are_only_recommended_a_replica_carries_what_those_in_force_let_it(world):
    tight = {"maxNumSeqs": 2, "maxNumBatchedTokens": 2048, "revision": 7, "podsInForce": 1, "summary": "2/2048"}
    for mode, more in (("Auto", False), ("Recommend", True)):
        world.restart()
        world.service(spec={**spec(), "tuning": {"mode": mode}}, status={"limits": tight})
        telling(world, 1)
        traffic = Traffic(world)
        for _ in range(40):
            await traffic.round(0.5)
        reason = world.condition("ScalingActive")["message"]
        each = float(reason.split(" at ")[1].split("/s each")[0])
        assert (each < 2.5) == more, reason


async def test_a_silent_pod_takes_no_replica_away_by_the_model(world):
    world.service(spec=spec(), status={"desiredReplicas": 3})
    for number in (1, 2, 3):
        telling(world, number)
    traffic = Traffic(world)
    for step in range(300):
        world.engines["10.0.0.2"].silent = step > 20
        await traffic.round(0.3)
        if step > 30:
            assert world.replicas() == 3
    assert world.condition("ScalingActive")["status"] == "False"


async def test_fewer_are_kept_once_the_model_says_that_fewer_hold_the_targets(world):
    world.service(spec=spec(), status={"desiredReplicas": 3})
    for number in (1, 2, 3):
        telling(world, number)
    traffic = Traffic(world)
    for _ in range(250):
        await traffic.round(1.0)
    assert world.replicas() == 1


async def test_before_the_demand_is_known_no_replica_goes_and_an_idle_service_then_shrinks(world):
    at_once = {"scaleDown": {"stabilizationWindowSeconds": 0}}
    world.service(spec=spec(behavior=at_once), status={"desiredReplicas": 3})
    for number in (1, 2, 3):
        telling(world, number)
    for _ in range(int(AutopilotPolicy().level / 3) - 1):
        await world.round()
        assert world.replicas() == 3
    assert "not enough requests have been observed yet" in world.condition("ScalingActive")["message"]
    for _ in range(3):
        await world.round()
    assert world.replicas() == 1
    assert "no request has arrived" in world.status["decisions"][-1]["reason"]


async def test_additional_pods_of_a_rollout_order_no_replicas_before_the_demand_is_known(world):
    world.service(spec=spec(minReplicas=3), status={"desiredReplicas": 3})
    traffic = Traffic(world)
    for number in (1, 2, 3, 4):  # the last one as a surge
        telling(world, number)
    for _ in range(int(AutopilotPolicy().level / 3) + 5):
        await traffic.round(1.0)
        assert world.replicas() == 3


async def test_an_engine_that_reports_no_cost_is_scaled_by_its_queue_until_its_histograms_reveal_it(world):
    world.service(spec=spec(targets={}))
    engine = world.pod(1)
    engine.foreign = True
    engine.model.reports_cache = True
    reasons = []
    for step in range(120):
        for part in range(10):
            engine.model.run_until(world.now + 0.3 * part)
            for _ in range((step * 37 % 10 + part) // 10):
                engine.model.add(5, 60)
            for _ in range((step * 53 % 17 + part) // 10):
                engine.model.add(300, 2)
        await world.round()
        reasons.append(world.condition("ScalingActive")["message"])
    assert "4 per replica is the target" in reasons[5] or "KV cache" in reasons[5]
    assert any("tokens need" in reason for reason in reasons[60:])


async def test_external_mode_computes_and_shows_what_the_model_asks_for(world):
    world.service(spec={**spec(mode="External"), "replicas": 1})
    telling(world, 1)
    traffic = Traffic(world)
    for _ in range(60):
        await traffic.round(9.0)
    assert world.replicas() == 1
    assert world.status["desiredReplicas"] > 1
    assert "tokens need" in world.condition("ScalingActive")["message"]


async def test_steady_traffic_and_a_known_cost_write_nothing(world):
    world.service(spec={**spec(maxReplicas=1), "cost": {"pricePerReplicaHour": "2.50", "currency": "USD"}})
    telling(world, 1)
    traffic, calls = Traffic(world), []
    for step in range(300):
        await traffic.round(1.0 + step % 3 / 10)
        if step > 150:
            calls += world.api.calls
    assert calls == []


async def test_the_same_advice_is_not_given_again_for_requests_that_vary_around_their_mean(world):
    random, slo = Random(1), {"ttftP95": "5s", "tpotP95": "400ms"}
    world.service(spec={**SMALL, "slo": slo, "scaling": {"maxReplicas": 1}, "tuning": {"mode": "Recommend"}})
    engine, writes, advice = telling(world, 1), 0, 0
    for step in range(400):
        for _ in range(6):
            engine.model.add(int(random.lognormvariate(5, 0.8)) + 5, int(random.lognormvariate(3.2, 0.6)) + 2)
        await world.round()
        if step > 200:
            writes += len(world.api.of("status"))
            advice += sum(event[2] == "TuningAdvice" for event in world.api.of("event"))
    assert any(one["kind"] == "Tuning" and not one["applied"] for one in world.status["decisions"])
    assert advice <= 2
    assert writes <= 12


async def test_changing_demand_without_a_decision_writes_the_status_at_most_once_a_minute(world):
    traffic = await warmed_up(world, 2.0, maxReplicas=1)
    writes = 0
    for step in range(200):
        await traffic.round(1.0 + step % 5)
        writes += len(world.api.of("status"))
    assert writes <= 12


async def test_the_status_shows_what_the_service_costs(world):
    world.service(spec={**spec(), "cost": {"pricePerReplicaHour": "2.50", "currency": "USD"}})
    telling(world, 1)
    traffic = Traffic(world)
    for _ in range(120):
        await traffic.round(2.0)
    cost = world.status["cost"]
    assert cost["perHour"] == "2.50"
    # 2 requests of 230 tokens a second.
    assert abs(float(cost["perMillionTokens"]) / (2.5 / 3600 / 460 * 1e6) - 1) < 0.3
    assert cost["summary"].startswith("2.50 USD an hour for 1 pod, 1.")
    world.service(spec=spec(), generation=2, status=world.status)
    await traffic.round(2.0)
    assert "cost" not in world.status


async def test_the_emptiest_pod_is_marked_to_go_first_by_the_tokens_of_its_requests(world):
    fast = {"scaleDown": {"stabilizationWindowSeconds": 0}}
    world.service(spec=spec(behavior=fast), status={"desiredReplicas": 2})
    for number in (1, 2):
        telling(world, number)
    traffic, marked = Traffic(world), {}
    for _ in range(230):
        world.engines["10.0.0.1"].model.add(10, 200)
        await traffic.round(0.3)
        marked |= {call[1]: call[2] for call in world.api.of("cost")}
        if world.replicas() == 1:
            break
    assert marked.get("chat-2", 0) < marked["chat-1"]


@pytest.mark.parametrize(("per_thousand", "replicas"), [("0ms", 2), ("60s", 1)])
async def test_without_a_cost_model_first_tokens_are_late_by_the_target_of_a_mean_prompt(world, per_thousand, replicas):
    slo = {"ttftP95": "10ms", "ttftPerThousandTokens": per_thousand, "tpotP95": "10s"}
    scaling = {"maxReplicas": 2, "targets": {"waitingRequests": 100_000, "kvUtilization": 1}}
    world.service(spec={**SMALL, **QUIET_TUNING, "slo": slo, "scaling": scaling})
    world.pod(1)
    traffic = Traffic(world)
    for _ in range(20):
        await traffic.round(5.0)
    assert world.replicas() == replicas
    reasons = [one["reason"] for one in world.status["decisions"]]
    assert any("over target 10ms" in one for one in reasons) == (replicas == 2), reasons


async def test_the_status_holds_demand_against_capacity_once_costs_are_known(world):
    world.service(spec=spec())
    engine = world.pod(1)
    await world.round()
    assert "demand" not in world.status
    traffic = Traffic(world)
    engine.model.reported_cost = engine.model.true_cost
    for _ in range(60):
        await traffic.round(2.0)
    demand = world.status["demand"]
    assert demand["requestsPerSecond"] == pytest.approx(2.0, rel=0.5)
    assert demand["neededReplicas"] == pytest.approx(
        demand["requestsPerSecond"] / demand["replicaRequestsPerSecond"], rel=0.02
    )
    assert world.status["blockedReplicas"] == 0


@pytest.mark.parametrize(("mode", "less"), [("Auto", True), ("Off", False)])
async def test_a_replica_counts_for_less_where_tuning_leaves_the_error_of_the_model_of_the_target(mode, less):
    each = []
    for error in (0.0, 0.3):
        world = World()
        world.service(spec={**SPEC, "slo": {"ttftP95": "5s", "tpotP95": "80ms"}, "tuning": {"mode": mode}})
        engine, traffic = telling(world, 1), Traffic(world)
        engine.model.cost_error = error
        for _ in range(25):
            await traffic.round(1.0)
        each.append(world.status["demand"]["replicaRequestsPerSecond"])
    assert (each[1] < each[0] * 0.9) == less
