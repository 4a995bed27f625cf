"""Decisions by engine type: what limits there are, who changes them, and what the status says."""

from dataclasses import replace

import pytest

from inflight_base.manifest.engines import engine_type_of_pod
from tests.operator.fakes import KEY, PORTS
from tests.operator.reconcile.world import SMALL

HTTP = PORTS[:1]
VLLM = {"engine": {**SMALL["engine"], "type": "vllm", "plugin": False}}
PLUGIN = {"engine": {**SMALL["engine"], "type": "vllm"}}
CUSTOM = {
    "model": {"source": "pvc://models/llama"},
    "engine": {
        "type": "custom",
        "image": "example.com/server:1",
        "maxNumSeqs": 8,
        "custom": {"port": 8000, "metricsPath": "/prometheus", "metrics": {"running": "llamacpp:requests_processing"}},
    },
}


async def load(world, engine, rounds, each=12):
    for _ in range(rounds):
        for _ in range(each):
            engine.model.add(120, 80)
        await world.round()


async def test_vllm_without_the_plugin_gets_recommendations_and_no_limits(world):
    world.service(spec={**VLLM, "slo": {"tpotP95": "50ms"}})
    engine = world.pod(1, ports=HTTP)
    engine.foreign = True
    await load(world, engine, 15)
    assert engine.pushed == []
    found = world.condition("TuningActive")
    assert (found["status"], found["reason"]) == ("False", "NoPlugin")
    assert "engine.plugin false" in found["message"]
    tuned = [one for one in world.status["decisions"] if one["kind"] == "Tuning"]
    assert tuned
    assert not any(one["applied"] for one in tuned)
    assert world.status["limits"]["summary"] == "64/2048"


async def test_limits_of_an_earlier_type_end_with_it(world):
    limits = {"maxNumSeqs": 12, "maxNumBatchedTokens": 512, "revision": 7, "podsInForce": 1, "summary": "12/512"}
    world.service(spec=VLLM, status={"limits": limits})
    world.pod(1, ports=HTTP).foreign = True
    await world.round()
    assert world.status["limits"]["summary"] == "64/2048"
    assert world.status["limits"]["revision"] == 8


async def test_vllm_with_the_plugin_gets_its_limits_as_inflights_engine_does(world):
    world.service(spec={"engine": {**SMALL["engine"], "type": "vllm"}, "slo": {"tpotP95": "50ms"}})
    engine = world.pod(1)
    await load(world, engine, 15)
    assert engine.pushed
    assert world.condition("TuningActive")["status"] == "True"


async def test_a_vllm_that_the_plugin_does_not_know_serves_on_and_the_condition_says_why(world, monkeypatch):
    world.service(spec={"engine": {**SMALL["engine"], "type": "vllm"}})
    engine = world.pod(1)
    engine.foreign = True
    sample = engine.sample
    problem = "vLLM 0.40.0 is none of the versions that the plugin knows"
    monkeypatch.setattr(engine, "sample", lambda: replace(sample(), plugin_problem=problem))
    await world.round()
    await world.round()
    found = world.condition("TuningActive")
    assert (found["status"], found["reason"]) == ("False", "PluginUnsupported")
    assert problem in found["message"]
    assert world.condition("Ready")["status"] == "True"
    assert engine.pushed == []


async def test_an_operator_without_the_image_for_the_plugin_serves_vllm_without_it_and_says_what_to_do(world):
    world.settings = replace(world.settings, plugin_image="")
    override = {"maxNumSeqs": 4, "until": "2026-11-21T10:00:00Z"}
    world.service(spec={**PLUGIN, "tuning": {"override": override}})
    await world.round()
    template = world.cache.child(KEY, "Deployment", "chat")["spec"]["template"]
    assert [one["name"] for one in template["spec"]["initContainers"]] == ["inflight-model"]
    assert not [one for one in world.command() if "inflight_vllm" in one]
    assert not engine_type_of_pod(template["metadata"]).plugin
    engine = world.pod(1, ports=HTTP)
    engine.foreign = True
    await load(world, engine, 3)
    found = world.condition("TuningActive")
    assert (found["status"], found["reason"]) == ("False", "NoPluginImage")
    assert "start the operator with --plugin-image" in found["message"]
    assert "engine.plugin: false" in found["message"]
    assert world.condition("Ready")["status"] == "True"
    assert world.status["limits"]["summary"] == "64/2048"


async def test_a_custom_engine_has_no_limits_in_the_status_and_its_own_page_is_read(world):
    world.service(spec=CUSTOM)
    engine = world.pod(1, ports=HTTP)
    engine.foreign = True
    await load(world, engine, 15)
    found = world.condition("TuningActive")
    assert (found["status"], found["reason"]) == ("False", "NoLiveLimits")
    assert "limits" not in world.status
    assert engine.pushed == []
    ((target,),) = (kept.values() for kept in world.pool.kept.values())
    assert target.url == "http://10.0.0.1:8000/prometheus"
    assert target.names == {"vllm:num_requests_running": "llamacpp:requests_processing"}


async def test_engines_that_do_not_report_their_kv_cache_have_no_number_for_it_anywhere(world, monkeypatch):
    """A target that is set for it asks for nothing: the queue alone decides."""
    targets = {"kvUtilization": 0.5, "waitingRequests": 2}
    world.service(spec={**CUSTOM, "scaling": {"minReplicas": 1, "maxReplicas": 4, "targets": targets}})
    engine = world.pod(1, ports=HTTP)
    engine.foreign = True
    sample = engine.sample
    monkeypatch.setattr(engine, "sample", lambda: replace(sample(), running=8, waiting=8, kv_usage=None))
    for _ in range(3):
        await world.round()
    assert world.status["observed"]["running"] == 8
    assert "kvUtilization" not in world.status["observed"]
    of_service = {"namespace": "team", "name": "chat"}
    assert world.metrics.registry.get_sample_value("inflight_operator_service_kv_utilization", of_service) is None
    assert world.replicas() > 1
    assert not [one for one in world.status["decisions"] if "KV" in one["reason"]]


@pytest.mark.parametrize(
    ("spec", "kind", "limit"),
    [(SMALL, "inflight", 64), (PLUGIN, "vllm", 64), (VLLM, "vllm-plain", 64), (CUSTOM, "custom", None)],
    ids=["inflight", "vllm", "vllm-plain", "custom"],
)
async def test_metrics_of_a_service_name_its_kind_of_engines_and_only_limits_that_are_known(world, spec, kind, limit):
    world.service(spec=spec)
    await world.round()
    of_service = {"namespace": "team", "name": "chat"}
    value = world.metrics.registry.get_sample_value
    (ready,) = (one for one in world.status["conditions"] if one["type"] == "Ready")
    assert value("inflight_operator_service_state", {**of_service, "state": ready["reason"], "engine": kind}) == 1
    assert value("inflight_operator_service_max_num_seqs", of_service) == limit


async def test_custom_engines_without_metrics_keep_their_replicas_and_the_condition_says_so(world):
    world.service(spec={**CUSTOM, "scaling": {"minReplicas": 1, "maxReplicas": 4}})
    await world.round()
    live = world.cache.child(KEY, "Deployment", "chat")
    world.cache.put("Deployment", {**live, "spec": {**live["spec"], "replicas": 2}})
    world.restart()
    for number in (1, 2):
        world.pod(number, ports=HTTP).silent = True
    for _ in range(20):
        await world.round()
    found = world.condition("MetricsAvailable")
    assert (found["status"], found["reason"]) == ("False", "ScrapeFailed")
    assert found["message"] == "2 of 2 ready pods without recent metrics: chat-1 did not answer /metrics"
    assert world.condition("Ready")["status"] == "True"
    assert world.replicas() == 2


OWN_PAGE = ("/prometheus", {"vllm:num_requests_running": "llamacpp:requests_processing"})
VLLM_PAGE = ("/metrics", {})


@pytest.mark.parametrize(
    ("before", "after", "old_page", "new_page"),
    [(CUSTOM, PLUGIN, OWN_PAGE, VLLM_PAGE), (VLLM, CUSTOM, VLLM_PAGE, OWN_PAGE)],
    ids=["custom to vllm", "vllm to custom"],
)
async def test_after_a_change_of_type_each_pod_is_read_as_it_was_made(world, before, after, old_page, new_page):
    world.service(spec=before)
    world.pod(1, ports=HTTP).foreign = True
    await world.round()
    world.service(spec=after, generation=2)
    world.pod(2, ports=HTTP).foreign = True
    for _ in range(2):
        await world.round()
        (kept,) = world.pool.kept.values()
        pages = {
            one.name: (one.url.removeprefix(f"http://10.0.0.{one.name[-1]}:8000"), one.names) for one in kept.values()
        }
        assert pages == {"chat-1": old_page, "chat-2": new_page}


@pytest.mark.parametrize("after", [CUSTOM, VLLM, PLUGIN], ids=["custom", "vllm-plain", "vllm"])
async def test_engines_of_an_earlier_type_leave_with_their_own_limits(world, after):
    world.service(spec={**SMALL, "slo": {"tpotP95": "50ms"}})
    old = world.pod(1)
    await load(world, old, 15)
    assert old.pushed
    before = list(old.pushed)
    world.service(spec={**after, "slo": {"tpotP95": "50ms"}}, generation=2)
    world.pod(2, ports=HTTP).foreign = True
    await load(world, old, 15)
    assert old.pushed == before
    assert world.condition("TuningActive")["status"] == "False"


@pytest.mark.parametrize("spec", [VLLM, CUSTOM], ids=["vllm", "custom"])
async def test_replicas_follow_the_queue_of_engines_that_report_no_limits(world, spec):
    scaling = {"minReplicas": 1, "maxReplicas": 4, "targets": {"waitingRequests": 2}}
    world.service(spec={**spec, "scaling": scaling})
    engine = world.pod(1, ports=HTTP)
    engine.foreign = True
    await load(world, engine, 10, each=40)
    assert world.replicas() > 1


async def test_a_replica_is_kept_while_the_others_have_no_slots_for_its_requests(world, monkeypatch):
    """Custom engines report no slots: those of the spec count, so an empty queue alone removes no replica."""
    world.service(spec={**CUSTOM, "scaling": {"minReplicas": 1, "maxReplicas": 4}})
    await world.round()
    for number in (1, 2):
        engine = world.pod(number, ports=HTTP)
        engine.foreign = True
        sample = engine.sample
        busy = {"running": 8, "waiting": 0, "kv_usage": 0.0}
        monkeypatch.setattr(engine, "sample", lambda sample=sample, busy=busy: replace(sample(), **busy))
    live = world.cache.child(next(iter(world.pool.kept)), "Deployment", "chat")
    world.cache.put("Deployment", {**live, "spec": {**live["spec"], "replicas": 2}})
    world.restart()
    for _ in range(40):
        await world.round()
    assert world.replicas() == 2


async def test_clients_that_no_networkpolicy_can_name_are_said_so_and_only_then(world):
    """The operator of this world runs outside of the cluster."""
    named = {"networkPolicy": {"from": [{"podSelector": {}}]}}
    world.service(spec={**VLLM, **named})
    await world.round()
    found = world.condition("NetworkPolicy")
    assert (found["status"], found["reason"]) == ("False", "OperatorOutside")
    world.settings = replace(world.settings, operator_namespace="system")
    await world.round()
    assert "NetworkPolicy" not in {one["type"] for one in world.status["conditions"]}
    world.settings = replace(world.settings, operator_namespace=None)
    world.service(spec={**SMALL, **named})
    await world.round()
    assert "NetworkPolicy" not in {one["type"] for one in world.status["conditions"]}
