"""Tools that wait for resources of any kind, such as Flux, see a service as it is: by kstatus itself, built from its Go
module."""

import json
import subprocess
from dataclasses import asdict

import pytest

from inflight_operator.decide.status.conditions import DeploymentView, summarized, unreadable
from tests.operator.decide.test_conditions import READY, found
from tools.localcluster import layout
from tools.localcluster.programs import gobuild, goparts
from tools.localcluster.progress import to_stdout

pytestmark = pytest.mark.contract


@pytest.fixture(scope="module")
def seen():
    program = gobuild.ensure_part(goparts.KSTATUS, layout.current(), to_stdout()) / "kstatus"

    def run(status):
        service = {
            "apiVersion": "inflight.dev/v1alpha1",
            "kind": "InferenceService",
            "metadata": {"name": "chat", "namespace": "team", "generation": 3},
            "status": status,
        }
        answer = subprocess.run([program], input=json.dumps([service]), capture_output=True, text=True, check=True)
        return tuple(json.loads(answer.stdout)[0])

    return run


def status(findings, observed=3):
    return {"observedGeneration": observed, "conditions": [asdict(one) for one in summarized(tuple(findings))]}


@pytest.mark.parametrize(
    ("deployment", "expected"),
    [
        (DeploymentView(1, 1, 1, True, ""), "Current"),
        (DeploymentView(1, 0, 1, True, ""), "InProgress"),
        (DeploymentView(1, 1, 1, False, ""), "InProgress"),
        (DeploymentView(2, 2, 2, True, ""), "InProgress"),
        (DeploymentView(1, 0, 2, True, "timed out"), "Failed"),
        (DeploymentView(1, 0, 1, True, "", "exceeded quota"), "Failed"),
    ],
)
def test_the_state_of_a_rollout_is_seen_with_its_message(seen, deployment, expected):
    findings = found([READY], deployment=deployment)
    result, message = seen(status(findings.values()))
    assert result == expected
    assert expected == "Current" or message == findings["Progressing"].message


def test_a_service_without_ready_pods_is_in_progress(seen):
    assert seen(status(found([]).values()))[0] == "InProgress"


def test_a_spec_that_cannot_be_read_has_failed(seen):
    assert seen(status(unreadable(1, "spec.model: missing")))[0] == "Failed"


def test_a_spec_that_the_operator_has_not_seen_yet_is_in_progress(seen):
    done = found([READY], deployment=DeploymentView(1, 1, 1, True, "")).values()
    assert seen(status(done))[0] == "Current"
    assert seen(status(done, observed=2))[0] == "InProgress"
