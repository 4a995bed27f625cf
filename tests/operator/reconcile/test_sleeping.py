"""A service that scales to zero, in rounds: to sleep, asleep, awake again, and what its status says."""

import base64

import pytest

from tests.operator.fakes import KEY, delete
from tests.operator.reconcile.world import GATEWAY

SLEEPER = {"gateway": {"enabled": True}, "scaling": {"minReplicas": 0, "idleTimeout": "60s"}}


@pytest.fixture
def world(world):
    world.behind_gateway()
    return world


async def running(world, spec=SLEEPER):
    """Runs the service with one ready pod until it is measured."""
    world.service(spec=spec)
    await world.round()
    world.rolled_out()
    world.pod(1, status={"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": moment(world)}]})
    await world.round()
    await world.round()


def moment(world):
    return world.clock.calendar().isoformat()


async def asleep(world):
    await running(world)
    await world.round(70.0)
    await world.round()
    assert world.replicas() == 0
    leave(world)
    await world.round()


def leave(world):
    """Deletes all pods, as Kubernetes does."""
    for pod in list(world.cache.pods(KEY)):
        delete(world.cache, "Pod", {"metadata": {"name": pod.name, "namespace": KEY.namespace, "uid": pod.uid}})
    world.listed.clear()
    world.route()
    world.rolled_out()


def conditions(world, *kinds):
    return [(world.condition(kind)["status"], world.condition(kind)["reason"]) for kind in kinds]


async def test_a_new_service_starts_with_one_replica_so_that_its_model_and_image_are_tried(world):
    world.service(spec=SLEEPER)
    await world.round()
    assert world.replicas() == 1
    assert conditions(world, "Ready", "Idle", "GatewayReady") == [
        ("False", "Starting"),
        ("False", "AwakeDuring"),
        ("True", "Routing"),
    ]


async def test_an_idle_service_goes_to_zero_and_stays_ready(world):
    await running(world)
    assert world.replicas() == 1
    assert conditions(world, "Idle", "Waking") == [("False", "LatelyUsed"), ("False", "Awake")]
    await world.round(70.0)
    await world.round()
    assert world.replicas() == 0
    leave(world)
    await world.round()
    assert conditions(world, "Ready", "Idle", "Waking") == [("True", "Idle"), ("True", "Idle"), ("False", "Idle")]
    assert world.condition("Ready")["message"] == (
        "no request came for 60s (scaling.idleTimeout): the next one starts a replica"
    )
    (decision,) = world.status["decisions"]
    assert (decision["change"], decision["code"]) == ("replicas 1 -> 0", "Idle")
    assert world.status["desiredReplicas"] == 0


async def test_a_request_that_comes_just_after_the_decision_to_sleep_asks_for_a_round_at_once(world):
    await running(world)
    assert not world.reconciler.is_down(KEY)
    await world.round(70.0)
    await world.round()
    assert world.cache.pods(KEY)[0].serves  # the pod is still there
    assert world.reconciler.is_down(KEY)
    world.gateway.says(held=1, idle_s=0.0)
    await world.round(0.1)
    assert world.replicas() == 1


async def test_a_held_request_wakes_it_and_ready_stays_true_until_the_replica_serves(world):
    await asleep(world)
    world.gateway.says(held=3, held_prompt_tokens=900, idle_s=0.0)
    await world.round(0.1)
    assert world.replicas() == 1
    assert conditions(world, "Ready", "Idle", "Waking") == [
        ("True", "Waking"),
        ("False", "Waking"),
        ("True", "Waking"),
    ]
    assert world.status["gateway"] == {"inFlight": 0}
    assert world.status["queue"] == {"waiting": 3, "atGateway": 3, "inEngines": 0}
    assert world.status["decisions"][-1]["reason"].startswith(
        "3 requests wait at the gateway (900 prompt tokens) and no replica is ready"
    )
    world.pod(2, ready=False)
    world.gateway.says(held=0, in_flight=0, idle_s=0.0)  # the clients gave up: what was begun is finished
    for _ in range(30):
        await world.round(10.0)
        world.gateway.says(idle_s=world.gateway.seen.idle_s + 10.0)
        assert world.replicas() == 1
    world.pod(2, status={"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": moment(world)}]})
    world.rolled_out()
    for _ in range(3):
        await world.round()
        assert world.condition("Ready")["status"] == "True"
    assert conditions(world, "Ready", "Waking") == [("True", "Serving"), ("False", "Awake")]
    assert world.replicas() == 1  # ready for less than the idle timeout
    await world.round(60.0)
    await world.round()
    assert world.replicas() == 0


async def test_a_replica_that_does_not_start_makes_a_waking_service_not_ready(world):
    await asleep(world)
    world.gateway.says(held=1, idle_s=0.0)
    await world.round()
    waiting = {"name": "engine", "restartCount": 0, "state": {"waiting": {"reason": "ImagePullBackOff"}}}
    world.pod(2, ready=False, status={"phase": "Pending", "containerStatuses": [waiting]})
    await world.round()
    assert conditions(world, "Ready") == [("False", "ImagePullFailed")]
    assert world.replicas() == 1


async def test_requests_in_flight_or_a_silent_gateway_pod_keep_it_awake(world):
    await running(world)
    world.gateway.says(in_flight=1)
    for _ in range(40):
        await world.round(3.0)
    assert world.replicas() == 1
    world.gateway.says(in_flight=0, heard=1, silence="gateway pod g-2 is not heard: it does not answer")
    await world.round()
    await world.round()
    assert world.replicas() == 1
    assert world.condition("Idle")["message"] == "gateway pod g-2 is not heard: it does not answer"
    assert conditions(world, "GatewayReady") == [("True", "Routing")]


async def test_a_restarted_operator_leaves_a_sleeping_service_asleep_and_a_waking_one_waking(world):
    await asleep(world)
    world.restart()
    await world.round()
    assert world.replicas() == 0
    assert conditions(world, "Ready") == [("True", "Idle")]
    world.gateway.says(held=1, idle_s=0.0)
    await world.round()
    world.restart()
    await world.round()
    assert world.replicas() == 1
    assert conditions(world, "Ready", "Waking") == [("True", "Waking"), ("True", "Waking")]


async def test_a_sleeping_service_whose_gateway_is_gone_is_not_ready_and_without_one_it_wakes(world):
    await asleep(world)
    world.gateway.says(pods=0, heard=0)
    await world.round()
    assert conditions(world, "Ready", "GatewayReady") == [("False", "NoGatewayPods"), ("False", "NoGatewayPods")]
    world.settings, world.gateway = type(world.settings)(engine_image="engine:dev"), None
    world.restart()
    await world.round()
    assert world.replicas() == 1
    assert conditions(world, "GatewayReady") == [("False", "NoGateway")]
    assert "gateway.enabled=true" in world.condition("GatewayReady")["message"]


async def test_a_service_that_may_sleep_no_longer_wakes(world):
    await asleep(world)
    world.service(spec={**SLEEPER, "scaling": {"minReplicas": 2}}, generation=2)
    await world.round()
    assert world.replicas() == 2


async def test_services_that_never_sleep_have_no_condition_of_sleep(world):
    await running(world, {"gateway": {"enabled": True}})
    for _ in range(60):
        await world.round()
    assert world.replicas() == 1
    assert {one["type"] for one in world.status["conditions"]} & {"Idle", "Waking", "GatewayReady"} == {"GatewayReady"}


async def test_held_requests_count_as_waiting_ones(world):
    await running(world, {"gateway": {"enabled": True}, "scaling": {"targets": {"waitingRequests": 4}}})
    world.gateway.says(held=200, held_prompt_tokens=100_000, idle_s=0.0)
    await world.round()
    assert world.replicas() > 1


async def test_engines_take_unsigned_requests_and_metrics_show_what_is_held(world):
    await asleep(world)
    (secret,) = [call[2] for call in world.api.calls if call[:2] == ("apply", "Secret")] or [written_secret(world)]
    assert base64.b64decode(secret["data"]["tenant-key"]) == b"none"
    world.gateway.says(held=2, held_prompt_tokens=50, oldest_held_s=1.5)
    await world.round()
    labels = {"namespace": "team", "name": "chat"}

    def metric(name):
        return world.metrics.registry.get_sample_value(f"inflight_operator_service_{name}", labels)

    assert (metric("held_requests"), metric("held_prompt_tokens"), metric("oldest_held_seconds")) == (2, 50, 1.5)
    assert metric("asleep") == 0


def written_secret(world):
    """Returns the Secret that the operator writes once more after a restart."""
    known = world.reconciler._known[KEY].memory.rendered
    return next(child for child in known.children if child["kind"] == "Secret")


async def test_the_address_of_the_service_is_the_gateways_and_stays_in_the_status(world):
    await running(world)
    service = world.cache.child(KEY, "Service", "chat")
    assert service["metadata"]["annotations"]["inflight.dev/gateway"] == GATEWAY
    assert world.status["url"] == "http://chat.team.svc"


async def test_a_service_that_was_kept_at_zero_by_hand_sleeps_without_a_first_start(world):
    kept = {"gateway": {"enabled": True}, "scaling": {"mode": "External"}, "replicas": 0}
    world.service(spec=kept)
    await world.round()
    assert world.replicas() == 0
    world.rolled_out()
    world.service(spec=SLEEPER, generation=2)
    for _ in range(3):
        await world.round()
    assert world.replicas() == 0
    assert conditions(world, "Ready", "Idle") == [("True", "Idle"), ("True", "Idle")]
    world.gateway.says(held=1, held_prompt_tokens=10)
    await world.round()
    assert world.replicas() == 1


def fall_asleep(world):
    for engine in world.engines.values():
        engine.asleep = 1


async def test_replicas_that_sleep_are_ready_capacity_and_the_status_says_that_they_sleep(world):
    spec = {
        "scaling": {"minReplicas": 1, "sleep": {"after": "30s"}},
        "cost": {"pricePerReplicaHour": "2", "currency": "USD"},
    }
    await running(world, spec)
    before = world.status
    assert conditions(world, "Ready") == [("True", "Serving")]
    fall_asleep(world)
    for _ in range(20):
        await world.round()
    assert conditions(world, "Ready", "Progressing") == [("True", "Asleep"), ("False", "Complete")]
    assert world.condition("Ready")["message"] == (
        "1 of 1 replicas takes requests; 1 pod is asleep, without a KV cache (scaling.sleep), until the next request"
    )
    assert (world.status["readyReplicas"], world.status["desiredReplicas"], world.replicas()) == (1, 1, 1)
    assert world.status["observed"]["asleep"] == 1
    assert world.status["limits"] == before["limits"]
    assert world.status["cost"]["summary"] == "2.00 USD an hour for 1 pod (1 asleep)"
    assert not world.status.get("decisions")
    world.engines["10.0.0.1"].asleep = 0
    await world.round()
    assert conditions(world, "Ready") == [("True", "Serving")]
    assert "asleep" not in world.status["observed"]


async def test_a_service_that_sleeps_goes_to_zero_after_its_idle_timeout(world):
    await running(world, {**SLEEPER, "scaling": {**SLEEPER["scaling"], "sleep": {"after": "20s"}}})
    fall_asleep(world)
    await world.round(30.0)
    assert (world.replicas(), conditions(world, "Ready", "Idle")) == (1, [("True", "Asleep"), ("False", "LatelyUsed")])
    await world.round(40.0)
    await world.round()
    assert world.replicas() == 0
    leave(world)
    await world.round()
    assert conditions(world, "Ready", "Idle") == [("True", "Idle"), ("True", "Idle")]
    world.gateway.says(held=1, idle_s=0.0)
    await world.round()
    assert world.replicas() == 1
