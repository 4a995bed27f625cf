"""A service behind the gateway: its name answers, and answers are the same whatever happens to an engine meanwhile."""

import json
import re
import signal
import sys

import pytest

from e2e.disruptions import processes
from e2e.disruptions.stage import continued, node_problem
from e2e.scenarios.conftest import apply
from tools.localcluster import kubectl
from tools.testbed.load_pod import ask_pod, greedy_pod
from tools.testbed.service import is_ready

pytestmark = pytest.mark.timeout(420)

REPLICAS = 2
LONGEST_GAP_SECONDS = 30.0
"""Longest wait of a client for the next piece of its stream: a hung engine is detected by its missing heartbeats."""


@pytest.fixture(scope="module")
def service(namespace):
    """Two engines that compute in float32, in which an answer does not depend on the other requests of a batch."""
    service = apply(
        "story",
        namespace,
        engine={"dtype": "float32", "maxNumSeqs": 16},
        scaling={"minReplicas": REPLICAS, "maxReplicas": REPLICAS},
        tuning={"mode": "Off"},
        gateway={"enabled": True},
    )
    wait_whole(service)
    yield service
    kubectl("-n", namespace, "delete", "inferenceservice", service.name, "--wait=false")


def wait_whole(service):
    service.wait(
        "two replicas",
        lambda status: is_ready(status) and status.get("readyReplicas") == len(service.pods()) == REPLICAS,
        seconds=240,
    )


def greedy(service, name, image, disturb=lambda: None):
    """The answers of a run, by number; `disturb` is called once all streams flow."""
    with greedy_pod(service, name, image=image) as pod:
        rest = ""
        for piece in pod.follow():
            *lines, rest = (rest + piece).split("\n")
            for line in (json.loads(one) for one in lines if one):
                if "flowing" in line:
                    disturb()
                elif line.get("done"):
                    return {one["number"]: one for one in line["answers"]}
    raise AssertionError(f"the client ended without its answers: {rest}")


@pytest.fixture(scope="module")
def undisturbed(service, client_image):
    answers = greedy(service, "undisturbed", client_image)
    assert [one["failure"] for one in answers.values()] == [""] * len(answers)
    return answers


def test_the_name_of_the_service_leads_through_the_gateway(service, client_image):
    slices = "--selector=kubernetes.io/service-name"
    listed = json.loads(
        kubectl("-n", service.namespace, "get", "endpointslices", f"{slices}={service.name}", "-o", "json")
    )
    front = {one["addresses"][0] for each in listed["items"] for one in each.get("endpoints") or ()}
    assert front
    assert front.isdisjoint(pod.address for pod in service.pods())
    with ask_pod(service, "ask", "What are the colors of the rainbow?", image=client_image) as pod:
        answer = "".join(pod.follow())
        assert pod.exit_code() == 0, answer
    assert "red" in answer.lower()


def test_the_same_greedy_requests_have_the_same_answers(service, client_image, undisturbed):
    again = greedy(service, "again", client_image)
    assert {n: one["token_ids"] for n, one in again.items()} == {n: one["token_ids"] for n, one in undisturbed.items()}


def busiest(service):
    """The pod that runs the most requests, as its own metrics say."""

    def running(pod):
        path = f"/api/v1/namespaces/{service.namespace}/pods/{pod.name}:8000/proxy/metrics"
        return float(
            re.search(r"^vllm:num_requests_running{.*} (\S+)$", kubectl("get", "--raw", path), re.MULTILINE)[1]
        )

    return max(service.pods(), key=running)


def kill_engine(pod):
    processes.send([processes.engine_process(pod.uid)], signal.SIGKILL)
    return []


def kill_pod(pod):
    processes.send(processes.of_pod(pod.uid), signal.SIGKILL)
    return []


def hang_pod(pod):
    stopped = processes.of_pod(pod.uid)
    processes.send(stopped, signal.SIGSTOP)
    return stopped


@pytest.mark.parametrize("strike", [kill_engine, kill_pod, hang_pod])
def test_answers_go_on_at_another_engine_bit_by_bit_the_same(service, client_image, undisturbed, strike):
    if problem := node_problem():
        pytest.skip(problem)
    wait_whole(service)
    before, stopped = continued(service), []

    def disturb():
        stopped.extend(strike(busiest(service)))

    try:
        answers = greedy(service, strike.__name__.replace("_", "-"), client_image, disturb)
    finally:
        processes.send(stopped, signal.SIGCONT)
    for number, one in answers.items():
        assert one["failure"] == "", (number, one)
        assert one["token_ids"] == undisturbed[number]["token_ids"], number
        assert one["text"] == undisturbed[number]["text"], number
        assert one["completion_tokens"] == undisturbed[number]["completion_tokens"], number
    count, gap = continued(service) - before, max(one["longest_gap"] for one in answers.values())
    print(f"{strike.__name__}: {count} answers continued, longest gap in a stream {gap:.1f} s", file=sys.stderr)
    assert count > 0
    assert gap < LONGEST_GAP_SECONDS
