"""Pods that fetch a model: those that serve, without what only serving needs."""

import json
from dataclasses import replace

import pytest

from inflight_base.manifest.names import pod_labels
from inflight_operator.render.deployment import template_inputs
from inflight_operator.render.plan import ModelCache
from inflight_operator.render.service_children import render
from tests.operator.render.services import PLAN, SETTINGS, child, make, pod

NODES = {"nodeSelector": {"disk": "fast"}}
IMAGE = {"source": "oci://registry/qwen:1", "path": "models/qwen", "prefetch": NODES}
STORE = {
    "source": "s3://models/a",
    "endpoint": "https://minio:9000",
    "caConfigMap": "our-ca",
    "credentialsSecret": "keys",
    "prefetch": NODES,
}
HOST = replace(SETTINGS, model_cache=ModelCache(claim="", host_path="/var/cache", size=1000))
CLAIM = replace(SETTINGS, model_cache=ModelCache(claim="models", host_path="", size=1000))
TO_TWO = replace(PLAN, prefetch_run="run", prefetch=("node-a", "node-b"))


def jobs(model, settings=SETTINGS, plan=TO_TWO, **spec):
    return [one for one in render(make(model=model, **spec), plan, settings) if one["kind"] == "Job"]


def fetcher(model, settings=SETTINGS, **spec):
    template = jobs(model, settings, **spec)[0]["spec"]["template"]
    (container,) = template["spec"]["containers"]
    return template, container


def test_each_place_has_a_job_that_its_scheduler_puts_there():
    found = jobs(IMAGE)
    terms = [
        one["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        for one in found
    ]
    fields = [term["nodeSelectorTerms"][0]["matchFields"][0] for term in terms]
    assert [field["values"] for field in fields] == [["node-a"], ["node-b"]]
    assert len({one["metadata"]["name"] for one in found}) == 2
    assert not jobs(IMAGE, plan=PLAN)


def test_the_longest_name_of_a_service_leaves_room_for_that_of_a_job():
    service = make(name="a" * 39 + "-" + "b" * 10, model=IMAGE)
    names = [one["metadata"]["name"] for one in render(service, TO_TWO, SETTINGS) if one["kind"] == "Job"]
    assert all(len(name) <= 63 and "--" not in name for name in names)


def test_an_image_is_mounted_and_looked_at():
    template, container = fetcher(IMAGE)
    assert container["command"] == [
        "inflight-engine",
        "prefetch",
        "/models/models/qwen",
        "--report=/dev/termination-log",
    ]
    assert {"name": "inflight-model", "image": {"reference": "registry/qwen:1"}} in template["spec"]["volumes"]


def test_a_store_is_read_into_the_folder_of_the_node_with_the_credentials_and_certificates_of_engines():
    template, container = fetcher(STORE, HOST)
    assert container["command"][2:] == [
        "s3://models/a",
        "--report=/dev/termination-log",
        "--model-cache=/var/lib/inflight/models",
        "--model-cache-size=1000",
    ]
    assert container["envFrom"] == [{"secretRef": {"name": "keys"}}]
    assert {"name": "INFLIGHT_MODEL_ENDPOINT", "value": "https://minio:9000"} in container["env"]
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    assert mounts["inflight-model-ca"] == "/etc/inflight/model-ca"
    assert mounts["inflight-model-cache"] == "/var/lib/inflight/models"
    assert {one["name"] for one in template["spec"]["volumes"]} == set(mounts)


def test_a_hub_model_has_its_revision():
    model = {"source": "hf://a/b", "revision": "v2", "prefetch": NODES}
    assert "--revision=v2" in fetcher(model, HOST)[1]["command"]


def test_a_claim_that_all_nodes_share_is_filled_on_any_of_them():
    (job,) = jobs(STORE, CLAIM, replace(PLAN, prefetch_run="run", prefetch=("models",)))
    pod_spec = job["spec"]["template"]["spec"]
    assert pod_spec["nodeSelector"] == {"disk": "fast"}
    assert "affinity" not in pod_spec


def test_other_nodes_for_a_shared_claim_are_another_job_as_the_template_of_a_job_cannot_change():
    plan = replace(PLAN, prefetch_run="run", prefetch=("models",))
    (one,), (other,) = (
        jobs(STORE | {"prefetch": {"nodeSelector": {"disk": kind}}}, CLAIM, plan) for kind in ("fast", "faster")
    )
    assert one["metadata"]["name"] != other["metadata"]["name"]


def test_the_pods_have_the_account_and_tolerations_of_engines_and_no_accelerator_no_secret_of_theirs_and_no_selector():
    parts = {
        "serviceAccountName": "reader",
        "imagePullSecrets": [{"name": "registry"}],
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "labels": {"azure.workload.identity/use": "true"},
        "nodeSelector": {"disk": "other"},
        "priorityClassName": "high",
        "volumes": [
            {"name": "token", "projected": {"sources": []}},
            {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
        ],
        "volumeMounts": [{"name": "token", "mountPath": "/token"}, {"name": "data", "mountPath": "/data"}],
    }
    template, container = fetcher(STORE, HOST, template=parts, accelerator={"count": 2})
    spec, serving = template["spec"], pod(make(model=STORE, template=parts), HOST)["spec"]
    for field in ("serviceAccountName", "imagePullSecrets", "tolerations", "securityContext"):
        assert spec[field] == serving[field]
    assert spec["automountServiceAccountToken"] is False
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert "nvidia.com/gpu" not in json.dumps(template)
    assert not {"nodeSelector", "priorityClassName", "topologySpreadConstraints"} & spec.keys()
    assert not {"ports", "startupProbe", "lifecycle"} & container.keys()
    assert {one["name"] for one in spec["volumes"]} == {
        "inflight-scratch",
        "inflight-model-ca",
        "inflight-model-cache",
        "token",
    }
    assert not [one for one in container["env"] if "ADMIN" in one["name"]]
    labels = template["metadata"]["labels"]
    assert labels["azure.workload.identity/use"] == "true"
    assert not pod_labels("chat").items() <= labels.items(), "the Service would send requests to it"


def test_a_pod_that_fails_is_made_again_a_few_times_and_one_that_hangs_ends():
    spec = jobs(STORE, HOST, rollout={"startupTimeout": "20m"})[0]["spec"]
    assert (spec["backoffLimit"], spec["activeDeadlineSeconds"]) == (3, 1200)
    assert spec["template"]["spec"]["restartPolicy"] == "Never"


@pytest.mark.parametrize(("model", "types"), [(STORE, ["Ingress"]), (IMAGE, ["Ingress", "Egress"])])
def test_nobody_connects_to_the_pods_and_those_that_read_no_source_connect_to_nobody(model, types):
    policies = {
        one["metadata"]["name"]: one for one in render(make(model=model), TO_TWO, HOST) if "Network" in one["kind"]
    }
    policy = policies["chat-prefetch"]["spec"]
    labels = fetcher(model, HOST)[0]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    assert (policy["policyTypes"], policy.keys()) == (types, {"podSelector", "policyTypes"})
    assert "chat" in policies


def test_a_service_that_does_not_ask_has_no_policy_for_it():
    assert child("NetworkPolicy", make())["metadata"]["name"] == "chat"


def test_engines_do_not_restart_for_it():
    without = {name: value for name, value in STORE.items() if name != "prefetch"}
    assert template_inputs(make(model=STORE).spec) == template_inputs(make(model=without).spec)
    assert pod(make(model=STORE)) == pod(make(model=without))
