"""Rounds against a recording API server and model engines (see fakes.py)."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from prometheus_client import generate_latest

from inflight_operator.apply.kube import KubeApiError
from inflight_operator.clock import Clock
from inflight_operator.decide.tuning_types import TuningPolicy
from inflight_operator.engines import EngineTeller
from inflight_operator.limits import Limits, LimitsInForce
from inflight_operator.metrics import OperatorMetrics
from inflight_operator.observe.cache import ClusterCache
from inflight_operator.reconcile.rounds import Rounds, RoundSettings
from inflight_operator.reconcile.upgrades import UpgradePace
from inflight_operator.render import Settings
from tests.operator.fakes import KEY, FakeApi, FakeEngine, FakeEngines, FakePool, endpoints_body, pod_body, service_body
from tests.operator.model_engine import ModelEngine

SMALL = {"engine": {"maxNumSeqs": 64, "maxNumBatchedTokens": 2048}}
START = datetime(2026, 11, 20, 10, 0, tzinfo=UTC)


class World:
    """One service, its pods, and a clock that only moves when told to."""

    def __init__(self):
        self.now = 1000.0
        self.clock = Clock(lambda: self.now, lambda: START + timedelta(seconds=self.now - 1000.0))
        self.cache = ClusterCache()
        self.api = FakeApi(self.cache)
        self.engines = {}
        self.metrics = OperatorMetrics()
        self.settings = Settings(engine_image="engine:dev")
        self.every = RoundSettings(tuning=TuningPolicy(window=15.0))
        self.pace = UpgradePace()
        self.listed = {}
        self.restart()

    def restart(self):
        """A new operator process: nothing is remembered but what is in the cluster."""
        self.pool = FakePool(self.engines)
        self.teller = EngineTeller(FakeEngines(self.engines), self.clock)
        self.rounds = Rounds(
            self.api,
            self.cache,
            self.pool,
            self.teller,
            self.metrics,
            lambda: self.settings,
            lambda uid: f"token of {uid}",
            self.pace,
            self.every,
            self.clock,
        )

    def service(self, **more):
        self.cache.put("InferenceService", service_body(**more))

    def pod(self, number, **more):
        ip = f"10.0.0.{number}"
        if ip not in self.engines:
            self.engines[ip] = FakeEngine(ModelEngine(time=self.now, max_num_seqs=64, max_num_batched_tokens=2048))
        body = pod_body(f"chat-{number}", ip=ip, **more)
        self.cache.put("Pod", body)
        self.listed[body["metadata"]["name"]] = body if more.get("ready", True) else None
        self.route()
        return self.engines[ip]

    def route(self):
        """What Kubernetes makes of the ready pods."""
        self.cache.put("EndpointSlice", endpoints_body([body for body in self.listed.values() if body]))

    async def round(self, seconds=3.0):
        self.now += seconds
        for engine in self.engines.values():
            engine.model.run_until(self.now)
        self.api.calls.clear()
        self.pool.tick()
        done = await self.rounds.reconcile(KEY)
        await self.teller.idle()
        return done

    @property
    def status(self):
        return self.cache.service(KEY).get("status", {})

    def condition(self, kind):
        return next(one for one in self.status["conditions"] if one["type"] == kind)

    def replicas(self):
        return self.cache.child(KEY, "Deployment", KEY.name)["spec"]["replicas"]


@pytest.fixture
def world():
    return World()


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


async def test_ready_is_told_by_one_event_for_each_transition(world):
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


async def test_a_burst_changes_limits_on_the_running_pod_with_the_services_token(world):
    world.service(spec={**SMALL, "slo": {"tpotP95": "50ms"}})
    engine = world.pod(1)
    for _ in range(3):
        await world.round()
    for _ in range(15):
        for _ in range(12):
            engine.model.add(120, 80)
        await world.round()
    assert len(engine.told) >= 2
    limits, token = engine.told[-1]
    assert token == "token of service-uid"
    assert limits.revision == world.status["limits"]["revision"] == engine.revision
    assert world.status["limits"]["podsInForce"] == 1
    tuned = [one for one in world.status["decisions"] if one["kind"] == "Tuning"]
    assert tuned[0]["applied"] is True
    assert "over target 50ms" in tuned[0]["reason"]


async def test_the_longest_interval_still_measures_enough_to_tune(world):
    world.every = RoundSettings(interval=60.0)
    world.restart()
    world.service(spec={**SMALL, "slo": {"tpotP95": "50ms"}})
    engine = world.pod(1)
    codes = []
    for _ in range(6):
        for _ in range(400):
            engine.model.add(120, 80)
        await world.round(60.0)
        codes.append(world.condition("TuningActive")["reason"])
    assert "TpotOverTarget" in codes, codes
    assert world.status["observed"]["tpotP95"]


async def test_decisions_that_cannot_be_written_do_not_pile_up(world):
    world.service(spec=SMALL, status={"desiredReplicas": 2})
    world.api.fail["status"] = KubeApiError("PATCH status", 0, "the API server does not answer")
    for number in range(30):
        spec = {**SMALL, "scaling": {"minReplicas": 1 + number % 2, "maxReplicas": 1 + number % 2}}
        world.service(spec=spec, generation=number)
        assert not await world.round()
    world.api.fail.clear()
    await world.round()
    assert len(world.status["decisions"]) == 10
    assert len(world.api.of("event")) <= 11


async def test_new_pods_are_brought_to_the_limits_in_force(world):
    limits = {"maxNumSeqs": 12, "maxNumBatchedTokens": 512, "revision": 7, "podsInForce": 1, "summary": "12/512"}
    world.service(spec=SMALL, status={"limits": limits})
    engine = world.pod(1)
    await world.round()
    assert engine.told[0][0] == LimitsInForce(Limits(12, 512), 7)
    config = next(call[2] for call in world.api.of("apply") if call[1] == "ConfigMap")
    assert '"max_num_seqs": 12' in config["data"]["limits.json"]
    await world.round()
    assert len(engine.told) == 1


async def test_a_lost_status_does_not_leave_engines_behind_their_own_revision(world):
    world.service(spec=SMALL)
    engine = world.pod(1)
    engine.revision, engine.model.max_num_seqs = 9, 12
    await world.round()
    assert engine.patches[0][0]["revision"] == 10
    assert world.status["limits"]["revision"] == 10


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
    assert "1 of 2 ready pods not measured lately: chat-2" in missing["message"]


async def test_external_mode_follows_spec_replicas_and_only_tells_its_own_opinion(world):
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


async def test_recommend_tells_once_and_touches_no_engine(world):
    world.service(spec={**SMALL, "slo": {"tpotP95": "50ms"}, "tuning": {"mode": "Recommend"}})
    engine = world.pod(1)
    for _ in range(30):
        for _ in range(12):
            engine.model.add(120, 80)
        await world.round()
    advice = [one for one in world.status["decisions"] if one["kind"] == "Tuning"]
    assert advice
    assert not any(one["applied"] for one in advice)
    assert all(one["change"] != other["change"] for one, other in pairwise(advice))
    assert engine.told == []


async def test_tuning_off_brings_engines_back_to_capacity(world):
    limits = {"maxNumSeqs": 12, "maxNumBatchedTokens": 512, "revision": 7, "podsInForce": 1, "summary": "12/512"}
    world.service(spec={**SMALL, "tuning": {"mode": "Off"}}, status={"limits": limits})
    engine = world.pod(1)
    await world.round()
    assert engine.told[0][0] == LimitsInForce(Limits(64, 2048), 8)


async def test_an_engine_that_refuses_its_limits_is_named(world):
    limits = {"maxNumSeqs": 12, "maxNumBatchedTokens": 512, "revision": 7, "podsInForce": 1, "summary": "12/512"}
    world.service(spec=SMALL, status={"limits": limits})
    world.pod(1).refuse = "HTTP 401"
    await world.round()
    await world.round()
    active = world.condition("TuningActive")
    assert (active["status"], active["reason"]) == ("False", "LimitsNotTaken")
    assert "chat-1 did not take its limits: HTTP 401" in active["message"]
    assert world.status["limits"]["podsInForce"] == 0


async def test_what_stands_in_the_way_is_in_the_status_and_the_round_counts_as_failed(world):
    world.service()
    world.api.fail["apply"] = KubeApiError("PATCH /apis/apps/v1", 403, "deployments is forbidden")
    assert not await world.round()
    stuck = world.condition("Progressing")
    assert stuck["reason"] == "ApplyFailed"
    assert "deployments is forbidden" in stuck["message"]
    ready = world.condition("Ready")
    assert (ready["status"], ready["reason"], ready["message"]) == ("False", "ApplyFailed", stuck["message"])


async def test_a_stored_spec_that_cannot_be_read_is_told_in_the_status_once_and_changes_nothing(world):
    """What an older operator, or a definition without a rule, leaves behind."""
    world.service(spec={**SMALL, "slo": {"tpotP95": "fast"}})
    await world.round()
    ready, progressing = world.condition("Ready"), world.condition("Progressing")
    assert (ready["status"], ready["reason"], ready["observedGeneration"]) == ("False", "SpecInvalid", 1)
    assert "spec.slo.tpotP95: " in ready["message"]
    assert "'fast' is not a duration" in ready["message"]
    assert (progressing["status"], progressing["reason"]) == ("False", "SpecInvalid")
    assert [call[1:3] for call in world.api.of("event")] == [("Warning", "SpecInvalid")]
    await world.round()
    assert world.api.calls == []
    world.service(spec=SMALL, generation=2, status=world.status)
    await world.round()
    assert world.condition("Ready")["reason"] == "Starting"
    assert world.replicas() == 1


async def test_pods_of_an_earlier_spec_stay_ready_and_unchanged_under_a_spec_that_cannot_be_read(world):
    world.service(spec=SMALL)
    world.pod(1)
    for _ in range(3):
        await world.round()
    world.service(spec={**SMALL, "later": True}, generation=2, status=world.status)
    await world.round()
    assert [call[0] for call in world.api.calls] == ["status", "event"]
    ready = world.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("True", "SpecInvalid")
    assert ready["message"].startswith("1 pod of an earlier spec takes requests; spec.later: ")
    assert world.status["observedGeneration"] == 2


async def test_a_status_that_cannot_be_read_is_written_anew(world):
    world.service(spec=SMALL, status={"decisions": [{"kind": "Later"}], "replicas": 1})
    world.pod(1)
    await world.round()
    assert world.condition("Ready")["status"] == "True"
    assert world.status["decisions"] == []


async def test_pods_that_are_refused_are_told_as_the_deployment_has_it(world):
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


async def test_a_deleted_service_is_forgotten_without_a_call(world):
    world.service()
    await world.round()
    world.cache.remove("InferenceService", service_body())
    await world.round()
    assert world.api.calls == []
    assert "inflight_operator_desired_replicas{" not in exposition_of(world.metrics)


async def test_a_service_of_the_same_name_starts_anew(world):
    world.service(spec=SMALL, status={"desiredReplicas": 5})
    await world.round()
    assert world.replicas() == 5
    for child in world.cache.children(KEY):
        world.cache.remove(child["kind"], child)
    world.cache.remove("InferenceService", service_body())
    world.service(spec=SMALL, uid="another")
    await world.round()
    assert world.replicas() == 1


async def test_another_spec_is_measured_from_the_beginning(world):
    world.service(spec=SMALL)
    world.pod(1)
    for _ in range(5):
        await world.round()
    before = world.loop._memory[KEY].tuning.window_start
    world.service(spec={**SMALL, "slo": {"tpotP95": "80ms"}}, generation=2, status=world.status)
    await world.round()
    assert world.loop._memory[KEY].tuning.window_start > before
    assert world.status["observedGeneration"] == 2


async def test_an_engine_that_tells_no_limits_is_scaled_but_not_tuned(world):
    world.service(spec=SMALL)
    engine = world.pod(1)
    engine.foreign = True
    await world.round()
    active = world.condition("TuningActive")
    assert (active["status"], active["reason"]) == ("False", "NoLimits")
    assert world.condition("MetricsAvailable")["status"] == "True"


def exposition_of(metrics):
    return generate_latest(metrics.registry).decode()
