"""The health script for Argo CD, in the version of Lua that Argo CD has, says of a service what kstatus says."""

from dataclasses import asdict
from pathlib import Path

import pytest
from lupa.lua51 import LuaRuntime

from inflight_operator.decide.status.conditions import Finding, summarized, unreadable

SCRIPT = Path(__file__).parents[2] / "deploy" / "argocd" / "inflight.dev" / "InferenceService" / "health.lua"

READY = Finding("Ready", "True", "Serving", "2 of 2 replicas take requests")
LATE = Finding("Ready", "False", "Starting", "the first pod has not been created yet")
HALTED = Finding("Ready", "False", "ScaledToZero", "spec.replicas is 0")
COMPLETE = Finding("Progressing", "False", "Complete", "all pods are of the newest template")
ROLLING = Finding("Progressing", "True", "RollingOut", "1 of 2 pods is of the newest template")
STUCK = Finding("Progressing", "False", "ProgressDeadlineExceeded", "no progress for 31m")


def health(service):
    lua = LuaRuntime()
    lua.globals().obj = lua.table_from(service, recursive=True)
    found = lua.execute(SCRIPT.read_text())
    return found.status, found.message


def service(findings, observed=3):
    conditions = [asdict(one) for one in summarized(tuple(findings))]
    return {"metadata": {"generation": 3}, "status": {"observedGeneration": observed, "conditions": conditions}}


@pytest.mark.parametrize(
    ("findings", "status", "said"),
    [
        ((READY, COMPLETE), "Healthy", READY),
        ((READY, ROLLING), "Progressing", ROLLING),
        ((LATE, ROLLING), "Progressing", ROLLING),
        ((LATE, COMPLETE), "Progressing", LATE),
        ((READY, STUCK), "Degraded", STUCK),
        ((HALTED, COMPLETE), "Suspended", HALTED),
    ],
)
def test_health_follows_the_conditions_and_says_their_message(findings, status, said):
    assert health(service(findings)) == (status, said.message)


def test_a_spec_that_cannot_be_read_is_degraded():
    assert health(service(unreadable(1, "spec.model: missing")))[0] == "Degraded"


@pytest.mark.parametrize(
    "seen",
    [{"metadata": {"generation": 3}}, {"metadata": {"generation": 3}, "status": {}}, service((READY, COMPLETE), 2)],
)
def test_a_service_whose_spec_no_operator_has_seen_is_in_progress(seen):
    assert health(seen)[0] == "Progressing"
