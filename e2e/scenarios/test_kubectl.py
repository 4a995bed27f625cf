"""`kubectl inflight` in a real terminal, against engines that run: figures of pods come through port-forwards."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.scenarios.conftest import apply
from inflight_base.manifest.pods import condition
from inflight_kubectl.access.cluster import Target
from inflight_kubectl.engines.engine_access import forward_to_service
from tools.localcluster import kubeconfig_path, kubectl
from tools.terminal import terminal
from tools.testbed.helm import OPERATOR_NAMESPACE
from tools.testbed.service import is_ready

PROGRAM = str(Path(sys.executable).with_name("kubectl-inflight"))


@pytest.fixture(scope="module")
def service(namespace):
    service = apply("chat", namespace, slo={"ttftP95": "5s", "tpotP95": "1s"}, scaling={"maxReplicas": 1})
    service.wait("the service to be Ready", is_ready, seconds=180)
    return service


@pytest.fixture(scope="module")
def environment():
    return {"KUBECONFIG": str(kubeconfig_path()), "TERM": "xterm-256color"}


def test_requests_reach_an_engine_through_a_port_forward_and_top_shows_its_figures(service, environment):
    cluster = Target(kubeconfig=environment["KUBECONFIG"], namespace=service.namespace).connect()
    with (
        terminal("inflight-e2e-top", [PROGRAM, "top", "-n", service.namespace, "-w", "0.5"], environment) as screen,
        forward_to_service(cluster, cluster.service("chat")) as forward,
        forward.client(timeout=60) as http,
    ):
        screen.sees("chat", "Ready", "1/1")
        screen.press("Enter")
        screen.sees("POD", "Running", "0%")
        body = {"model": "chat", "prompt": "Count to one hundred:", "max_tokens": 64, "ignore_eos": True}
        for _ in range(3):
            assert http.post("/v1/completions", json=body).status_code == 200
        # TTFT and TPOT of the pod, over the last half minute.
        shown = screen.sees("ms", seconds=15)
        row = next(line for line in shown.splitlines() if "Running" in line)
        assert any(word.endswith(("ms", "s")) and word[0].isdigit() for word in row.split()[2:-1]), shown
        kubectl("-n", service.namespace, "delete", "pod", "--all", "--wait=false")
        screen.sees("Terminating")
        screen.press("Escape")
        screen.sees("Enter Open")
        screen.press("q")
        screen.sees("exit code 0")
    service.wait("the service to be Ready again", is_ready, seconds=180)


def test_why_explains_a_service_that_waits_for_a_gpu(namespace, environment):
    large = apply("large", namespace, accelerator={"count": 1})
    try:
        large.wait(
            "the scheduler to find no node",
            lambda status: condition(status, "Scheduled").get("reason") == "Unschedulable",
            seconds=60,
        )
        report = json.loads(_run(environment, "why", "large", "-n", namespace, "--json").stdout)
        assert report["state"] == "Failing"
        assert any("waits for a node" in one and "nvidia.com/gpu" in one for one in report["waitsFor"]), report
    finally:
        kubectl("-n", namespace, "delete", "ifsvc", "large")


def test_doctor_finds_nothing_that_fails_in_the_cluster_as_installed(namespace, service, environment):
    with terminal("inflight-e2e-doctor", [PROGRAM, "doctor", "-n", namespace], environment, 140, 50) as screen:
        shown = screen.sees("exit code")
    assert "exit code 0" in shown, shown
    for check in ("cluster", "operator", "leader", "your reading rights", "operator's rights", "images", "storage"):
        assert f"ok    {check}: " in shown, shown
    assert OPERATOR_NAMESPACE in shown


def _run(environment, *arguments):
    command = [PROGRAM, *arguments]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=60, check=True)
