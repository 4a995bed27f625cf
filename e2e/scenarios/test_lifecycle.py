"""Apply, Ready, answer through the service's name, change, operator restart, delete."""

import json
import time

import pytest

from e2e.scenarios.conftest import apply
from tools.localcluster import kubectl
from tools.testbed.helm import OPERATOR_NAMESPACE
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


def test_deleting_the_service_leaves_nothing(service):
    assert children(service)
    kubectl("-n", service.namespace, "delete", "inferenceservice", service.name, "--wait")
    deadline = time.monotonic() + 90
    while left := children(service):
        assert time.monotonic() < deadline, f"still there: {left}"
        time.sleep(1)
