"""The version of the model: the first ready pod of a rollout decides on it, and later pods are told."""

import json

import pytest

from inflight_operator.reconcile.decide import MOST_DIGESTS
from tests.operator.fakes import KEY, delete, pod_body

FIRST, SECOND, THIRD = (f"sha256:{digit * 64}" for digit in "123")


def pod(world, number, digest, rollout="abc", **more):
    """Makes a pod of a rollout, whose model has this version; it is ready unless `more` says otherwise."""
    world.pod(number).digest = digest
    delete(world.cache, "Pod", world.listed.pop(f"chat-{number}"))
    name = f"chat-{rollout}-pod{number:02}"
    body = pod_body(name, ip=f"10.0.0.{number}", uid=name, **more)
    body["metadata"]["creationTimestamp"] = f"2026-11-20T10:{number:02}:00Z"
    world.cache.put("Pod", body)
    world.listed[name] = body


def remove(world, number):
    name = next(name for name in world.listed if name.endswith(f"{number:02}"))
    delete(world.cache, "Pod", world.listed.pop(name))


def under_way(world):
    """Gives the Deployment the status that its controller gives it while pods of two templates exist."""
    live = world.cache.child(KEY, "Deployment", "chat")
    world.cache.put("Deployment", {**live, "status": {"updatedReplicas": 1, "replicas": 2}})


def told(world):
    """Returns what new pods find in their file."""
    data = world.cache.child(KEY, "ConfigMap", "chat-limits")["data"]
    return json.loads(data.get("digests.json", "{}"))


async def test_nothing_is_told_before_a_pod_has_reported(world):
    world.service()
    world.pod(1)
    await world.round()
    assert told(world) == {}
    assert "model" not in world.status


async def test_the_first_ready_pod_decides_and_others_change_nothing(world):
    world.service()
    pod(world, 1, FIRST)
    await world.round()
    assert told(world) == {"chat-abc": FIRST}
    assert world.status["model"] == {"digest": FIRST, "rollouts": [{"rollout": "chat-abc", "digest": FIRST}]}
    pod(world, 2, SECOND)
    await world.round()
    await world.round()
    assert told(world) == {"chat-abc": FIRST}


async def test_of_pods_that_are_first_together_one_decides(world):
    world.service()
    since = {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-20T10:00:09Z"}]}
    earlier = {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-20T10:00:07Z"}]}
    pod(world, 1, FIRST, status=since)
    pod(world, 2, SECOND, status=earlier)
    await world.round()
    assert told(world) == {"chat-abc": SECOND}


async def test_a_loaded_pod_that_is_not_ready_decides_nothing(world):
    world.service()
    pod(world, 1, FIRST, ready=False)
    await world.round()
    assert told(world) == {}
    pod(world, 2, SECOND)
    await world.round()
    assert told(world) == {"chat-abc": SECOND}


async def test_the_version_rolls_no_pod(world):
    world.service()
    world.pod(1)
    await world.round()
    template = world.cache.child(KEY, "Deployment", "chat")["spec"]["template"]
    pod(world, 2, FIRST)
    await world.round()
    assert told(world) == {"chat-abc": FIRST}
    assert world.cache.child(KEY, "Deployment", "chat")["spec"]["template"] == template


async def test_a_new_operator_process_keeps_the_version(world):
    world.service()
    pod(world, 1, FIRST)
    await world.round()
    world.restart()
    world.engines["10.0.0.1"].silent = True
    await world.round()
    assert told(world) == {"chat-abc": FIRST}


async def test_a_rollout_takes_the_version_of_its_own_first_pod(world):
    world.service()
    pod(world, 1, FIRST)
    await world.round()
    pod(world, 2, SECOND, rollout="def")
    await world.round()
    assert told(world) == {"chat-abc": FIRST, "chat-def": SECOND}
    assert world.status["model"]["digest"] == SECOND
    remove(world, 1)
    world.rolled_out()
    await world.round()
    assert told(world) == {"chat-def": SECOND}


async def test_a_rollout_under_way_that_loses_its_only_pod_keeps_its_version(world):
    world.service()
    pod(world, 1, FIRST)
    await world.round()
    pod(world, 2, SECOND, rollout="def")
    await world.round()
    remove(world, 2)
    pod(world, 3, FIRST)  # the same node had one of the earlier pods, which is replaced first
    under_way(world)
    await world.round()
    assert told(world) == {"chat-abc": FIRST, "chat-def": SECOND}
    assert world.status["model"]["digest"] == SECOND
    pod(world, 4, THIRD, rollout="def")
    await world.round()
    assert told(world) == {"chat-abc": FIRST, "chat-def": SECOND}
    remove(world, 1)
    remove(world, 3)
    world.rolled_out()
    await world.round()
    assert told(world) == {"chat-def": SECOND}


@pytest.mark.parametrize("leaves", [{"deleting": True}, {"status": {"phase": "Failed"}}])
async def test_pods_that_leave_are_not_the_newest_rollout(world, leaves):
    world.service()
    pod(world, 2, FIRST)
    pod(world, 1, SECOND, rollout="def")
    await world.round()
    assert told(world) == {"chat-abc": FIRST, "chat-def": SECOND}
    remove(world, 1)
    remove(world, 2)
    pod(world, 3, FIRST, ready=False, **leaves)
    world.rolled_out()
    await world.round()
    assert told(world) == {"chat-def": SECOND}


async def test_of_more_rollouts_than_are_kept_those_with_pods_stay(world):
    world.service()
    pod(world, 1, FIRST)
    await world.round()
    for number in range(2, 2 + 2 * MOST_DIGESTS):
        pod(world, number, SECOND, rollout=f"r{number:02}")
        await world.round()
        under_way(world)
        remove(world, number)
        await world.round()
    found = told(world)
    assert len(found) == MOST_DIGESTS
    assert found["chat-abc"] == FIRST


async def test_a_service_without_pods_keeps_the_newest_version(world):
    world.service()
    pod(world, 1, FIRST)
    pod(world, 2, SECOND, rollout="def")
    await world.round()
    remove(world, 1)
    remove(world, 2)
    world.rolled_out()
    await world.round()
    assert told(world) == {"chat-def": SECOND}


@pytest.mark.parametrize("number", [0, 3])
async def test_who_returns_to_an_earlier_spec_makes_its_version_the_newest(world, number):
    """Pod 0 is older than the rollout that is given up, pod 3 is newer."""
    world.service()
    pod(world, number, FIRST)
    await world.round()
    pod(world, 2, SECOND, rollout="def")
    await world.round()
    remove(world, 2)
    world.rolled_out()
    await world.round()
    assert told(world) == {"chat-abc": FIRST}
    assert world.status["model"]["digest"] == FIRST
    remove(world, number)
    pod(world, 4, THIRD, rollout="def")
    await world.round()
    assert told(world)["chat-def"] == THIRD
