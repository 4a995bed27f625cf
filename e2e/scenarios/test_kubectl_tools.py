"""`kubectl inflight` on a running service, through the API server: a question, a load, limits by hand on the running
engine until their end, and what it says where nothing is recorded."""

import json
import subprocess
import sys

import pytest

from e2e.scenarios.conftest import apply
from tools.localcluster import kubeconfig_path
from tools.testbed.service import is_ready

pytestmark = pytest.mark.timeout(240)

PROGRAM = [sys.executable, "-c", "from inflight_kubectl.cli import main; main()"]


@pytest.fixture(scope="module")
def service(namespace):
    service = apply("tools", namespace, slo={"ttftP95": "2s", "tpotP95": "500ms"}, scaling={"maxReplicas": 1})
    service.wait("Ready", is_ready, seconds=180)
    return service


@pytest.fixture
def inflight(service):
    """Runs a command on the service; returns the finished process."""

    def run(command, *flags, stdin=""):
        where = ["--kubeconfig", str(kubeconfig_path()), "-n", service.namespace]
        return subprocess.run(
            [*PROGRAM, command, service.name, *where, *flags], input=stdin, capture_output=True, text=True, timeout=90
        )

    return run


def slots(service):
    """`max_num_seqs` that the running engine reports."""
    (pod,) = service.pods()
    return service.runtime_config(pod.name)["max_num_seqs"]


def test_a_question_is_answered(inflight):
    done = inflight("chat", "--json", "--temperature", "0", stdin="What are the colors of the rainbow?")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert "red" in answer["answer"].lower()
    assert answer["ttftSeconds"] > 0


def test_a_load_is_sent_and_reported_against_the_services_targets(inflight):
    flags = ("--duration", "5s", "--concurrency", "4", "--prompt-tokens", "32-64", "--output-tokens", "8", "--json")
    done = inflight("bench", *flags)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)["report"]
    assert report["errors"] == {}
    assert report["requests"] == report["succeeded"] >= 4
    assert report["ttft"]["p50"] <= report["ttft"]["p95"]
    assert report["outputTokensPerS"] == pytest.approx(8 * report["requestsPerS"])
    assert report["attainment"]["targets"] == {"ttft": 2.0, "tpot": 0.5, "perToken": 0.0, "own": True}


def test_limits_by_hand_are_in_force_on_the_running_engine_until_their_end(service, inflight):
    (before,) = service.pods()
    done = inflight("limits", "--max-num-seqs", "3", "--for", "10m", "--json")
    assert done.returncode == 0, done.stderr
    view = json.loads(done.stdout)
    assert (view["source"], view["inForce"]["maxNumSeqs"], slots(service)) == ("Override", 3, 3)
    assert inflight("limits", "--max-num-seqs", "3", "--for", "2s", "--no-wait").returncode == 0
    # Tuning may have changed the limits just before the command.
    limit_before = view["before"]["maxNumSeqs"]
    assert limit_before != 3
    service.wait("the end", lambda _: slots(service) == limit_before, seconds=30)
    assert [(pod.uid, pod.restarts) for pod in service.pods()] == [(before.uid, 0)]


def test_where_decisions_are_not_recorded_the_value_that_turns_it_on_is_told(inflight, tmp_path):
    done = inflight("record", "-o", str(tmp_path / "decisions.zst"))
    assert done.returncode == 1
    assert "--set recordDecisions.enabled=true" in done.stderr
