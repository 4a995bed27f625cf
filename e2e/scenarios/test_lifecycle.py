"""Apply, Ready, answer through the service's name, change, operator restart, backup and restore, delete."""

import json
import os
import subprocess
import sys
import time

import pytest

from e2e.scenarios.conftest import apply
from inflight_base.manifest.pods import condition
from tools.localcluster import kubeconfig_path, kubectl
from tools.testbed.helm import OPERATOR_NAMESPACE, RELEASE
from tools.testbed.load_pod import ask_pod, driver_pod
from tools.testbed.service import is_ready

CHILDREN = "deployment,replicaset,pod,service,secret,configmap,poddisruptionbudget,networkpolicy"


@pytest.fixture(scope="module")
def service(namespace):
    service = apply("life", namespace, tuning={"mode": "Off"}, scaling={"maxReplicas": 1})
    service.wait("Ready", is_ready, seconds=180)
    return service


def children(service):
    output = kubectl(
        "-n", service.namespace, "get", CHILDREN, "-l", f"inflight.dev/service={service.name}", "-o", "name"
    )
    return output.split()


SCHEDULED = {
    "maxQueuedRequests": 100,
    "kvCache": {"swap": "64Mi", "headroom": 0.05},
    "scheduling": {"policy": "priority", "classes": [{"name": "chat", "weight": 4}, {"name": "batch"}]},
}


def closing_line(pod):
    return json.loads("".join(pod.follow()).strip().splitlines()[-1])


def test_the_service_answers_through_its_name_inside_the_cluster(service, client_image):
    with ask_pod(service, "ask", "What are the colors of the rainbow?", image=client_image) as pod:
        answer = "".join(pod.follow())
        assert pod.exit_code() == 0, answer
    assert "red" in answer.lower()


def test_kubectl_shows_the_columns_a_person_looks_for(service):
    header, row = kubectl("-n", service.namespace, "get", "ifsvc", service.name).splitlines()
    assert header.split() == ["NAME", "READY", "REPLICAS", "QUEUE", "KV", "LIMITS", "REASON", "AGE"]
    assert row.split()[:3] == [service.name, "True", "1"]


def test_the_operator_killed_and_restarted_loses_nothing(service):
    before = service.pods()
    kubectl("-n", OPERATOR_NAMESPACE, "delete", "pod", "-l", "app.kubernetes.io/name=inflight-operator", "--force")
    # A change made while it is away is carried out, and what was not changed stays the same process.
    apply(service.name, service.namespace, tuning={"mode": "Off"}, scaling={"minReplicas": 2, "maxReplicas": 2})
    kubectl("-n", OPERATOR_NAMESPACE, "rollout", "status", "deployment/inflight-operator", "--timeout=90s")
    service.wait("two replicas", lambda status: status.get("readyReplicas") == 2, seconds=120)
    kept = {pod.uid: pod.restarts for pod in service.pods()}
    assert all(kept.get(pod.uid) == pod.restarts for pod in before)
    apply(service.name, service.namespace, tuning={"mode": "Off"}, scaling={"maxReplicas": 1})
    service.wait("one replica", lambda status: status.get("replicas") == status.get("readyReplicas") == 1, seconds=120)


def test_a_spec_change_rolls_out_under_traffic_and_no_request_is_lost(service, client_image):
    before = {pod.uid for pod in service.pods()}
    arguments = ["--clients", "4", "--seconds", "35", "--requests", "100000"]
    with driver_pod(service, "rollout", arguments, image=client_image) as pod:
        time.sleep(3)
        # One replica, so that whoever is there afterwards is the one that replaced it.
        apply(service.name, service.namespace, tuning={"mode": "Off"}, engine=SCHEDULED, scaling={"maxReplicas": 1})
        deadline = time.monotonic() + 90
        while {pod.uid for pod in service.pods()} & before:
            assert time.monotonic() < deadline, "the old pod is still there"
            time.sleep(1)
        closing = closing_line(pod)
    assert closing["lost"] == {}
    assert closing["answered"] == closing["sent"] > 0
    assert is_ready(service.status())
    (pod,) = service.pods()
    scheduling = service.runtime_config(pod.name)["scheduling"]
    assert scheduling["policy"] == "priority"
    assert [(each["name"], each["weight"]) for each in scheduling["classes"]] == [("chat", 4.0), ("batch", 1.0)]


RELEASE_KEYS = (f"{RELEASE}-operator-key", f"{RELEASE}-gateway-key")

NOT_RESTORED = ("uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "ownerReferences")
"""Metadata that Velero leaves out."""


def without_operator():
    kubectl("-n", OPERATOR_NAMESPACE, "scale", "deployment/inflight-operator", "--replicas=0")
    pods = ("pod", "-l", "app.kubernetes.io/name=inflight-operator")
    kubectl("-n", OPERATOR_NAMESPACE, "wait", "--for=delete", *pods, "--timeout=60s")


def with_operator():
    kubectl("-n", OPERATOR_NAMESPACE, "scale", "deployment/inflight-operator", "--replicas=1")
    kubectl("-n", OPERATOR_NAMESPACE, "rollout", "status", "deployment/inflight-operator", "--timeout=90s")


def read(kind, name, namespace):
    return json.loads(kubectl("-n", namespace, "get", kind, name, "-o", "json"))


def restore(manifest):
    """Creates the object as Velero with `restoreStatus` does."""
    manifest["metadata"] = {name: part for name, part in manifest["metadata"].items() if name not in NOT_RESTORED}
    kubectl("create", "-f", "-", input=json.dumps(manifest))
    if "status" in manifest:
        kubectl("replace", "--subresource=status", "-f", "-", input=json.dumps(manifest))


def inflight(*arguments, namespace, key="", stdin=""):
    """Runs `kubectl inflight` with the API key; returns the finished process."""
    program = [sys.executable, "-c", "from inflight_kubectl.cli import main; main()", *arguments]
    where = ["-n", namespace, "--kubeconfig", str(kubeconfig_path())]
    environment = os.environ | {"INFLIGHT_API_KEY": key}
    return subprocess.run([*program, *where], input=stdin, env=environment, capture_output=True, text=True, timeout=90)


def test_a_service_restored_in_veleros_order_goes_on_with_its_limits_decisions_and_keys(namespace):
    gateway = {"enabled": True, "auth": {"apiKeysSecret": "inflight-api-keys"}}
    keyed = {"gateway": gateway, "scaling": {"maxReplicas": 1}}
    service = apply("kept", namespace, **keyed)
    service.wait("Ready", is_ready, seconds=180)
    made = inflight("keys", "create", service.name, "--tenant", "acme", namespace=namespace)
    assert made.returncode == 0, made.stderr
    key = made.stdout.strip()
    # Limits that the status alone has: tuning lowered them into bounds that are gone.
    apply(service.name, namespace, tuning={"maxNumSeqs": {"max": 6}}, **keyed)
    service.wait("lower limits", lambda status: status["limits"]["maxNumSeqs"] == 6, seconds=30)
    apply(service.name, namespace, **keyed)
    wanted = read("ifsvc", service.name, namespace)["metadata"]["generation"]
    before = service.wait("the last spec", lambda status: status.get("observedGeneration") == wanted, seconds=30)
    assert before["limits"]["maxNumSeqs"] == 6

    without_operator()
    try:
        saved = [read("secret", name, OPERATOR_NAMESPACE) for name in RELEASE_KEYS]
        saved += [read("secret", "inflight-api-keys", namespace), read("ifsvc", service.name, namespace)]
        kubectl("-n", namespace, "delete", "ifsvc", service.name, "--cascade=foreground", "--timeout=120s")
        for secret in saved[:-1]:
            kubectl("-n", secret["metadata"]["namespace"], "delete", "secret", secret["metadata"]["name"])
        for manifest in saved:
            restore(manifest)
    finally:
        with_operator()
    after = service.wait(
        "Ready again",
        lambda status: is_ready(status) and condition(status, "GatewayReady").get("status") == "True",
        seconds=180,
    )
    assert after["limits"]["maxNumSeqs"] == 6
    assert after["limits"]["revision"] >= before["limits"]["revision"]
    assert [one for one in after["decisions"] if one in before["decisions"]] == before["decisions"]
    service.wait("its limits on the new pod", lambda status: status["limits"]["podsInForce"] == 1, seconds=30)
    (pod,) = service.pods()
    assert service.runtime_config(pod.name)["max_num_seqs"] == 6
    for secret in saved[:-1]:
        name, where = secret["metadata"]["name"], secret["metadata"]["namespace"]
        assert read("secret", name, where)["data"] == secret["data"]
    for sent, taken in ((key, True), (f"{key}x", False)):
        done = inflight("chat", service.name, "--max-tokens=8", namespace=namespace, key=sent, stdin="Name a colour.")
        assert (done.returncode == 0) == taken, done.stderr
    kubectl("-n", namespace, "delete", "ifsvc", service.name, "--wait=false")


def test_deleting_the_service_leaves_nothing(service):
    assert children(service)
    kubectl("-n", service.namespace, "delete", "inferenceservice", service.name, "--wait")
    deadline = time.monotonic() + 90
    while left := children(service):
        assert time.monotonic() < deadline, f"still there: {left}"
        time.sleep(1)
