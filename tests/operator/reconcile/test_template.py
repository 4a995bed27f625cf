"""Changes that replace pods, and changes that wait or are held."""

from dataclasses import replace

import pytest

from inflight_base.manifest.units import Share
from inflight_operator.reconcile.upgrades import UpgradePace
from inflight_operator.render.plan import EngineObservability
from tests.operator.fakes import KEY, PORTS, delete, pod_body, service_body
from tests.operator.reconcile.world import OTHER, SMALL


async def test_a_stored_object_without_a_model_is_reported_in_the_status_once_and_changes_nothing(world):
    """Values that a definition of another version may leave behind."""
    body = service_body(spec=SMALL)
    del body["spec"]["model"]
    world.cache.put("InferenceService", body)
    await world.round()
    ready, progressing = world.condition("Ready"), world.condition("Progressing")
    assert (ready["status"], ready["reason"], ready["observedGeneration"]) == ("False", "SpecInvalid", 1)
    assert "spec.model: " in ready["message"]
    assert (progressing["status"], progressing["reason"]) == ("False", "SpecInvalid")
    assert [call[1:3] for call in world.api.of("event")] == [("Warning", "SpecInvalid")]
    await world.round()
    assert world.api.calls == []
    world.service(spec=SMALL, generation=2, status=world.status)
    await world.round()
    assert world.condition("Ready")["reason"] == "Starting"
    assert world.replicas() == 1


UNKNOWN = {**SMALL, "later": {"field": 1}, "slo": {"tpotP95": "fast"}}


async def test_fields_of_another_version_hold_the_pods_and_nothing_else(world):
    world.service(spec=SMALL)
    engine = world.pod(1)
    for _ in range(3):
        await world.round()
    template = world.cache.child(KEY, "Deployment", "chat")["spec"]["template"]
    world.service(spec={**UNKNOWN, "engine": {"maxNumSeqs": 32, "later": 1}}, generation=2, status=world.status)
    for _ in range(300):
        engine.model.add(50, 400)
    for _ in range(3):
        await world.round()
    assert world.replicas() > 1
    assert world.cache.child(KEY, "Deployment", "chat")["spec"]["template"] == template
    assert world.condition("Ready")["status"] == "True"
    progressing = world.condition("Progressing")
    assert (progressing["status"], progressing["reason"]) == ("False", "SpecNotUnderstood")
    for named in ("spec.later", "spec.engine.later", "spec.slo.tpotP95"):
        assert named in progressing["message"]
    assert world.condition("TuningActive")["status"] == "True"
    assert world.status["observedGeneration"] == 2


ONE_CLIENT = {"podSelector": {"matchLabels": {"app": "one"}}}


@pytest.mark.parametrize(
    "unread",
    [
        {"networkPolicy": {"from": [{"podSelector": {"later": 1}}]}},
        {"networkPolicy": {"from": [ONE_CLIENT] * 33}},
        {"gateway": {"enabled": True, "auth": {"later": 1}}},
        {"gateway": 7},
    ],
)
async def test_clients_that_another_version_names_let_no_more_of_them_in(world, unread):
    world.service(spec={**SMALL, "networkPolicy": {"from": [ONE_CLIENT]}})
    world.pod(1)
    for _ in range(3):
        await world.round()
    policy = world.cache.child(KEY, "NetworkPolicy", "chat")["spec"]
    assert policy["ingress"][0]["from"] == [ONE_CLIENT]
    world.service(spec={**SMALL, **unread}, generation=2, status=world.status)
    for _ in range(3):
        await world.round()
    assert world.cache.child(KEY, "NetworkPolicy", "chat")["spec"] == policy
    world.service(spec=SMALL, generation=3, status=world.status)
    await world.round()
    assert world.cache.child(KEY, "NetworkPolicy", "chat")["spec"]["ingress"][0]["from"] == [{"podSelector": {}}]


async def test_a_new_service_with_fields_of_another_version_gets_no_pods_that_lack_them(world):
    world.service(spec=UNKNOWN)
    await world.round()
    assert "Deployment" not in [call[1] for call in world.api.of("apply")]
    assert world.condition("Progressing")["reason"] == "SpecNotUnderstood"


@pytest.mark.parametrize(
    ("before", "after"), [("", "operator:dev"), ("operator:dev", ""), ("operator:1", "operator:2")]
)
async def test_another_image_for_the_plugin_waits_for_its_turn_as_a_newer_engine_release_does(world, before, after):
    vllm = {**SMALL, "engine": {**SMALL["engine"], "type": "vllm"}}
    world.settings = replace(world.settings, plugin_image=before)
    world.service(spec=vllm)
    engine = world.pod(1, ports=PORTS if before else PORTS[:1])
    engine.foreign = not before
    for _ in range(3):
        await world.round()
    template = world.cache.child(KEY, "Deployment", "chat")["spec"]["template"]
    world.pace.note(OTHER, "Moving")
    world.settings = replace(world.settings, plugin_image=after)
    for _ in range(3):
        await world.round()
        assert world.cache.child(KEY, "Deployment", "chat")["spec"]["template"] == template
    assert world.status["engine"]["upgrade"] == "Pending"
    world.pace.note(OTHER, None)
    await world.round()
    assert world.cache.child(KEY, "Deployment", "chat")["spec"]["template"] != template
    assert world.status["engine"]["upgrade"] == "Moving"


async def test_the_plugin_that_a_user_turns_off_goes_at_once(world):
    vllm = {**SMALL, "engine": {**SMALL["engine"], "type": "vllm"}}
    world.service(spec=vllm)
    world.pod(1)
    await world.round()
    template = world.cache.child(KEY, "Deployment", "chat")["spec"]["template"]
    world.pace.note(OTHER, "Moving")
    world.service(spec={**vllm, "engine": {**vllm["engine"], "plugin": False}}, generation=2)
    await world.round()
    assert world.cache.child(KEY, "Deployment", "chat")["spec"]["template"] != template


async def test_a_newer_engine_release_waits_for_its_turn_and_then_moves(world):
    world.service(spec=SMALL)
    world.pod(1)
    for _ in range(3):
        await world.round()
    world.pace.note(OTHER, "Moving")
    world.settings = replace(world.settings, engine_image="engine:next")
    for _ in range(3):
        await world.round()
        assert world.image() == "engine:dev"
    assert world.status["engine"] == {"image": "engine:dev", "upgrade": "Pending"}
    assert "a newer engine release waits for its turn" in world.condition("Progressing")["message"]
    world.pace.note(OTHER, None)
    await world.round()
    assert world.image() == "engine:next"
    assert world.status["engine"] == {"image": "engine:next", "upgrade": "Moving"}
    world.pod(1, ready=False)
    await world.round()
    assert world.status["engine"]["upgrade"] == "Moving"
    world.restart()
    world.pod(1)
    world.rolled_out()
    await world.round()
    await world.round()
    assert world.status["engine"] == {"image": "engine:next"}


async def test_traces_and_logs_that_the_installation_changes_wait_for_their_turn_too(world):
    world.service(spec=SMALL)
    world.pod(1)
    for _ in range(3):
        await world.round()
    world.pace.note(OTHER, "Moving")
    logs = EngineObservability(traces_endpoint="http://collector:4318", log_format="json")
    world.settings = replace(world.settings, observability=logs)
    for _ in range(3):
        await world.round()
    assert "--log-format=json" not in world.command()
    assert world.status["engine"]["upgrade"] == "Pending"
    world.pace.note(OTHER, None)
    await world.round()
    assert {"--log-format=json", "--otlp-traces-endpoint=http://collector:4318"} <= {*world.command()}


async def test_a_changed_spec_moves_at_once_with_the_newest_release(world):
    world.service(spec=SMALL)
    world.pod(1)
    for _ in range(3):
        await world.round()
    world.pace.note(OTHER, "Moving")
    world.settings = replace(world.settings, engine_image="engine:next")
    await world.round()
    world.service(spec={**SMALL, "template": {"nodeSelector": {"a": "b"}}}, generation=2, status=world.status)
    await world.round()
    assert world.image() == "engine:next"


async def test_a_held_service_is_scaled(world):
    world.service(spec=SMALL)
    engine = world.pod(1)
    for _ in range(3):
        await world.round()
    world.pace.note(OTHER, "Moving")
    world.settings = replace(world.settings, engine_image="engine:next")
    for _ in range(300):
        engine.model.add(50, 400)
    for _ in range(3):
        await world.round()
    assert world.image() == "engine:dev"
    assert world.replicas() > 1


async def test_a_held_service_has_the_pace_of_its_spec(world):
    """A rollout that waits for room, when a newer engine release waits for its turn, may be permitted to go on."""
    world.service(spec=SMALL)
    world.pod(1)
    for _ in range(3):
        await world.round()
    world.pace.note(OTHER, "Moving")
    world.settings = replace(world.settings, engine_image="engine:next")
    await world.round()
    world.service(spec={**SMALL, "rollout": {"maxSurge": "50%"}}, generation=2, status=world.status)
    await world.round()
    spec = world.cache.child(KEY, "Deployment", "chat")["spec"]
    assert spec["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "50%", "maxUnavailable": 0}}
    assert world.image() == "engine:dev"
    assert len(world.api.of("deployment")) == 1
    await world.round()
    assert world.api.of("deployment") == []


async def test_an_upgrade_ends_when_as_many_pods_are_ready_as_before_it(world):
    """A replica that was blocked before need not be mended by the upgrade, and others wait for their turn."""
    world.service(spec=SMALL, status={"desiredReplicas": 2})
    world.pod(1)
    world.pod(2, ready=False, status={"phase": "Pending", "conditions": [], "containerStatuses": []})
    for _ in range(3):
        await world.round()
    world.settings = replace(world.settings, engine_image="engine:next")
    await world.round()
    assert world.status["engine"]["upgrade"] == "Moving"
    world.rolled_out()
    await world.round()
    assert world.status["engine"] == {"image": "engine:next"}


async def test_a_service_that_is_being_deleted_does_not_hold_up_upgrades(world):
    world.service(spec=SMALL)
    world.pod(1)
    for _ in range(3):
        await world.round()
    going = service_body()
    going["metadata"] |= {"name": "other", "uid": "other", "deletionTimestamp": "2026-11-20T10:00:00Z"}
    world.cache.put("InferenceService", going)
    await world.reconciler.reconcile(OTHER)
    world.settings = replace(world.settings, engine_image="engine:next")
    await world.round()
    assert world.image() == "engine:next"


async def test_those_that_wait_for_an_upgrade_say_for_whom(world):
    world.service(spec=SMALL)
    world.pod(1)
    for _ in range(3):
        await world.round()
    world.pace.note(OTHER, "Moving")
    world.settings = replace(world.settings, engine_image="engine:next")
    await world.round()
    assert "waits for its turn, after team/other" in world.condition("Progressing")["message"]


async def test_a_deployment_of_someone_else_is_never_scaled(world):
    world.service(spec=UNKNOWN)
    foreign = {"metadata": {"name": "chat", "namespace": "team", "labels": {"inflight.dev/service": "chat"}}}
    template = {"spec": {"containers": [{"name": "web", "image": "web:1"}]}}
    world.cache.put("Deployment", {**foreign, "spec": {"replicas": 9, "template": template}})
    for _ in range(3):
        await world.round()
        assert world.api.of("deployment") == []


async def test_pods_that_someone_deleted_are_made_again_from_what_can_be_read(world):
    world.service(spec=SMALL)
    world.pod(1)
    for _ in range(3):
        await world.round()
    world.service(spec=UNKNOWN, generation=2, status=world.status)
    delete(world.cache, "Deployment", world.cache.child(KEY, "Deployment", "chat"))
    await world.round()
    assert world.replicas() == 1


async def test_bounds_that_cannot_be_read_remove_no_replica(world):
    world.service(spec={**SMALL, "scaling": {"minReplicas": 12, "maxReplicas": 20}})
    await world.round()
    assert world.replicas() == 12
    scaling = {"minReplicas": 12, "maxReplicas": 20_000}
    world.service(spec={**SMALL, "scaling": scaling}, generation=2, status=world.status)
    for _ in range(3):
        await world.round()
    assert world.replicas() == 12


def stuck_rollout(world):
    """Gives the Deployment the status of its controller after the progress deadline."""
    live = world.cache.child(KEY, "Deployment", "chat")
    count = live["spec"]["replicas"]
    exceeded = {"type": "Progressing", "reason": "ProgressDeadlineExceeded", "message": "chat-2 has timed out"}
    status = {"updatedReplicas": count, "replicas": count + 1, "conditions": [exceeded]}
    world.cache.put("Deployment", {**live, "status": status})


async def test_an_upgrade_without_room_for_its_pods_is_stuck_and_gives_its_turn_to_the_next(world):
    world.service(spec=SMALL)
    world.pod(1)
    for _ in range(3):
        await world.round()
    world.pace.note(OTHER, "Pending")
    world.settings = replace(world.settings, engine_image="engine:next")
    await world.round()
    assert world.status["engine"]["upgrade"] == "Moving"
    assert not world.pace.may_move(2)
    stuck_rollout(world)
    await world.round()
    assert world.status["engine"]["upgrade"] == "Stuck"
    assert [call[1:3] for call in world.api.of("event")] == [("Warning", "ProgressDeadlineExceeded")]
    assert "stuck, other services do not wait for it" in world.condition("Progressing")["message"]
    assert world.pace.may_move(2)
    world.restart()
    await world.round()
    assert world.status["engine"]["upgrade"] == "Stuck"
    assert world.api.of("event") == []
    world.rolled_out()
    await world.round()
    assert "upgrade" not in world.status["engine"]


async def test_services_that_wait_are_told_which_others_stopped_the_upgrade(world):
    world.pace = UpgradePace("Paced", Share(1), Share(0))
    world.restart()
    world.service(spec=SMALL)
    world.pod(1)
    for _ in range(3):
        await world.round()
    world.pace.note(OTHER, "Stuck")
    world.settings = replace(world.settings, engine_image="engine:next")
    await world.round()
    assert (world.image(), world.status["engine"]["upgrade"]) == ("engine:dev", "Pending")
    message = world.condition("Progressing")["message"]
    assert "1 service stuck in the move to it, such as team/other, and at most 0 may be" in message


async def test_a_rollout_without_room_releases_when_the_spec_allows_it_and_says_so(world):
    world.service(spec={**SMALL, "rollout": {"releaseAfter": "1m"}})
    world.pod(1)
    await world.round()

    def bounds():
        return world.cache.child(KEY, "Deployment", "chat")["spec"]["strategy"]["rollingUpdate"]

    full = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "9 Insufficient a/gpu."}
    waiting = pod_body("chat-2", ip="", ready=False, status={"phase": "Pending", "conditions": [full]})
    del waiting["spec"]["nodeName"]
    waiting["metadata"]["creationTimestamp"] = "2026-11-20T10:00:03Z"
    world.cache.put("Pod", waiting)
    live = world.cache.child(KEY, "Deployment", "chat")
    world.cache.put("Deployment", {**live, "status": {"updatedReplicas": 1, "replicas": 2}})
    await world.round(30.0)
    assert bounds() == {"maxSurge": "10%", "maxUnavailable": 0}
    await world.round(60.0)
    assert bounds() == {"maxSurge": 0, "maxUnavailable": "10%"}
    said = "no node had room for additional pods for 60s (rollout.releaseAfter): old pods are removed first"
    assert said in world.condition("Progressing")["message"]
    world.restart()
    await world.round()
    assert bounds() == {"maxSurge": 0, "maxUnavailable": "10%"}
    world.rolled_out()
    await world.round()
    assert bounds() == {"maxSurge": "10%", "maxUnavailable": 0}
