"""Faults of a model on its way to the engines: each is a sentence in the status, with the engine's own words."""

import pytest

SOURCE = "s3://models/qwen"
SPEC = {"model": {"source": SOURCE, "credentialsSecret": "models-s3"}}


def ended(said):
    """Returns the status of a pod whose engine ended with this last line of its log, and waits to start again."""
    terminated = {"exitCode": 1, "reason": "Error", "message": f"INFO begins\nerror: {said}\n"}
    back_off = {"waiting": {"reason": "CrashLoopBackOff"}}
    engine = {"name": "engine", "restartCount": 3, "state": back_off, "lastState": {"terminated": terminated}}
    return {"containerStatuses": [engine]}


async def test_what_ends_an_engine_is_in_the_status_in_its_words(world):
    said = f"model source {SOURCE}: the store refuses its files (403): check the credentials"
    world.service(spec=SPEC)
    world.pod(1, ready=False, status=ended(said))
    await world.round()
    for kind in ("Ready", "ModelLoaded"):
        found = world.condition(kind)
        assert (found["status"], found["reason"]) == ("False", "EngineFailed")
        assert found["message"].endswith(f"failed to start: {said}")


async def test_a_secret_of_credentials_that_is_missing_is_named_with_its_field(world):
    world.service(spec=SPEC)
    waiting = {"reason": "CreateContainerConfigError", "message": 'secret "models-s3" not found'}
    engine = {"name": "engine", "restartCount": 0, "state": {"waiting": waiting}}
    world.pod(1, ready=False, status={"phase": "Pending", "containerStatuses": [engine]})
    await world.round()
    assert world.condition("Ready")["reason"] == "ContainerNotCreated"
    assert world.condition("Ready")["message"].endswith(
        ': secret "models-s3" not found; create it, or correct model.credentialsSecret'
    )


@pytest.mark.parametrize("why", ["its disk is full", "a block of a.safetensors in the model cache is damaged"])
async def test_what_only_the_model_cache_has_is_said_beside_a_service_that_is_ready(world, why):
    world.service(spec=SPEC)
    world.pod(1).cache_problem = why
    for _ in range(2):
        await world.round()
    assert world.condition("Ready")["status"] == world.condition("ModelLoaded")["status"] == "True"
    assert world.condition("ModelLoaded")["message"].endswith(f"1 of 1 pod did not use the model cache: {why}")
