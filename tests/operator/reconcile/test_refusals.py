"""Writes that the API server refuses stop nothing else, are reported, and are tried again."""

from inflight_base.kube.errors import KubeApiError
from inflight_operator.reconcile.execute import COSTS_PATIENCE_SECONDS
from tests.operator.fakes import KEY
from tests.operator.reconcile.world import SMALL


async def test_what_stands_in_the_way_is_in_the_status_and_the_round_counts_as_failed(world):
    world.service()
    world.api.fail["apply"] = KubeApiError("PATCH /apis/apps/v1", 403, "deployments is forbidden")
    assert not await world.round()
    stuck = world.condition("Progressing")
    assert stuck["reason"] == "ApplyFailed"
    assert "deployments is forbidden" in stuck["message"]
    ready = world.condition("Ready")
    assert (ready["status"], ready["reason"], ready["message"]) == ("False", "ApplyFailed", stuck["message"])
    about = {"namespace": KEY.namespace, "name": KEY.name}
    assert world.metrics.registry.get_sample_value("inflight_operator_service_rollout_stuck", about) == 1


async def test_a_cluster_without_image_volumes_is_named(world):
    world.service(spec={**SMALL, "model": {"source": "oci://registry/qwen:1"}})
    refusal = "spec.template.spec.volumes[1]: Required value: must specify a volume type"
    world.api.fail["apply"] = KubeApiError("PATCH /apis/apps/v1", 422, refusal)
    assert not await world.round()
    for condition in ("Progressing", "Ready"):
        assert (
            "oci:// needs image volumes, which Kubernetes has by default from 1.35 on"
            in (world.condition(condition)["message"])
        )
    world.service(spec={**SMALL, "model": {"source": "pvc://models/qwen"}})
    assert not await world.round()
    assert "image volumes" not in world.condition("Progressing")["message"]


async def test_pods_that_are_refused_are_reported_as_the_deployment_has_it(world):
    world.service()
    await world.round()
    deployment = world.cache.child(KEY, "Deployment", KEY.name)
    failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "exceeded quota: gpus"}
    world.cache.put("Deployment", {**deployment, "status": {"conditions": [failure]}})
    await world.round()
    assert world.condition("Ready")["reason"] == "PodsRefused"
    assert "exceeded quota: gpus" in world.condition("Ready")["message"]


async def test_a_message_of_many_pages_is_cut_so_that_the_status_stays_small(world):
    world.service()
    world.api.fail["apply"] = KubeApiError("PATCH /apis/apps/v1", 422, "x" * 100_000)
    assert not await world.round()
    message = world.condition("Progressing")["message"]
    assert len(message) == 2048
    assert message.endswith("…")


async def test_a_service_that_serves_stays_ready_when_a_change_cannot_be_applied(world):
    world.service()
    world.pod(1)
    await world.round()
    world.api.fail["apply"] = KubeApiError("PATCH /apis/apps/v1", 403, "deployments is forbidden")
    world.service(spec={**SMALL, "engine": {"maxNumSeqs": 32}})
    assert not await world.round()
    assert world.condition("Ready")["status"] == "True"
    assert world.condition("Progressing")["reason"] == "ApplyFailed"


async def test_an_object_of_someone_else_is_left_alone_and_named(world):
    world.service()
    foreign = {
        "metadata": {"name": "chat", "namespace": "team", "labels": {"inflight.dev/service": "chat"}},
        "spec": {},
    }
    world.cache.put("Deployment", foreign)
    assert not await world.round()
    assert "Deployment chat exists" in world.condition("Progressing")["message"]


async def test_a_child_that_is_refused_stops_no_other_and_is_tried_again_ever_more_seldom(world):
    world.service(spec=SMALL)
    world.pod(1)
    world.api.refuse["NetworkPolicy"] = KubeApiError("PATCH", 403, "admission says no")
    assert not await world.round()
    applied = {call[1] for call in world.api.of("apply")}
    assert applied == {"Secret", "ConfigMap", "NetworkPolicy", "Deployment", "Service", "PodDisruptionBudget"}
    assert world.replicas() == 1
    tries = []
    for _ in range(40):
        await world.round()
        tries.append(len([call for call in world.api.of("apply") if call[1] == "NetworkPolicy"]))
        assert world.condition("Progressing")["reason"] == "ApplyFailed"
    assert 3 <= sum(tries) <= 8
    assert world.condition("Ready")["status"] == "True"
    assert world.condition("MetricsAvailable")["status"] == "True"
    world.api.refuse.clear()
    for _ in range(21):
        await world.round()
    assert world.condition("Progressing")["reason"] != "ApplyFailed"


async def test_a_refused_child_that_changes_is_tried_at_once(world):
    world.service(spec=SMALL)
    world.api.refuse["Deployment"] = KubeApiError("PATCH", 422, "the template is wrong")
    for _ in range(10):
        await world.round()
    world.api.refuse.clear()
    world.service(spec={**SMALL, "template": {"nodeSelector": {"a": "b"}}}, generation=2, status=world.status)
    await world.round(0.1)
    assert world.replicas() == 1


async def test_a_first_deployment_waits_for_what_its_pods_mount(world):
    world.service(spec=SMALL)
    world.api.refuse["Secret"] = KubeApiError("PATCH", 403, "secrets is forbidden")
    await world.round()
    assert "Deployment" not in [call[1] for call in world.api.of("apply")]
    assert "Service" in [call[1] for call in world.api.of("apply")]
    assert world.condition("Ready")["reason"] == "ApplyFailed"


async def test_scaling_goes_on_while_another_child_is_refused(world):
    world.service(spec=SMALL)
    engine = world.pod(1)
    await world.round()
    world.api.refuse["ConfigMap"] = KubeApiError("PATCH", 403, "no")
    for _ in range(300):
        engine.model.add(50, 400)
    await world.round()
    await world.round()
    assert world.replicas() > 1


async def test_decisions_that_cannot_be_written_do_not_pile_up(world):
    world.service(spec=SMALL, status={"desiredReplicas": 2})
    world.api.fail["status"] = KubeApiError("PATCH status", 0, "the API server does not answer")
    for number in range(30):
        spec = {**SMALL, "scaling": {"minReplicas": 1 + number % 2, "maxReplicas": 1 + number % 2}}
        world.service(spec=spec, generation=number)
        assert not await world.round()
    world.api.fail.clear()
    await world.round(90.0)
    assert len(world.status["decisions"]) == 10
    assert len(world.api.of("event")) <= 11


async def test_a_scale_down_that_is_refused_does_not_mark_pods_again_and_again(world):
    spec = {**SMALL, "scaling": {"behavior": {"scaleDown": {"stabilizationWindowSeconds": 5}}}}
    world.service(spec=spec, status={"desiredReplicas": 2})
    busy = world.pod(1)
    world.pod(2)
    await world.round()
    world.api.refuse["Deployment"] = KubeApiError("PATCH", 403, "no")
    costs = []
    for step in range(30):
        busy.model.add(10, 200 + step * 10)
        await world.round()
        costs += world.api.of("cost")
    assert len(costs) <= 6


async def test_a_scale_down_whose_marks_get_5xx_goes_on_after_a_while_and_says_so(world):
    spec = {**SMALL, "scaling": {"behavior": {"scaleDown": {"stabilizationWindowSeconds": 5}}}}
    world.service(spec=spec, status={"desiredReplicas": 2})
    busy = world.pod(1)
    world.pod(2)
    await world.round()
    world.api.refuse |= {pod: KubeApiError("PATCH", 503, "no") for pod in ("chat-1", "chat-2")}
    said, waited = set(), 0.0
    while world.replicas() == 2:
        busy.model.add(1, 200)
        await world.round()
        waited += 3.0
        assert waited < 2 * COSTS_PATIENCE_SECONDS
        said.add(world.condition("Progressing")["message"])
    assert waited > COSTS_PATIENCE_SECONDS
    assert any("without the order of pods" in one for one in said)


async def test_what_something_else_changes_as_it_is_applied_is_not_written_in_every_round(world):
    """Stands for an admission webhook that rewrites images."""
    world.service(spec=SMALL)
    world.api.rewrite = True
    writes = 0
    for _ in range(40):
        await world.round()
        writes += len([call for call in world.api.of("apply") if call[1] == "Deployment"])
    assert writes <= 9
    assert "is changed by something else" in world.condition("Progressing")["message"]


async def test_a_reason_of_many_pages_is_cut_and_the_decision_kept(world):
    world.service(spec={**SMALL, "scaling": {"maxReplicas": 8}}, status={"desiredReplicas": 2})
    engine = world.pod(1)
    ended = {"exitCode": 1, "reason": "Error", "message": f"error: {'x' * 3000}"}
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}
    container = {"name": "engine", "restartCount": 5, "state": waiting, "lastState": {"terminated": ended}}
    world.pod(2, ready=False, status={"phase": "Running", "conditions": [], "containerStatuses": [container]})
    for _ in range(300):
        engine.model.add(50, 400)
    for _ in range(3):
        await world.round()
    assert world.status["decisions"][0]["reason"].endswith("…")
    assert len(world.status["decisions"][0]["reason"]) == 1024
