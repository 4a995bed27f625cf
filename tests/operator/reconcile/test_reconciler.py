"""The reconciler: replicas, children, status and events of a service, in the order of its life."""

import asyncio
from types import SimpleNamespace

import pytest
from prometheus_client import generate_latest

from inflight_base.kube.errors import KubeApiError
from inflight_operator.api.status import InferenceServiceStatus, LimitsPair
from inflight_operator.api.types import ServiceRecord
from inflight_operator.clock import Clock
from inflight_operator.reconcile import reconciler, reporter
from inflight_operator.reconcile.execute import Executor, ExecutorState
from inflight_operator.reconcile.policy import policy_of
from inflight_settings.limits import Limits
from tests.base.virtual_time import in_virtual_time
from tests.operator.fakes import KEY, delete, service_body
from tests.operator.reconcile.world import SMALL


async def test_a_new_service_gets_its_children_before_its_status(world):
    world.service()
    await world.round()
    kinds = [call[1] for call in world.api.of("apply")]
    assert kinds.index("Secret") < kinds.index("ConfigMap") < kinds.index("Deployment")
    verbs = [call[0] for call in world.api.calls]
    assert max(i for i, verb in enumerate(verbs) if verb == "apply") < verbs.index("status") < verbs.index("event")
    assert world.replicas() == 1
    assert world.condition("Ready")["status"] == "False"
    assert world.status["url"] == "http://chat.team.svc"
    assert world.status["limits"]["summary"] == "256/8192"


async def test_a_steady_state_makes_no_calls(world):
    world.service(spec=SMALL)
    world.pod(1)
    for _ in range(12):
        await world.round()
    quiet = []
    for _ in range(6):
        await world.round()
        quiet += world.api.calls
    assert quiet == []


async def test_a_spec_is_read_once_whatever_statuses_are_written(world, monkeypatch):
    read = []
    monkeypatch.setattr(reconciler, "policy_of", lambda asked, *more: read.append(asked) or policy_of(asked, *more))
    world.service()
    await world.round()
    world.pod(1)
    for _ in range(3):
        await world.round()
    assert world.status["readyReplicas"] == 1
    assert len(read) == 1
    world.service(spec={"scaling": {"maxReplicas": 3}}, status=world.status, generation=2)
    await world.round()
    assert len(read) == 2
    assert world.status["observedGeneration"] == 2


async def test_ready_is_reported_by_one_event_for_each_transition(world):
    world.service(spec=SMALL)
    world.pod(1, ready=False)
    events = []
    for _ in range(3):
        await world.round()
        events += world.api.of("event")
    world.pod(1)
    for _ in range(3):
        await world.round()
        events += world.api.of("event")
    assert [event[1:3] for event in events] == [("Normal", "Loading"), ("Normal", "Serving")]
    assert world.condition("Ready")["message"] == "1 of 1 replicas takes requests"


async def test_a_queue_brings_a_second_replica_with_its_reason_and_an_event(world):
    world.service(spec=SMALL)
    engine = world.pod(1)
    await world.round()
    for _ in range(300):
        engine.model.add(50, 400)
    await world.round()
    await world.round()
    assert world.replicas() > 1
    decision = world.status["decisions"][0]
    assert decision["kind"] == "Scaling"
    assert decision["change"].startswith("replicas 1 -> ")
    assert "4 per replica is the target" in decision["reason"]
    assert world.status["desiredReplicas"] == world.replicas()


async def test_a_restarted_operator_changes_nothing_at_first(world):
    world.service(spec=SMALL)
    world.pod(1)
    world.pod(2)
    await world.round()
    deployment = world.cache.child(KEY, "Deployment", KEY.name)
    world.cache.put("Deployment", {**deployment, "spec": {**deployment["spec"], "replicas": 2}})
    world.restart()
    for _ in range(5):
        await world.round()
        assert world.replicas() == 2
        assert [call for call in world.api.of("apply") if call[1] == "Deployment"] == []


@pytest.fixture
async def taken_over(world):
    """A world at rest in which another operator process takes over, whose scrapes take a while."""
    world.service(spec=SMALL)
    for number in (1, 2):
        world.pod(number)
    for _ in range(60):
        await world.round(5.0)
    world.restart()
    pool, pushed = world.pool, [len(engine.pushed) for engine in world.engines.values()]
    scrape, pool.late = pool._scrape, True

    async def first_results(key, within):
        pool.late, pool._scrape = False, scrape
        pool.tick()

    pool._scrape, pool.first_results = lambda key, targets: None, first_results
    return pushed


async def test_a_new_leader_writes_nothing_of_a_service_at_rest_but_its_secret_within_a_minute(world, taken_over):
    calls = []
    for _ in range(20):
        await world.round(5.0)
        calls.append([call[:2] for call in world.api.calls])
    assert calls[0] == []
    assert [call for each in calls[:12] for call in each] == [("apply", "Secret")]
    assert [call for each in calls[12:] for call in each if call[0] != "status"] == []
    assert [len(engine.pushed) for engine in world.engines.values()] == taken_over


async def test_limits_of_the_model_that_a_new_leader_does_not_know_yet_stay_in_the_status_for_a_minute(world):
    world.service(spec=SMALL)
    await world.round()
    live = InferenceServiceStatus.model_validate(world.status)
    modelled = live.limits.model_copy(update={"modelled": LimitsPair(max_num_seqs=64, max_num_batched_tokens=2048)})
    before = live.model_copy(update={"limits": modelled})
    assert not reporter.is_due(before, live, 59.0, 0.0)
    assert reporter.is_due(before, live, 60.0, 0.0)


async def test_numbers_of_pods_wait_twenty_times_as_long_as_the_last_write_took_and_states_do_not(world):
    world.service(spec=SMALL)
    await world.round()
    before = InferenceServiceStatus.model_validate(world.status)
    counted = before.model_copy(update={"ready_replicas": 1, "replicas": 2})
    for took, wait in ((0.01, 0.25), (0.1, 2.0), (9.0, 5.0)):
        assert not reporter.is_due(before, counted, wait - 0.01, took)
        assert reporter.is_due(before, counted, wait, took)
        assert reporter.is_due(before, counted.model_copy(update={"desired_replicas": 7}), 0.0, took)


async def test_a_status_that_waits_for_others_counts_the_wait_as_the_time_of_its_write(world):
    world.service(spec=SMALL)
    await world.round()
    service = ServiceRecord.from_dict(world.cache.service(KEY))
    writing, most, states = [], [], [reporter.ReporterState() for _ in range(40)]

    class Api:
        async def patch_status(self, service, status):
            writing.append(1)
            most.append(len(writing))
            await asyncio.sleep(1.0)
            writing.pop()

        async def event(self, *args):
            """Takes it at once."""

    @in_virtual_time
    async def write():
        clock = Clock(steady=asyncio.get_running_loop().time)
        one = reporter.Reporter(Api(), world.cache, clock)
        await asyncio.gather(*(one.write(KEY, service, service.status, state) for state in states))

    await asyncio.to_thread(write)
    assert max(most) == reporter.AT_ONCE
    assert sorted({round(state.took) for state in states}) == [1, 2, 3]


@pytest.mark.parametrize("change", ["refused", "pending", "generation"])
async def test_a_new_leader_writes_a_secret_at_once_that_may_be_missing(world, taken_over, change):
    if change == "refused":
        for engine in world.engines.values():
            engine.refuse, engine.revision = "HTTP 401", -1
    elif change == "pending":
        world.pod(3, ready=False, status={"phase": "Pending"})
    else:
        world.service(spec={**SMALL, "replicas": 1}, status=world.status, generation=2)
    calls = []
    for _ in range(2):
        await world.round(1.0)
        calls += world.api.of("apply")
    assert "Secret" in {call[1] for call in calls}


async def test_before_it_shrinks_the_emptiest_pod_is_marked_to_go_first(world):
    spec = {**SMALL, "scaling": {"behavior": {"scaleDown": {"stabilizationWindowSeconds": 5}}}}
    world.service(spec=spec, status={"desiredReplicas": 2})
    busy = world.pod(1)
    world.pod(2)
    await world.round()
    assert world.replicas() == 2
    busy.model.add(10, 2000)
    order = []
    for _ in range(4):
        await world.round()
        order += [call for call in world.api.calls if call[0] in ("cost", "apply")]
    costs = {call[1]: call[2] for call in order if call[0] == "cost"}
    assert costs["chat-1"] > costs.get("chat-2", 0)
    assert [call[0] for call in order][-1] == "apply"
    assert world.replicas() == 1


async def test_a_first_look_finds_a_queue_and_a_later_one_changes_nothing(world):
    world.service(spec=SMALL)
    engine = world.pod(1)
    assert not await world.reconciler.look(KEY)
    world.restart()
    for _ in range(200):
        engine.model.add(50, 400)
    world.now += 1.0
    engine.model.run_until(world.now)
    assert await world.reconciler.look(KEY)
    await world.round()
    world.pool.kept[KEY] = kept = {"slow/uid-chat-2": None}
    assert not await world.reconciler.look(KEY)
    assert world.pool.kept[KEY] is kept, "rounds know more of the pods to scrape"


async def test_a_service_that_takes_the_name_of_one_that_was_deleted_during_its_look_is_looked_at_too(world):
    looks = []

    async def first_results(key, within):
        looks.append(key)
        if len(looks) == 1:
            delete(world.cache, "InferenceService", world.cache.service(key))

    world.pool.first_results = first_results
    world.service(spec=SMALL)
    await world.reconciler.look(KEY)
    world.service(spec=SMALL)
    await world.round()
    assert looks == [KEY, KEY]


async def test_a_second_scale_down_before_the_pods_of_the_first_are_gone_marks_pods_for_both(world):
    spec = {**SMALL, "scaling": {"maxReplicas": 4, "mode": "External"}}
    world.service(spec={**spec, "replicas": 4}, status={"desiredReplicas": 4})
    for number in (1, 2, 3, 4):
        engine = world.pod(number)
        for _ in range(5 - number):
            engine.model.add(10, 2000)
    await world.round()
    marked = {}
    for replicas in (3, 2):
        world.service(spec={**spec, "replicas": replicas}, status=world.status)
        live = world.cache.child(KEY, "Deployment", "chat")
        world.cache.put("Deployment", {**live, "status": {"updatedReplicas": 4, "replicas": 4}})
        await world.round()
        marked |= {call[1]: call[2] for call in world.api.of("cost")}
        assert world.replicas() == replicas
    assert marked == {"chat-4": -2, "chat-3": -1}


@pytest.mark.parametrize("settled", [True, False])
async def test_only_the_pods_that_leave_get_a_cost_but_all_during_a_rollout(world, settled):
    spec = {**SMALL, "scaling": {"behavior": {"scaleDown": {"stabilizationWindowSeconds": 5}}}}
    world.service(spec=spec, status={"desiredReplicas": 4})
    engines = [world.pod(number) for number in (1, 2, 3, 4)]
    await world.round()
    world.rolled_out()
    if not settled:
        live = world.cache.child(KEY, "Deployment", "chat")
        world.cache.put("Deployment", {**live, "status": {"updatedReplicas": 1, "replicas": 4}})
    for engine in engines[:2]:
        engine.model.add(10, 2000)
    costs = {}
    while world.replicas() == 4:
        await world.round()
        costs |= {call[1]: call[2] for call in world.api.of("cost")}
    order = sorted(["chat-1", "chat-2", "chat-3", "chat-4"], key=lambda pod: costs.get(pod, 0))
    assert {*order[:2]} == {"chat-3", "chat-4"}
    assert len(costs) == (4 - world.replicas() if settled else 4)


@pytest.mark.parametrize(("status", "waits"), [(429, True), (0, True), (403, False)])
async def test_a_pod_whose_cost_is_not_taken_ends_no_other_and_holds_the_scale_down_while_that_may_help(
    world, status, waits
):
    spec = {**SMALL, "scaling": {"behavior": {"scaleDown": {"stabilizationWindowSeconds": 5}}}}
    world.service(spec=spec, status={"desiredReplicas": 3})
    busy = [world.pod(number) for number in (1, 2, 3)]
    await world.round()
    for engine in busy:
        engine.model.add(10, 2000)
    world.api.refuse["chat-1"] = KubeApiError("PATCH", status, "too many requests")
    marked = set()
    for _ in range(4):
        await world.round()
        marked |= {call[1] for call in world.api.of("cost")}
    assert marked == {"chat-1", "chat-2", "chat-3"}
    assert (world.replicas() == 3) is waits
    world.api.refuse.clear()
    await world.round()
    assert world.replicas() == 1


async def test_of_scale_downs_whose_pods_cannot_be_marked_for_long_only_the_first_one_waits():
    class Api:
        error = KubeApiError("PATCH", 503, "down")

        async def annotate_pod(self, namespace, pod, name, value):
            if self.error is not None:
                raise self.error

    api, clock, state = Api(), SimpleNamespace(now=0.0), ExecutorState()
    executor = Executor(api, None, None, SimpleNamespace(steady=lambda: clock.now))

    async def waits(seconds, *pods):
        clock.now += seconds
        _, waits = await executor._mark(KEY, SimpleNamespace(deletion_costs=dict.fromkeys(pods, 1)), state)
        return waits

    assert await waits(0, "chat-1")
    assert await waits(60, "chat-1")
    assert not await waits(60, "chat-1")
    assert not await waits(3)  # replicas are as ordered
    assert not await waits(60, "chat-2")
    api.error = None
    assert not await waits(3, "chat-3")
    api.error = KubeApiError("PATCH", 503, "down again")
    assert await waits(3, "chat-3")
    assert await waits(600, "chat-3"), "an error of long ago says nothing of this one"


async def test_a_silent_pod_never_scales_down_and_is_named(world):
    spec = {**SMALL, "scaling": {"behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}}}}
    world.service(spec=spec, status={"desiredReplicas": 2})
    world.pod(1)
    world.pod(2).silent = True
    for _ in range(8):
        await world.round()
    assert world.replicas() == 2
    missing = world.condition("MetricsAvailable")
    assert (missing["status"], missing["reason"]) == ("False", "ScrapeFailed")
    assert "1 of 2 ready pods without recent metrics: chat-2" in missing["message"]


async def test_external_mode_follows_spec_replicas_and_only_reports_its_own_opinion(world):
    world.service(spec={**SMALL, "scaling": {"mode": "External"}, "replicas": 3})
    engine = world.pod(1)
    world.pod(2)
    world.pod(3)
    await world.round()
    for _ in range(200):
        engine.model.add(50, 400)
    await world.round()
    await world.round()
    assert world.replicas() == 3
    assert world.status["desiredReplicas"] > 3
    assert world.status.get("decisions", []) == []
    assert world.condition("ScalingActive")["reason"] == "External"


async def test_a_status_that_cannot_be_read_is_written_anew(world):
    world.service(spec=SMALL, status={"decisions": [{"kind": "Later"}], "replicas": 1})
    world.pod(1)
    await world.round()
    await world.round()
    assert world.condition("Ready")["status"] == "True"
    assert world.status["decisions"] == []


async def test_a_deleted_service_is_forgotten_without_a_call(world):
    world.service()
    await world.round()
    delete(world.cache, "InferenceService", service_body())
    await world.round()
    assert world.api.calls == []
    assert "inflight_operator_desired_replicas{" not in exposition_of(world.metrics)


async def test_a_service_of_the_same_name_starts_anew(world):
    world.service(spec=SMALL, status={"desiredReplicas": 5})
    await world.round()
    assert world.replicas() == 5
    for child in world.cache.children(KEY):
        delete(world.cache, child["kind"], child)
    delete(world.cache, "InferenceService", service_body())
    world.service(spec=SMALL, uid="another")
    await world.round()
    assert world.replicas() == 1


async def test_switching_to_external_without_replicas_keeps_what_is_ordered(world):
    world.service(spec=SMALL, status={"desiredReplicas": 6})
    await world.round()
    assert world.replicas() == 6
    world.service(spec={**SMALL, "scaling": {"mode": "External"}}, generation=2, status=world.status)
    for _ in range(3):
        await world.round()
    assert world.replicas() == 6
    active = world.condition("ScalingActive")
    assert (active["status"], active["reason"]) == ("False", "ReplicasUnset")
    assert active["message"].startswith("spec.replicas is not set: 6 replicas are kept")
    world.service(spec={**SMALL, "scaling": {"mode": "External"}, "replicas": 2}, generation=3, status=world.status)
    await world.round()
    assert world.replicas() == 2


async def test_the_status_of_a_busy_service_is_written_for_events_and_else_once_a_minute(world):
    world.service(spec={**SMALL, "slo": {"tpotP95": "10s", "ttftP95": "60s"}, "scaling": {"maxReplicas": 1}})
    engine = world.pod(1)
    for _ in range(20):
        await world.round()
    writes, news = 0, set()
    for step in range(200):
        for _ in range(3 + step % 5):
            engine.model.add(60, 40 + step % 7 * 20)
        await world.round()
        writes += len(world.api.of("status"))
        news.add(len(world.status["decisions"]))
    assert writes <= 10 + 2 * len(news)


async def test_steady_traffic_writes_nothing(world):
    world.service(spec={**SMALL, "slo": {"tpotP95": "10s", "ttftP95": "60s"}, "scaling": {"maxReplicas": 1}})
    engine = world.pod(1)
    calls = []
    for step in range(300):
        for _ in range(2 + step % 2):
            engine.model.add(40, 40)
        await world.round()
        if step > 100:
            calls += world.api.calls
    assert calls == []


async def test_ready_waits_until_the_service_routes_to_the_pod(world):
    world.service(spec=SMALL)
    world.pod(1)
    world.listed.clear()
    world.route()
    for _ in range(3):
        await world.round()
        assert world.condition("Ready")["reason"] == "NotRouted"
        assert world.again == []
    world.pod(1)
    await world.round(0.2)
    assert world.condition("Ready")["status"] == "False"
    await world.round(0.4)
    ((key, seconds),) = world.again
    assert key == KEY
    await world.round(seconds)
    assert world.condition("Ready")["status"] == "True"
    assert world.again == []
    world.restart()
    await world.round(0.1)
    assert world.condition("Ready")["status"] == "True"


async def test_a_pod_that_crashes_again_and_again_is_replaced_by_one_more_and_named(world):
    spec = {**SMALL, "scaling": {"maxReplicas": 8}}
    world.service(spec=spec, status={"desiredReplicas": 4})
    engines = [world.pod(number) for number in (1, 2, 3)]
    world.pod(4, ready=False, status={"phase": "Running", "conditions": [], **CRASHING})
    for engine in engines:
        engine.capacity = Limits(64, 2048)
        for _ in range(90):
            engine.model.add(100, 2000)
    for _ in range(3):
        await world.round()
    assert world.replicas() > 4
    assert "1 of 4 replicas is blocked" in world.status["decisions"][0]["reason"]


async def test_no_further_replica_is_ordered_for_a_cause_that_would_block_it_too(world):
    world.service(spec={**SMALL, "scaling": {"maxReplicas": 8}}, status={"desiredReplicas": 2})
    engine = world.pod(1)
    unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": NO_GPU}
    world.pod(2, ready=False, status={"phase": "Pending", "conditions": [unschedulable], "containerStatuses": []})
    for _ in range(500):
        engine.model.add(100, 2000)
    for _ in range(30):
        await world.round()
    assert world.replicas() == 2
    active = world.condition("ScalingActive")
    assert active["reason"] == "BlockedNoMore"
    assert "no further replica is ordered until then" in active["message"]
    assert "nvidia.com/gpu" in active["message"]


NO_GPU = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu. preemption: not helpful."
CRASHING = {
    "containerStatuses": [
        {
            "name": "engine",
            "restartCount": 5,
            "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}},
            "lastState": {"terminated": {"exitCode": 1, "reason": "Error", "message": "error: no such model"}},
        }
    ]
}


def exposition_of(metrics):
    return generate_latest(metrics.registry).decode()


async def test_taking_over_from_an_autoscaler_begins_with_its_replicas_and_waits_out_the_window(world):
    world.service(spec={**SMALL, "scaling": {"mode": "External"}, "replicas": 3})
    for number in (1, 2, 3):
        world.pod(number)
    for _ in range(5):
        await world.round()
    world.service(spec=SMALL, generation=2, status=world.status)
    for _ in range(10):
        await world.round()
        assert world.replicas() == 3
    for _ in range(35):
        await world.round()
    assert world.replicas() == 1


async def test_no_replicas_stay_none_over_a_restart(world):
    world.service(spec={**SMALL, "scaling": {"mode": "External"}, "replicas": 0})
    await world.round()
    world.service(spec={**SMALL, "scaling": {"mode": "External"}}, generation=2, status=world.status)
    await world.round()
    world.restart()
    await world.round()
    assert world.replicas() == 0


async def test_the_opinion_on_replicas_of_another_is_a_number_and_no_event(world):
    world.service(spec={**SMALL, "scaling": {"mode": "External"}, "replicas": 1})
    engine = world.pod(1)
    writes = 0
    for step in range(100):
        for _ in range(step % 40):
            engine.model.add(60, 60)
        await world.round()
        writes += len(world.api.of("status"))
    assert writes <= 20


async def test_pods_that_wait_for_a_slow_image_are_not_ordered_again(world):
    spec = {**SMALL, "scaling": {"maxReplicas": 16}, "tuning": {"mode": "Off"}, "slo": {"ttftP95": "1h"}}
    world.service(spec=spec, status={"desiredReplicas": 2})
    engine = world.pod(1)
    pending = {"phase": "Pending", "conditions": [], "containerStatuses": []}
    for number in (2, 3, 4):
        world.pod(number, ready=False, status=pending)
    for _ in range(100):
        engine.model.add(50, 4000)
    ordered = set()
    for _ in range(100):
        await world.round()
        ordered.add(world.replicas())
    assert max(ordered) == 2


async def test_scrapes_that_this_process_delays_change_no_condition_and_cause_no_write(world):
    world.service(spec=SMALL)
    world.pod(1)
    for _ in range(25):
        await world.round()
    before, writes = world.status, 0
    assert world.condition("Ready")["status"] == world.condition("MetricsAvailable")["status"] == "True"
    for seconds in (9.0, 3.0, 5.0, 1.0, 10.0):
        world.pool.late = True
        world.stretch = 2.0
        await world.round(seconds)
        writes += len(world.api.calls)
        world.stretch = 1.0
        await world.round(15.0)
        writes += len(world.api.calls)
        world.pool.late = False
        await world.round(0.5)
        writes += len(world.api.calls)
    assert writes == 0
    assert world.status == before


@pytest.mark.parametrize("stretch", [1.0, 2.0])
async def test_samples_are_stale_after_two_intervals_as_they_are_now(world, stretch):
    world.stretch = stretch
    world.service(spec=SMALL)
    engine = world.pod(1)
    for _ in range(3):
        await world.round()
    engine.silent = True
    for _ in range(4):
        await world.round()
    assert world.condition("MetricsAvailable")["status"] == ("True" if stretch == 2.0 else "False")
    for _ in range(4):
        await world.round()
    assert world.condition("MetricsAvailable")["status"] == "False"
