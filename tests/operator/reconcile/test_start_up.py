"""Lead time of new replicas in the status, over restarts of the operator and between services."""

from datetime import timedelta

from tests.operator.fakes import service_body
from tests.operator.reconcile.world import OTHER, SMALL, START


def moment(seconds):
    return (START + timedelta(seconds=seconds)).isoformat()


def started(world, number, created, *, ready=True, restarts=0):
    """A pod with a node after 1 s, a container after 3 s and Ready after 20 s."""
    conditions = [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": moment(created + 1)},
        {"type": "Ready", "status": str(ready), "lastTransitionTime": moment(created + (20 if ready else 0))},
    ]
    running = {"name": "engine", "restartCount": restarts, "state": {"running": {"startedAt": moment(created + 3)}}}
    return world.pod(
        number, ready=ready, created=moment(created), status={"conditions": conditions, "containerStatuses": [running]}
    )


async def a_start(world, number=1, **more):
    """Lets a pod start under the eyes of the operator."""
    created = world.now - 1000.0
    started(world, number, created, ready=False)
    await world.round()
    world.now += 17.0
    started(world, number, created, **more)
    for _ in range(25):
        await world.round()


async def test_the_status_says_how_long_a_replica_takes_by_phase_and_why(world):
    world.service(spec=SMALL)
    await world.round()
    assert "startUp" not in world.status
    await a_start(world)
    status = world.status["startUp"]
    phases = {"scheduled": 1.0, "image": 2.0, "weights": 0.0, "engine": 17.0, "endpoints": 0.0}
    assert (status["seconds"], status["basis"], status["starts"]) == (20.0, "Node", 1)
    assert status["phases"] == phases
    assert status["recent"] == [{"node": "node-1", **phases}]
    assert status["summary"] == (
        "a new replica takes about 20s: scheduled 1s, image 2s, weights 0ms, engine 17s, endpoints 0ms"
        " (median of 1 start on the nodes of the service)"
    )


async def test_a_new_operator_process_goes_on_with_the_starts_in_the_status(world):
    world.service(spec=SMALL)
    await world.round()
    await a_start(world)
    before = world.status["startUp"]
    world.restart()
    for _ in range(25):
        await world.round()
    assert world.status["startUp"] == before
    await a_start(world, 2)
    assert world.status["startUp"]["starts"] == 2


async def test_starts_of_another_model_are_forgotten(world):
    world.service(spec=SMALL)
    await world.round()
    await a_start(world)
    status = world.status
    other = {**SMALL, "model": {"source": "hf://org/other"}}
    world.service(spec=other, status=status, generation=2)
    for _ in range(25):
        await world.round()
    assert "startUp" not in world.status
    world.service(spec=other, status=status, generation=3)
    world.restart()
    for _ in range(25):
        await world.round()
    assert "startUp" not in world.status


async def test_a_service_without_starts_expects_those_of_other_services(world):
    world.service(spec=SMALL)
    await world.round()
    await a_start(world)
    body = service_body(spec=SMALL)
    body["metadata"] = {**body["metadata"], "name": OTHER.name, "uid": "other-uid"}
    world.cache.put("InferenceService", body)
    await world.reconciler.reconcile(OTHER)
    status = world.cache.service(OTHER)["status"]["startUp"]
    assert (status["seconds"], status["basis"], status["recent"]) == (20.0, "Source", [])


async def test_a_start_with_a_restarted_container_teaches_nothing(world):
    world.service(spec=SMALL)
    await world.round()
    await a_start(world, restarts=1)
    assert "startUp" not in world.status
