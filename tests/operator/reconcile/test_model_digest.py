"""The version of the model: the first ready pod of a rollout decides on it, and later pods are told."""

import copy
import json

from tests.operator.fakes import KEY, delete

FIRST, SECOND = "sha256:" + "1" * 64, "sha256:" + "2" * 64


def pod(world, number, digest, rollout="abc", **more):
    """Makes a ready pod of a rollout, whose model has this version."""
    world.pod(number, **more).digest = digest
    made = world.listed.pop(f"chat-{number}")
    delete(world.cache, "Pod", made)
    body = copy.deepcopy(made)
    name = f"chat-{rollout}-pod{number:02}"
    body["metadata"] |= {"name": name, "uid": name, "creationTimestamp": f"2026-11-20T10:{number:02}:00Z"}
    world.cache.put("Pod", body)
    world.listed[name] = body


def remove(world, number):
    name = next(name for name in world.listed if name.endswith(f"{number:02}"))
    delete(world.cache, "Pod", world.listed.pop(name))


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
    await world.round()
    assert told(world) == {"chat-def": SECOND}


async def test_a_service_without_pods_keeps_the_newest_version(world):
    world.service()
    pod(world, 1, FIRST)
    pod(world, 2, SECOND, rollout="def")
    await world.round()
    remove(world, 1)
    remove(world, 2)
    await world.round()
    assert told(world) == {"chat-def": SECOND}


async def test_pods_of_an_earlier_template_that_come_back_make_its_version_the_newest(world):
    world.service()
    pod(world, 1, FIRST)
    pod(world, 2, SECOND, rollout="def")
    await world.round()
    pod(world, 3, FIRST)
    await world.round()
    for number in (1, 2, 3):
        remove(world, number)
    await world.round()
    assert told(world) == {"chat-abc": FIRST}
