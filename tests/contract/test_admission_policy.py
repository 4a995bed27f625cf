"""The rights of the operator's account to write, with the chart's roles and admission policies on a real API server.

Each call is made as the operator's account, as the operator makes it: server-side apply of what `render` gives, and
changes of it that someone who took over the operator would try.
"""

import copy
import json
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from inflight_base.manifest.slices import GatewayAddress
from inflight_operator.api.types import InferenceService
from inflight_operator.render.inference_pool import picker_slices
from inflight_operator.render.plan import ChildPlan, Settings
from inflight_operator.render.prefill import prefill_service
from inflight_operator.render.service import front_slices
from inflight_operator.render.service_children import render
from inflight_settings.limits import Limits, LimitsInForce
from tests.contract.manifests import service_manifest
from tools.testbed.helm import binary

pytestmark = pytest.mark.contract

CHART = Path(__file__).parents[2] / "helm" / "inflight"
SYSTEM = "inflight-system"
ACCOUNT = f"system:serviceaccount:{SYSTEM}:prod-operator"
KEY = "prod-operator-key"
NOT_INSTALLED = ("Deployment", "Pod", "CustomResourceDefinition")


@pytest.fixture(scope="module")
def chart(kubectl, tmp_path_factory):
    """The chart's roles and policies, in force; gone afterwards."""
    rendered = subprocess.run(
        [
            binary(),
            "template",
            "prod",
            CHART,
            "--namespace",
            SYSTEM,
            "--set",
            "gateway.enabled=true,gateway.extProcPort=9002",
        ],
        env={"HOME": str(tmp_path_factory.mktemp("helm-home")), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    objects = [o for o in yaml.safe_load_all(rendered) if o and o["kind"] not in NOT_INSTALLED]
    kubectl.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}})
    kubectl.create(*objects)
    wait_until_in_force(kubectl)
    yield
    kubectl.run("delete", "-f", "-", stdin=yaml.safe_dump_all(objects))


def wait_until_in_force(kubectl):
    """The API server compiles new policies in the background; both are tried, each with a write that it refuses."""
    pod = stranger_pod("default")
    kubectl.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}})
    kubectl.create(pod)
    deadline = time.monotonic() + 60
    while not (
        "the operator writes only" in operator(kubectl, "apply", config_map(), dry_run=True).stderr
        and "the operator changes only" in annotate(kubectl, "stranger", "default", "x", "y", dry_run=True).stderr
    ):
        assert time.monotonic() < deadline, "the policies are not in force"
        time.sleep(0.2)
    kubectl.ok("delete", "pod", "stranger", "--now")


def operator(kubectl, verb, manifest, *, dry_run=False):
    """Writes as the operator's account."""
    flags = ["--server-side", "--field-manager=inflight-operator", "--force-conflicts"] if verb == "apply" else []
    flags += ["--dry-run=server"] if dry_run else []
    return kubectl.run(verb, *flags, "--as", ACCOUNT, "-f", "-", stdin=yaml.safe_dump(manifest))


def annotate(kubectl, pod, namespace, key, value, *, dry_run=False):
    body = {"metadata": {"annotations": {key: value}}}
    return patch_pod(kubectl, pod, namespace, body, dry_run=dry_run)


def patch_pod(kubectl, pod, namespace, body, *, dry_run=False):
    flags = ["--dry-run=server"] if dry_run else []
    arguments = ["patch", "pod", pod, "-n", namespace, "--type=merge", "-p", json.dumps(body), *flags]
    return kubectl.run(*arguments, "--as", ACCOUNT)


def config_map(namespace="default", **metadata):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "namespace": namespace, **metadata}}


def stranger_pod(namespace, **metadata):
    container = {
        "name": "engine",
        "image": "example.com/engine:1",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    security = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "stranger", "namespace": namespace, **metadata},
        "spec": {"containers": [container], "securityContext": security, "automountServiceAccountToken": False},
    }


@pytest.fixture
def children(kubectl, chart, namespace):
    kubectl.create(service_manifest(namespace, {"model": {"source": "builtin://smollm2"}, "accelerator": {"count": 0}}))
    service = InferenceService.from_dict(kubectl.json("get", "ifsvc", "chat", "-n", namespace))
    plan = ChildPlan(replicas=2, limits=LimitsInForce(Limits(64, 1024), 7), admin_token="secret", spec_digest="spec")
    settings = Settings(engine_image="example.com/engine:1", operator_namespace=SYSTEM)
    return {child["kind"]: child for child in render(service, plan, settings)}


def refused(done, sentence):
    assert done.returncode != 0, done.stdout
    assert sentence in done.stderr


def test_the_operator_makes_changes_and_deletes_every_child(kubectl, children):
    for child in children.values():
        assert operator(kubectl, "apply", child).returncode == 0, child["kind"]
    for child in children.values():
        changed = copy.deepcopy(child)
        changed["metadata"]["annotations"] = {"example.com/changed": "yes"}
        done = operator(kubectl, "apply", changed)
        assert done.returncode == 0, done.stderr
    for kind, child in children.items():
        done = operator(kubectl, "delete", child)
        if kind == "Secret":
            assert "forbidden" in done.stderr
        else:
            assert done.returncode == 0, done.stderr


def test_a_label_that_was_taken_away_by_hand_is_put_back(kubectl, children, namespace):
    assert operator(kubectl, "apply", children["Service"]).returncode == 0
    kubectl.ok("label", "service/chat", "-n", namespace, "app.kubernetes.io/managed-by-")
    done = operator(kubectl, "apply", children["Service"])
    assert done.returncode == 0, done.stderr


def test_a_job_is_made_and_deleted_for_a_service_and_for_nobody_else(kubectl, children, namespace):
    metadata = {**children["ConfigMap"]["metadata"], "name": "chat-fetch-1"}
    template = {"spec": {**stranger_pod(namespace)["spec"], "restartPolicy": "Never"}}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": template}}
    for verb in ("apply", "delete"):
        done = operator(kubectl, verb, job)
        assert done.returncode == 0, done.stderr
    del metadata["ownerReferences"]
    refused(operator(kubectl, "apply", job), "the operator writes only objects that an InferenceService controls")


@pytest.mark.parametrize(
    "kind", ["ConfigMap", "Secret", "Service", "Deployment", "NetworkPolicy", "PodDisruptionBudget"]
)
def test_what_no_service_controls_cannot_be_made(kubectl, children, kind):
    child = children[kind]
    del child["metadata"]["ownerReferences"]
    refused(operator(kubectl, "apply", child), "the operator writes only objects that an InferenceService controls")


@pytest.mark.parametrize(
    "owner",
    [
        {"apiVersion": "apps/v1", "kind": "Deployment"},
        {"apiVersion": "example.com/v1", "kind": "InferenceService"},
        {"controller": False},
    ],
)
def test_another_owner_is_no_owner(kubectl, children, owner):
    child = children["ConfigMap"]
    child["metadata"]["ownerReferences"][0] |= owner
    refused(operator(kubectl, "apply", child), "the operator writes only objects that an InferenceService controls")


def test_a_child_without_the_label_cannot_be_made(kubectl, children):
    child = children["ConfigMap"]
    del child["metadata"]["labels"]["app.kubernetes.io/managed-by"]
    refused(operator(kubectl, "apply", child), "app.kubernetes.io/managed-by=inflight")


def test_an_object_of_someone_else_is_neither_taken_over_nor_deleted(kubectl, children, namespace):
    child = children["ConfigMap"]
    theirs = {**config_map(namespace), "data": {"a": "b"}}
    theirs["metadata"]["name"] = child["metadata"]["name"]
    kubectl.create(theirs)
    refused(operator(kubectl, "apply", child), "only objects that an InferenceService controlled before")
    refused(operator(kubectl, "delete", theirs), "the operator writes only objects")
    assert kubectl.json("get", "configmap", theirs["metadata"]["name"], "-n", namespace)["data"] == {"a": "b"}


def test_of_secrets_only_the_admin_token_of_the_owner_can_be_written(kubectl, children):
    for name in ("other", "other-admin-token"):
        secret = copy.deepcopy(children["Secret"])
        secret["metadata"]["name"] = name
        refused(operator(kubectl, "apply", secret), "only those with the admin token of a service")


def test_of_inference_services_only_those_with_prefill_engines_of_the_owner_can_be_written(
    kubectl, children, namespace
):
    service = InferenceService.from_dict(kubectl.json("get", "ifsvc", "chat", "-n", namespace))
    prefill = prefill_service(service)
    done = operator(kubectl, "apply", prefill)
    assert done.returncode == 0, done.stderr
    other = copy.deepcopy(prefill)
    other["metadata"]["name"] = "other-prefill"
    refused(operator(kubectl, "apply", other), "only those with prefill engines")
    theirs = {**kubectl.json("get", "ifsvc", "chat", "-n", namespace), "spec": prefill["spec"]}
    for verb in ("apply", "delete"):
        refused(operator(kubectl, verb, theirs), "the operator writes only objects")
    assert operator(kubectl, "delete", prefill).returncode == 0


@pytest.mark.parametrize("slices", [picker_slices, front_slices])
def test_of_endpoint_slices_only_those_of_services_of_the_owner_can_be_written(kubectl, children, namespace, slices):
    service = InferenceService.from_dict(kubectl.json("get", "ifsvc", "chat", "-n", namespace))
    (slice_,) = slices(service, [GatewayAddress("10.1.0.1")])
    done = operator(kubectl, "apply", slice_)
    assert done.returncode == 0, done.stderr
    for victim in ("chat-engines", "payments", "other-picker"):
        stolen = copy.deepcopy(slice_)
        stolen["metadata"]["name"] = f"{victim}-slice"
        stolen["metadata"]["labels"]["kubernetes.io/service-name"] = victim
        refused(operator(kubectl, "apply", stolen), "only those of a service's Services")
    assert operator(kubectl, "delete", slice_).returncode == 0


def test_a_secret_of_someone_else_with_that_name_is_not_taken_over(kubectl, children, namespace):
    name = children["Secret"]["metadata"]["name"]
    theirs = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": namespace}}
    kubectl.create({**theirs, "stringData": {"password": "x"}})
    refused(operator(kubectl, "apply", children["Secret"]), "only objects that an InferenceService controlled before")


def test_secrets_of_services_cannot_be_read(kubectl, children, namespace):
    assert operator(kubectl, "apply", children["Secret"]).returncode == 0
    for arguments in (["get", "secrets"], ["get", "secret", "chat-admin-token"]):
        assert "forbidden" in kubectl.run(*arguments, "-n", namespace, "--as", ACCOUNT).stderr


def test_a_patch_that_changes_nothing_does_not_show_a_secret_of_someone_else(kubectl, children, namespace):
    theirs = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "theirs", "namespace": namespace}}
    kubectl.create({**theirs, "stringData": {"password": "x"}})
    done = operator(kubectl, "apply", theirs)
    refused(done, "the operator writes only objects")
    assert "password" not in done.stdout + done.stderr


def test_the_key_is_made_and_read_in_the_operators_namespace_and_nowhere_else(kubectl, children, namespace):
    def secret(name, where):
        return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": where}, "data": {}}

    done = operator(kubectl, "create", secret(KEY, SYSTEM))
    assert done.returncode == 0, done.stderr
    kubectl.ok("get", "secret", KEY, "-n", SYSTEM, "--as", ACCOUNT)
    refused(operator(kubectl, "create", secret("other", SYSTEM)), "the operator writes only objects")
    refused(operator(kubectl, "create", secret(KEY, namespace)), "the operator writes only objects")
    refused(operator(kubectl, "apply", {**secret(KEY, SYSTEM), "data": {"key": "AAAA"}}), "the operator writes only")
    assert "forbidden" in operator(kubectl, "delete", secret(KEY, SYSTEM)).stderr


COST, PEERS = "controller.kubernetes.io/pod-deletion-cost", "inflight.dev/peers"


@pytest.fixture
def engine_pod(kubectl, chart, namespace):
    labels = {"inflight.dev/service": "chat"}
    kubectl.create(stranger_pod(namespace, labels=labels, annotations={"example.com/a": "1"}))
    return "stranger"


@pytest.mark.parametrize("name", [COST, PEERS])
def test_a_pod_gets_the_annotations_of_the_operator(kubectl, engine_pod, namespace, name):
    for value in ("5", "-3", None):
        done = annotate(kubectl, engine_pod, namespace, name, value)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "body",
    [
        {"metadata": {"annotations": {"example.com/a": "2"}}},
        {"metadata": {"annotations": {"example.com/a": None}}},
        {"metadata": {"annotations": {"example.com/b": "1", COST: "1"}}},
        {"metadata": {"labels": {"inflight.dev/service": "other"}}},
        {"metadata": {"labels": {"more": "1"}}},
        {"metadata": {"finalizers": ["example.com/stay"]}},
        {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "y"}]}},
        {"spec": {"activeDeadlineSeconds": 1}},
        {"spec": {"containers": [{"name": "engine", "image": "example.com/mine:1"}]}},
    ],
    ids=lambda body: json.dumps(body)[:60],
)
def test_nothing_else_of_a_pod_can_be_changed(kubectl, engine_pod, namespace, body):
    arguments = ["patch", "pod", engine_pod, "-n", namespace, "--type=strategic", "-p", json.dumps(body)]
    done = kubectl.run(*arguments, "--as", ACCOUNT)
    refused(done, f"of a pod the operator changes only the annotations {COST} and {PEERS}")
    assert kubectl.run(*arguments).returncode == 0, "nobody may change that: this shows nothing"


def test_a_pod_of_no_service_gets_no_deletion_cost(kubectl, chart, namespace):
    kubectl.create(stranger_pod(namespace))
    done = annotate(kubectl, "stranger", namespace, COST, "5")
    refused(done, "the operator changes only pods of an InferenceService")


def test_other_users_are_not_bound(kubectl, chart, namespace):
    kubectl.create(config_map(namespace))
    kubectl.ok("delete", "configmap", "x", "-n", namespace)


def can_i(kubectl, role, verb, resource):
    """Returns whether one of the cluster's own roles has a right. No controller aggregates roles here, so it reads the
    rules of the roles that carry its label."""
    selector = f"rbac.authorization.k8s.io/aggregate-to-{role}=true"
    found = kubectl.json("get", "clusterroles", "-l", selector)["items"]
    return any(
        verb in rule["verbs"] and resource in rule["resources"]
        for each in found
        for rule in each["rules"] or ()
        if "inflight.dev" in rule.get("apiGroups", ())
    )


def test_users_of_the_clusters_own_roles_see_or_change_services(kubectl, chart):
    assert can_i(kubectl, "view", "watch", "inferenceservices")
    assert not can_i(kubectl, "view", "patch", "inferenceservices")
    for role in ("edit", "admin"):
        assert can_i(kubectl, role, "create", "inferenceservices")
        assert can_i(kubectl, role, "patch", "inferenceservices/scale")
        assert not can_i(kubectl, role, "patch", "inferenceservices/status")
