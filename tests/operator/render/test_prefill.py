"""The engines that compute prompts for a service, and what changes in the children of both."""

import base64
from dataclasses import replace

import pytest

from inflight_base.kube.difference import needs_apply
from inflight_base.manifest.keys import ServiceKey
from inflight_base.manifest.names import FIELD_MANAGER
from inflight_operator.api.types import InferenceService
from inflight_operator.reconcile.prefill import PrefillOf, as_one
from inflight_operator.render.service_children import render
from tests.operator.render.services import CPU, EVERYTHING, PLAN, SETTINGS, child, engine, make, pod

GATEWAY = replace(SETTINGS, gateway_service="inflight-gateway.inflight-system.svc.cluster.local")
PLAN_OF = replace(PLAN, tenant_keys=("key",), prefill_of="chat")
APART = {
    **CPU,
    "gateway": {"enabled": True},
    "engine": {"kvCache": {"swap": "4Gi"}},
    "disaggregation": {"mode": "Auto"},
}
KEYED = {**APART, "gateway": {"enabled": True, "auth": {"apiKeysSecret": "keys"}}}


def prefill(**spec):
    return child("InferenceService", make(**{**APART, **spec}), settings=GATEWAY)


def prefill_set(**spec):
    """The prefill set as the operator reads it, verified to be the service's."""
    service = make(**{**APART, **spec})
    body = child("InferenceService", service, settings=GATEWAY)
    body = {**body, "metadata": {**body["metadata"], "uid": "u-2"}}
    of = PrefillOf(ServiceKey("team", "chat"), "u-1", keyed=service.spec.gateway.auth is not None)
    return as_one(InferenceService.from_dict(body), of)


def policy(service, plan=PLAN):
    return child("NetworkPolicy", service, plan, GATEWAY)["spec"]


def from_pods(rules, port):
    return [
        peer["podSelector"]["matchLabels"].get("inflight.dev/service", "other")
        for rule in rules
        if rule["ports"][0]["port"] == port
        for peer in rule.get("from", rule.get("to"))
    ]


@pytest.mark.parametrize(
    ("spec", "settings"),
    [({"disaggregation": {"mode": "Off"}}, GATEWAY), ({}, SETTINGS), ({"gateway": {"enabled": False}}, GATEWAY)],
)
def test_there_is_no_prefill_set_unless_asked_for_and_unless_a_gateway_sends_it_prompts(spec, settings):
    service = make(**{**APART, **spec})
    assert "InferenceService" not in {one["kind"] for one in render(service, PLAN, settings)}
    assert from_pods(child("NetworkPolicy", service, settings=settings)["spec"]["ingress"], "admin")[1:] == ["chat"]


def test_it_is_the_service_with_engines_that_only_the_gateway_uses():
    given = {
        **EVERYTHING,
        **KEYED,
        "className": "special",
        "queueName": "llm",
        "scaling": {
            "mode": "External",
            "maxReplicas": 7,
            "targets": {"concurrency": 4},
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 60}},
        },
        "replicas": 3,
        "cost": {"pricePerReplicaHour": "2"},
        "tuning": {"mode": "Recommend", "override": {"maxNumSeqs": 4, "until": "2030-01-01T00:00:00Z"}},
        "networkPolicy": {"from": []},
        "template": {"nodeSelector": {"pool": "llm"}},
    }
    given["engine"] = {**EVERYTHING["engine"], "kvCache": {"swap": "2Gi"}}
    given["model"] = {"source": "hf://Qwen/Qwen3-8B", "prefetch": {"nodeSelector": {"pool": "llm"}}}
    found = prefill(**given)
    assert (found["metadata"]["name"], found["metadata"]["labels"]["inflight.dev/service"]) == ("chat-prefill", "chat")
    assert found["spec"] == {
        "className": "special",
        "queueName": "llm",
        "model": {"source": "hf://Qwen/Qwen3-8B", "servedName": "chat"},
        "engine": {**given["engine"], "grpc": False},
        "accelerator": {"count": 0},
        "slo": EVERYTHING["slo"],
        "scaling": {
            "mode": "Operator",
            "minReplicas": 1,
            "maxReplicas": 7,
            "targets": {},
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 60}},
        },
        "gateway": {"enabled": False},
        "networkPolicy": {"from": []},
        "disaggregation": {"mode": "Off"},
        "cost": {"pricePerReplicaHour": "2"},
        "tuning": {"mode": "Recommend"},
        "rollout": EVERYTHING["rollout"],
        "template": {"nodeSelector": {"pool": "llm"}},
    }


def test_its_replicas_accelerator_and_template_are_its_own_and_so_is_a_price():
    own = {
        "minReplicas": 2,
        "maxReplicas": 5,
        "accelerator": {"count": 1, "resource": "amd.com/gpu"},
        "template": {"nodeSelector": {"pool": "prefill"}},
    }
    found = prefill(
        accelerator={"count": 1},
        template={"nodeSelector": {"pool": "llm"}, "labels": {"desk": "seven"}},
        cost={"pricePerReplicaHour": "2"},
        disaggregation={"mode": "Fixed", "prefill": own},
    )["spec"]
    assert (found["scaling"]["minReplicas"], found["scaling"]["maxReplicas"]) == (2, 5)
    assert (found["accelerator"], found["template"]) == (own["accelerator"], own["template"])
    assert "cost" not in found


def test_it_is_applied_again_for_what_a_user_changes_and_not_for_defaults_of_the_api_server():
    wanted = prefill()
    fields = {"f:spec": {f"f:{name}": {f"f:{key}": {} for key in part} for name, part in wanted["spec"].items()}}
    entry = {"manager": FIELD_MANAGER, "operation": "Apply", "fieldsV1": fields}
    live = {**wanted, "metadata": {**wanted["metadata"], "managedFields": [entry], "uid": "u-2"}}
    live["spec"] = {**wanted["spec"], "rollout": {"strategy": "SurgeFirst"}, "status": {}}
    live["spec"]["scaling"] = {**wanted["spec"]["scaling"], "idleTimeout": "10m"}
    assert not needs_apply(wanted, live)
    for part, changed in (("scaling", {"minReplicas": 9}), ("gateway", {"enabled": True})):
        edited = {**live, "spec": {**live["spec"], part: {**live["spec"][part], **changed}}}
        assert needs_apply(wanted, edited)


def test_its_pods_are_those_of_the_service_but_for_names():
    service, other = pod(make(**APART), GATEWAY), pod(prefill_set(), GATEWAY)
    assert engine(prefill_set(), GATEWAY)["command"] == engine(make(**APART), GATEWAY)["command"]
    assert "--served-model-name=chat" in engine(prefill_set(), GATEWAY)["command"]
    renamed = str(other).replace("chat-prefill", "chat")
    assert renamed == str(service)


@pytest.mark.parametrize("spec", [APART, KEYED])
def test_its_engines_verify_signatures_as_those_of_the_service_do(spec):
    keys = replace(PLAN, tenant_keys=("key",))
    ours, theirs = (
        child("Secret", one, plan, GATEWAY)["data"]
        for one, plan in ((make(**spec), keys), (prefill_set(**spec), PLAN_OF))
    )
    assert theirs == ours
    assert base64.b64decode(theirs["tenant-key"]) == (b"key" if spec is KEYED else b"none")


def test_the_gateway_finds_its_engines_by_a_label_and_clients_have_no_address_of_them():
    plan = replace(PLAN_OF, front_pods=())
    found = {(one["kind"], one["metadata"]["name"]): one for one in render(prefill_set(), plan, GATEWAY)}
    services = [name for kind, name in found if kind in ("Service", "EndpointSlice")]
    assert services == ["chat-prefill-engines"]
    labels = found["Service", "chat-prefill-engines"]["metadata"]["labels"]
    assert (labels["inflight.dev/service"], labels["inflight.dev/prefill-of"]) == ("chat-prefill", "chat")
    assert "inflight.dev/prefill-of" not in child_labels_of_a_service()


def child_labels_of_a_service():
    services = (one for one in render(make(**APART), PLAN, GATEWAY) if one["kind"] == "Service")
    return next(one["metadata"]["labels"] for one in services if one["metadata"]["name"] == "chat-engines")


@pytest.mark.parametrize("spec", [APART, KEYED, {**APART, "networkPolicy": {"from": [{"podSelector": {}}]}}])
def test_only_the_gateway_sends_it_requests_and_both_sets_read_blocks_of_each_other(spec):
    ours, theirs = policy(make(**spec)), policy(prefill_set(**spec), PLAN_OF)
    gateway = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "inflight-system"}},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": "inflight-gateway"}},
    }
    (serving,) = (rule for rule in theirs["ingress"] if rule["ports"][0]["port"] == "http")
    assert serving["from"] == [gateway]
    assert from_pods(ours["ingress"], "admin") == ["other", "chat", "chat-prefill"]
    assert from_pods(theirs["ingress"], "admin") == ["other", "chat-prefill", "chat"]
    assert from_pods(ours["egress"], 8001) == ["chat", "chat-prefill"]
    assert from_pods(theirs["egress"], 8001) == ["chat-prefill", "chat"]


def test_a_service_that_is_stopped_has_none():
    def kinds(replicas):
        stopped = {"scaling": {"mode": "External"}, "replicas": replicas}
        return {one["kind"] for one in render(make(**{**APART, **stopped}), PLAN, GATEWAY)}

    assert kinds(1) - kinds(0) == {"InferenceService"}
