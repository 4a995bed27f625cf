"""Engines that read weights from each other: flags, disk, files and policy of their pods."""

import json
from dataclasses import replace

import pytest

from inflight_base.manifest.names import pod_labels
from inflight_operator.render.deployment import template_inputs
from inflight_operator.render.plan import ModelCache
from inflight_operator.render.service_children import render
from tests.operator.render.services import CPU, PLAN, SETTINGS, make

STORE = {"source": "s3://models/qwen", "peers": True}
SHARED = replace(SETTINGS, model_cache=ModelCache(claim="models", host_path="", size=1000))
OWN_PODS = {"podSelector": {"matchLabels": pod_labels("chat")}}


def rendered(model=STORE, settings=SETTINGS, plan=PLAN, **spec):
    return {one["kind"]: one for one in render(make(**CPU | spec, model=model), plan, settings)}


def pod(*arguments, **spec):
    return rendered(*arguments, **spec)["Deployment"]["spec"]["template"]["spec"]


def flags(*arguments, **spec):
    command = pod(*arguments, **spec)["containers"][0]["command"]
    names = ("model-cache", "model-cache-size", "peers-file", "peers-tpot")
    return [one for one in command if one.removeprefix("--").partition("=")[0] in names]


def admin_rule(*arguments, **spec):
    ingress = rendered(*arguments, **spec)["NetworkPolicy"]["spec"]["ingress"]
    (found,) = [rule for rule in ingress if [port["port"] for port in rule["ports"]] == ["admin"]]
    return found


def volume(name, *arguments, **spec):
    return next((one for one in pod(*arguments, **spec)["volumes"] if one["name"] == name), None)


@pytest.mark.parametrize("model", [{"source": "s3://models/qwen"}, STORE | {"peers": False}])
def test_without_peers_engines_have_neither_flags_nor_a_disk_and_no_pod_may_read_their_weights(model):
    assert flags(model) == []
    assert volume("inflight-model-cache", model) is None
    assert OWN_PODS not in admin_rule(model)["from"]


def test_engines_keep_what_they_give_to_peers_on_a_disk_of_their_own():
    assert flags() == [
        "--model-cache=/var/lib/inflight/models",
        f"--model-cache-size={64 << 30}",
        "--peers-file=/etc/inflight/limits/peers.json",
        "--peers-tpot=0.05",
    ]
    kept = volume("inflight-model-cache", STORE | {"storage": "10Gi"})
    assert kept["emptyDir"] == {"sizeLimit": str((10 << 30) + (64 << 20))}
    assert f"--model-cache-size={10 << 30}" in flags(STORE | {"storage": "10Gi"})


def test_engines_keep_it_in_the_folder_that_they_share_where_there_is_one():
    assert flags(STORE, SHARED)[:3] == [
        "--model-cache=/var/lib/inflight/models",
        "--model-cache-size=1000",
        "--peers-file=/etc/inflight/limits/peers.json",
    ]
    assert volume("inflight-model-cache", STORE, SHARED)["persistentVolumeClaim"] == {"claimName": "models"}


@pytest.mark.parametrize(
    ("slo", "classes", "expected"),
    [
        ({"tpotP95": "80ms"}, [], "0.08"),
        ({"tpotP95": "80ms"}, [{"name": "fast", "slo": {"tpotP95": "20ms"}}, {"name": "slow"}], "0.02"),
        ({"ttftP95": "1s"}, [{"name": "slow", "slo": {"tpotP95": "1s"}}], "0.05"),
    ],
)
def test_peers_read_nothing_while_the_shortest_tpot_target_is_missed(slo, classes, expected):
    assert flags(slo=slo, engine={"scheduling": {"classes": classes}})[-1] == f"--peers-tpot={expected}"


def test_another_tpot_target_is_another_spec_of_the_pods_with_peers_only():
    with_peers, without = (
        {
            template_inputs(make(**CPU, model=model, slo={"ttftP95": "1s", "tpotP95": tpot}).spec)
            for tpot in ("50ms", "80ms")
        }
        for model in (STORE, {"source": "s3://models/qwen"})
    )
    assert (len(with_peers), len(without)) == (2, 1)


def test_own_flags_may_not_be_repeated_so_extra_ones_come_last():
    command = pod(engine={"extraArgs": ["--block-size=32"]})["containers"][0]["command"]
    assert command[-1] == "--block-size=32"


def test_the_pods_of_the_service_may_reach_the_admin_port_of_each_other():
    operator = admin_rule({"source": "s3://models/qwen"})["from"]
    assert admin_rule()["from"] == [*operator, OWN_PODS]


SWAP = {"engine": {"kvCache": {"swap": "1Gi"}}}
IN_IMAGE = {"source": "builtin://smollm2"}


@pytest.mark.parametrize(("spec", "own"), [(SWAP, True), ({"gateway": {"enabled": True}}, False)], ids=["yes", "no"])
def test_engines_with_host_memory_are_read_by_those_of_the_service(spec, own):
    assert (OWN_PODS in admin_rule(IN_IMAGE, **spec)["from"]) is own


def test_the_admin_port_of_engines_whose_operator_is_outside_the_cluster_stays_open():
    assert "from" not in admin_rule(STORE, replace(SETTINGS, operator_namespace=None))


def test_peers_are_named_in_a_file_beside_the_limits_which_changes_no_pod():
    named = replace(PLAN, peers=(("uid-a", "10.0.0.1:8001"),))
    data = rendered(plan=named)["ConfigMap"]["data"]
    assert json.loads(data["peers.json"]) == {"uid-a": "10.0.0.1:8001"}
    assert "peers.json" not in rendered()["ConfigMap"]["data"]
    assert rendered(plan=named)["Deployment"] == rendered()["Deployment"]


@pytest.mark.parametrize("source", ["builtin://smollm2", "hf://a/b", "pvc://claim/folder", "oci://image"])
def test_sources_without_ranges_have_no_peers_in_objects_of_another_release(source):
    model = {"source": source, "peers": True}
    assert flags(model) == []
    assert OWN_PODS not in admin_rule(model)["from"]
