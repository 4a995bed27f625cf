"""Rounds against a recording API server and model engines (see fakes.py)."""

from dataclasses import replace
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
from inflight_operator.observe.cache import ClusterCache, ServiceKey
from inflight_operator.reconcile.rounds import Rounds, RoundSettings
from inflight_operator.reconcile.upgrades import UpgradePace
from inflight_operator.render import Settings
from tests.operator.fakes import KEY, FakeApi, FakeEngine, FakeEngines, FakePool, endpoints_body, pod_body, service_body
from tests.operator.model_engine import ModelEngine

SMALL = {"engine": {"maxNumSeqs": 64, "maxNumBatchedTokens": 2048}}
OTHER = ServiceKey("team", "other")
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
        self.pool = FakePool(self.engines, self.every.span)
        self.teller = EngineTeller(FakeEngines(self.engines), self.clock, lambda: True)
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

    def image(self):
        return self.cache.child(KEY, "Deployment", "chat")["spec"]["template"]["spec"]["containers"][0]["image"]

    def rolled_out(self):
        """What its controller says of the Deployment once all pods are of the newest template."""
        live = self.cache.child(KEY, "Deployment", "chat")
        count = live["spec"]["replicas"]
        self.cache.put("Deployment", {**live, "status": {"updatedReplicas": count, "replicas": count}})

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
    await world.round(90.0)
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
    await world.round()
    engine.revision, engine.model.max_num_seqs = 9, 12
    world.service(spec=SMALL, status={})
    world.restart()
    await world.round()
    assert engine.told[-1][0].revision > 9
    assert world.status["limits"]["revision"] == engine.revision
    assert engine.model.max_num_seqs == 64


async def test_the_revision_that_one_pod_claims_is_not_taken_over(world):
    limits = {"maxNumSeqs": 12, "maxNumBatchedTokens": 512, "revision": 7, "podsInForce": 2}
    world.service(spec=SMALL, status={"limits": limits, "desiredReplicas": 2})
    honest, liar = world.pod(1), world.pod(2)
    liar.revision, liar.refuse = 2**53, "HTTP 409"
    await world.round()
    await world.round()
    assert honest.revision == world.status["limits"]["revision"] == 7
    assert "chat-2 did not take its limits" in world.condition("TuningActive")["message"]


async def test_one_pod_that_reports_a_capacity_of_1_does_not_limit_the_others(world):
    world.service(spec=SMALL, status={"desiredReplicas": 2})
    honest, liar = world.pod(1), world.pod(2)
    liar.capacity = Limits(1, 1)
    for _ in range(12):
        await world.round()
    assert world.status["limits"]["summary"] == "64/2048"
    assert honest.model.max_num_seqs == 64
    assert liar.told[0][0].limits == Limits(1, 1)


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


async def test_a_stored_object_without_a_model_is_told_in_the_status_once_and_changes_nothing(world):
    """What a definition of another version may leave behind."""
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


async def test_a_new_service_with_fields_of_another_version_gets_no_pods_that_lack_them(world):
    world.service(spec=UNKNOWN)
    await world.round()
    assert "Deployment" not in [call[1] for call in world.api.of("apply")]
    assert world.condition("Progressing")["reason"] == "SpecNotUnderstood"


async def test_a_status_that_cannot_be_read_is_written_anew(world):
    world.service(spec=SMALL, status={"decisions": [{"kind": "Later"}], "replicas": 1})
    world.pod(1)
    await world.round()
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


async def test_another_engine_is_measured_from_the_beginning_and_another_target_is_not(world):
    world.service(spec=SMALL)
    world.pod(1)
    for _ in range(4):
        await world.round()

    def start():
        return world.rounds._known[KEY].memory.tuning.window_start

    world.service(spec={**SMALL, "scaling": {"maxReplicas": 5}}, generation=2, status=world.status)
    await world.round()
    assert start() < world.now
    world.service(spec={**SMALL, "model": {"source": "builtin://other"}}, generation=3, status=world.status)
    await world.round()
    assert start() == world.now
    assert world.status["observedGeneration"] == 3


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


async def test_the_status_of_a_busy_service_is_written_for_news_and_else_once_a_minute(world):
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


async def test_ready_waits_until_the_service_routes_to_the_pod(world):
    world.service(spec=SMALL)
    world.pod(1)
    world.listed.clear()
    world.route()
    for _ in range(3):
        await world.round()
        assert world.condition("Ready")["reason"] == "NotRouted"
    world.pod(1)
    await world.round(0.2)
    assert world.condition("Ready")["status"] == "False"
    await world.round(1.0)
    assert world.condition("Ready")["status"] == "True"
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
    assert "no further replica is ordered while that lasts" in active["message"]
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


async def test_engines_of_a_release_without_an_admin_port_keep_their_limits_and_are_told_of(world):
    limits = {"maxNumSeqs": 12, "maxNumBatchedTokens": 512, "revision": 7, "podsInForce": 1}
    world.service(spec=SMALL, status={"limits": limits})
    engine = world.pod(1, ports=[{"name": "http", "containerPort": 8000}])
    await world.round()
    assert engine.told == []
    assert world.condition("TuningActive")["reason"] == "NoAdminPort"
    assert world.condition("MetricsAvailable")["status"] == "True"


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
