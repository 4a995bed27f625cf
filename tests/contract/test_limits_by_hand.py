"""`kubectl inflight limits` against a real API server and the operator's real program. There are no nodes, so no engine
runs: what one would be told is in the ConfigMap from which new engines read their limits."""

import json
import subprocess
import sys

import pytest

from tests.contract.manifests import service_manifest
from tests.contract.test_operator_program import eventually, start  # noqa: F401 - `start` is a fixture

pytestmark = pytest.mark.contract

PROGRAM = [sys.executable, "-c", "from inflight_kubectl.cli import main; main()"]
MANIFEST_SPEC = {"model": {"source": "builtin://smollm2"}, "engine": {"maxNumSeqs": 64}}


@pytest.fixture
def limits(kubectl, namespace):
    def run(*flags):
        command = [*PROGRAM, "limits", "chat", "--kubeconfig", str(kubectl.kubeconfig), "-n", namespace, *flags]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    return run


@pytest.fixture
def running(kubectl, namespace, start):  # noqa: F811 - the fixture that is imported above
    kubectl.create(service_manifest(namespace, MANIFEST_SPEC))
    start()
    eventually(30, lambda: service(kubectl, namespace).get("status", {}).get("limits"))


def service(kubectl, namespace):
    return kubectl.json("get", "ifsvc", "chat", "-n", namespace)


def first_limit(kubectl, namespace):
    """Returns max_num_seqs of new engines."""
    (config,) = kubectl.json("get", "configmap", "-l", "inflight.dev/service=chat", "-n", namespace)["items"]
    return json.loads(config["data"]["limits.json"])["max_num_seqs"]


def test_limits_by_hand_hold_until_their_end_and_another_apply_does_not_end_them(kubectl, namespace, running, limits):
    done = limits("--max-num-seqs", "4", "--for", "1h", "--json")
    assert done.returncode == 0, done.stderr
    view = json.loads(done.stdout)
    assert view["inForce"]["maxNumSeqs"] == first_limit(kubectl, namespace) == 4
    assert (view["source"], view["before"]["maxNumSeqs"]) == ("Override", 64)

    kubectl.create(service_manifest(namespace, MANIFEST_SPEC))  # as a GitOps controller does every few minutes
    shown = limits().stdout
    assert f"set by hand until {view['until']}" in shown
    assert "tuning is paused until" in shown

    assert limits("--max-num-seqs", "5", "--for", "2s", "--no-wait").returncode == 0
    eventually(15, lambda: first_limit(kubectl, namespace) == 64)
    status = eventually(
        10, lambda: "override" not in (found := service(kubectl, namespace)["status"])["limits"] and found
    )
    tuning = next(one for one in status["conditions"] if one["type"] == "TuningActive")
    assert tuning["message"].endswith("and has no effect: it can be removed")
    codes = [one["code"] for one in status["decisions"]]
    assert (codes[0], codes[-1]) == ("ByHand", "OverrideEnded")


def test_limits_by_hand_are_cleared_at_once_and_wrong_ones_are_refused(kubectl, namespace, running, limits):
    refused = limits("--max-num-seqs", "65")
    assert refused.returncode == 1
    assert refused.stderr == (
        "error: the limits were refused: tuning.override.maxNumSeqs must not exceed engine.maxNumSeqs, the capacity an"
        " engine starts with; `kubectl inflight limits SERVICE --clear` removes an override, also one that has ended\n"
    )
    assert limits("--max-num-seqs", "4").returncode == 0
    assert first_limit(kubectl, namespace) == 4
    assert limits("--clear").returncode == 0
    assert first_limit(kubectl, namespace) == 64
    assert "override" not in service(kubectl, namespace)["spec"]["tuning"]
