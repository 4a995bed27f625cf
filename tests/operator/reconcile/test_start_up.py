"""Lead time of new replicas in the status, over restarts of the operator and between services; progress of starts."""

from dataclasses import replace
from datetime import timedelta

import pytest

from inflight_operator.decide.replicas.start_up import LONG_START, LeadTime, Loading, Phases, loading_of
from inflight_operator.observe.metrics import Sample
from inflight_operator.observe.pods import pod_view
from tests.operator.fakes import pod_body, service_body
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


GB = 10**9


async def test_a_long_start_shows_its_progress_and_its_begin_and_end_are_events(world):
    world.service(spec=SMALL)
    await world.round()
    engine = started(world, 1, created := world.now - 1000.0, ready=False)
    events, statuses = [], []
    for count in range(1, 31):
        engine.loading = (count * GB / 3, 16 * GB, 3.0 * count)
        await world.round()
        events += [event[2:] for event in world.api.of("event")]
        statuses += world.api.of("status")
        assert ("loading" in world.status) == (world.now - 1000.0 - created - 3 >= LONG_START)
    (loading,) = world.status["loading"]
    assert loading["pod"] == "chat-1"
    assert loading["totalBytes"] == 16 * GB
    assert loading["bytesPerSecond"] == pytest.approx(GB / 9, rel=1e-6)
    assert loading["secondsLeft"] == pytest.approx((16 * GB - loading["bytes"]) / (GB / 9), abs=1.5)
    assert "chat-1 has read" in loading["summary"]
    assert 4 <= len(statuses) <= 7, "progress is written every 15 s"
    engine.loading = (16 * GB, 16 * GB, 144.0)
    started(world, 1, created)
    for _ in range(3):
        await world.round()
        events += [event[2:] for event in world.api.of("event")]
    assert "loading" not in world.status
    said = [event for event in events if event[0] in ("LoadingModel", "ModelLoaded")]
    assert [reason for reason, _ in said] == ["LoadingModel", "ModelLoaded"]
    assert said[0][1] == "chat-1 has read 2.67 GB of 16 GB of its model, 111 MB/s, about 120s left"
    assert said[1][1] == "chat-1: the model (16 GB) is loaded"


class LastSnapshot:
    """Keeps the inputs of the last decision."""

    def decided(self, key, snapshot, memory, plan):
        self.snapshot = snapshot


async def test_samples_of_a_pod_that_loads_are_no_measurements(world):
    world.recorder = last = LastSnapshot()
    world.restart()
    world.service(spec=SMALL)
    world.pod(1)
    slow = started(world, 2, -100.0, ready=False)
    slow.model.add(50, 400)
    for _ in range(4):
        await world.round()
    assert set(last.snapshot.window.pods) == set(last.snapshot.fresh) == {"uid-chat-1"}
    assert "loading" not in world.status, "its page says nothing of it"


@pytest.mark.parametrize("said", [(5, 4, 1.0), (None, 4, 1.0), (1, 4, None)])
def test_an_impossible_progress_is_none(said):
    read, total, seconds = said
    sample = Sample(time=0.0, loading_read_bytes=read, loading_total_bytes=total, loading_seconds=seconds)
    assert loading_of(sample) is None


def test_a_load_that_has_longer_to_go_than_usual_delays_the_replica():
    lead = LeadTime(Phases(1.0, 2.0, 30.0, 5.0, 1.0))
    pod = replace(pod_view(pod_body("chat-1", ready=False)), running_since=1000.0)
    assert lead.remaining(pod, 1010.0) == 26.0
    assert lead.remaining(pod, 1010.0, Loading(GB, 10 * GB, 10.0)) == 91.0
    assert lead.remaining(pod, 1010.0, Loading(9 * GB, 10 * GB, 10.0)) == 26.0
    assert lead.remaining(pod, 1010.0, Loading(0, 10 * GB, 10.0)) == 26.0
