"""Engines that read weights from each other: who is named, and which pods are told."""

import json

from inflight_base.kube.errors import KubeApiError
from inflight_operator.reconcile import peers as reconciled
from tests.operator.fakes import KEY, PORTS
from tests.operator.reconcile.test_model_digest import FIRST, SECOND, pod, remove

SPEC = {"model": {"source": "s3://models/qwen", "peers": True}}


def named(world):
    """Returns the uids of the pods that new ones find in their file."""
    data = world.cache.child(KEY, "ConfigMap", "chat-limits")["data"]
    return set(json.loads(data.get("peers.json", "{}")))


def told(world):
    return {call[1] for call in world.api.of("annotation")}


async def test_no_pod_is_named_by_a_service_without_peers(world):
    world.service(spec={"model": {"source": "s3://models/qwen"}})
    pod(world, 1, FIRST)
    pod(world, 2, "", ready=False)
    await world.round()
    assert named(world) == set()
    assert told(world) == set()


async def test_ready_pods_and_those_that_load_are_named_with_the_address_of_their_admin_port(world):
    world.service(spec=SPEC)
    pod(world, 1, FIRST)
    pod(world, 2, "", ready=False)
    await world.round()
    data = world.cache.child(KEY, "ConfigMap", "chat-limits")["data"]
    assert json.loads(data["peers.json"]) == {"chat-abc-pod01": "10.0.0.1:8001", "chat-abc-pod02": "10.0.0.2:8001"}


async def test_pods_that_leave_or_have_no_address_or_no_admin_port_are_not_named(world):
    world.service(spec=SPEC)
    pod(world, 1, FIRST)
    pod(world, 2, FIRST, deleting=True)
    pod(world, 3, "", ready=False, status={"podIP": ""})
    pod(world, 4, FIRST, ports=[one for one in PORTS if one["name"] != "admin"])
    await world.round()
    assert named(world) == {"chat-abc-pod01"}


async def test_pods_of_a_rollout_with_another_version_of_the_model_are_not_named(world):
    world.service(spec=SPEC)
    pod(world, 1, FIRST, rollout="old")
    pod(world, 2, "", rollout="new", ready=False)
    await world.round()
    assert named(world) == {"chat-old-pod01", "chat-new-pod02"}, "it may be the same version"
    pod(world, 2, SECOND, rollout="new")
    await world.round()
    assert named(world) == {"chat-new-pod02"}


async def test_pods_of_an_earlier_rollout_with_the_same_version_are_named(world):
    world.service(spec=SPEC)
    pod(world, 1, FIRST, rollout="old")
    pod(world, 2, FIRST, rollout="new")
    await world.round()
    assert named(world) == {"chat-old-pod01", "chat-new-pod02"}


async def test_pods_that_load_are_told_of_each_change_once(world):
    world.service(spec=SPEC)
    pod(world, 1, FIRST)
    pod(world, 2, "", ready=False)
    await world.round()
    assert told(world) == {"chat-abc-pod02"}
    await world.round()
    assert told(world) == set()
    pod(world, 3, "", ready=False)
    await world.round()
    assert told(world) == {"chat-abc-pod02", "chat-abc-pod03"}
    remove(world, 3)
    pod(world, 2, FIRST)
    await world.round()
    assert told(world) == set(), "who is ready reads no weights"


async def test_a_pod_is_told_only_after_the_names_are_written_and_not_too_often(world):
    world.service(spec=SPEC)
    pod(world, 1, "", ready=False)
    await world.round()
    kinds = [call[0] for call in world.api.calls]
    assert kinds.index("annotation") > kinds.index("apply")
    pod(world, 2, "", ready=False)
    await world.round(seconds=1.0)
    assert told(world) == {"chat-abc-pod02"}
    await world.round(seconds=1.0)
    assert told(world) == {"chat-abc-pod01"}


async def test_a_pod_that_cannot_be_told_fails_nothing(world):
    world.service(spec=SPEC)
    pod(world, 1, "", ready=False)
    world.api.refuse["chat-abc-pod01"] = KubeApiError("PATCH", 403, "no")
    assert await world.round()
    assert told(world) == {"chat-abc-pod01"}
    await world.round()
    assert told(world) == set()


async def test_the_status_tells_where_the_weights_came_from(world):
    world.service(spec=SPEC)
    pod(world, 1, FIRST)
    world.engines["10.0.0.1"].weights = (0.0, 2.0e9, 0)
    pod(world, 2, FIRST)
    world.engines["10.0.0.2"].weights = (1.96e9, 0.04e9, 0)
    for _ in range(2):
        await world.round()
    said = world.condition("ModelLoaded")["message"]
    assert said.endswith("; 2.0 GB of weights came from other pods, 2.0 GB from the source")


async def test_the_status_tells_how_often_other_pods_gave_no_weights(world):
    world.service(spec=SPEC)
    for number in (1, 2):
        pod(world, number, FIRST)
        world.engines[f"10.0.0.{number}"].weights = (1e9, 0.0, number)
    for _ in range(2):
        await world.round()
    said = world.condition("ModelLoaded")["message"]
    assert said.endswith(", 0.0 GB from the source; failed reads from other pods: 3, see the logs of the engines")


async def test_the_bytes_of_a_pod_stay_known_while_its_scrapes_fail_and_go_with_it(world):
    world.service(spec=SPEC)
    for number in (1, 2):
        pod(world, number, FIRST)
        world.engines[f"10.0.0.{number}"].weights = (1e9, 0.0, 0)
    for _ in range(2):
        await world.round()
    world.engines["10.0.0.2"].silent = True
    await world.round(seconds=20.0)
    await world.round(seconds=20.0)
    assert "; 2.0 GB of weights came from other pods" in world.condition("ModelLoaded")["message"]
    remove(world, 2)
    await world.round()
    assert "; 1.0 GB of weights came from other pods" in world.condition("ModelLoaded")["message"]


async def test_a_service_without_peers_says_nothing_of_it(world):
    world.service(spec={"model": {"source": "s3://models/qwen"}})
    pod(world, 1, FIRST)
    world.engines["10.0.0.1"].weights = (0.0, 2.0e9, 0)
    await world.round()
    assert "came from" not in world.condition("ModelLoaded")["message"]


async def test_pods_with_the_version_of_a_rollout_that_is_back_are_named(world):
    world.service(spec=SPEC)
    pod(world, 1, FIRST, rollout="old")
    pod(world, 2, SECOND, rollout="new")
    await world.round()
    pod(world, 3, "", rollout="old", ready=False)
    await world.round()
    assert named(world) == {"chat-old-pod01", "chat-old-pod03"}


async def test_a_pod_that_becomes_ready_changes_no_name_where_there_are_too_many(world, monkeypatch):
    monkeypatch.setattr(reconciled, "MOST_PEERS", 2)
    world.service(spec=SPEC)
    for number in (1, 2, 3):
        pod(world, number, "", ready=False)
    await world.round()
    before = named(world)
    pod(world, 3, FIRST)
    await world.round()
    assert named(world) == before
    assert len(before) == 2


async def test_no_pod_is_told_of_names_that_could_not_be_written(world):
    world.service(spec=SPEC)
    pod(world, 1, "", ready=False)
    await world.round(seconds=5.0)
    pod(world, 2, "", ready=False)
    world.api.refuse["ConfigMap"] = KubeApiError("PATCH", 500, "no")
    await world.round(seconds=5.0)
    assert named(world) == {"chat-abc-pod01"}
    assert told(world) == set()
    del world.api.refuse["ConfigMap"]
    await world.round(seconds=60.0)
    assert named(world) == told(world) == {"chat-abc-pod01", "chat-abc-pod02"}
