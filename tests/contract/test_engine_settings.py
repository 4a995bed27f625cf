"""Figures of the engine and of the resource that have to fit each other. Settings are in `inflight_settings` only."""

from inflight_engine.messages import SHORT_STEP_SECONDS
from inflight_engine.server.engine.session import KILL_GRACE_SECONDS
from inflight_engine.server.engine.supervisor import CHECK_SECONDS
from inflight_operator.api.crd import crd
from inflight_operator.render.pod import engine_probes


def field(path):
    """The schema of a field as the CRD has it."""
    schema = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    for name in path.split("."):
        schema = schema["properties"][name]
    return schema


def test_the_api_process_replaces_a_hung_engine_process_before_the_kubelet_would_kill_both():
    liveness = engine_probes(600)["livenessProbe"]
    # The first 503 may come at once, the others one period apart each.
    soonest = (liveness["failureThreshold"] - 1) * liveness["periodSeconds"]
    assert soonest > KILL_GRACE_SECONDS + CHECK_SECONDS


def test_the_kubelet_kills_a_pod_within_fifteen_seconds_where_the_api_process_does_not_replace_the_engine():
    liveness = engine_probes(600)["livenessProbe"]
    refused = SHORT_STEP_SECONDS + liveness["failureThreshold"] * liveness["periodSeconds"]
    assert refused + liveness["terminationGracePeriodSeconds"] <= 15


def test_the_windows_of_scaling_have_their_defaults_in_the_resource_alone():
    from dataclasses import MISSING, fields

    from inflight_operator.decide.behavior import ScalingRules

    (window,) = (each for each in fields(ScalingRules) if each.name == "stabilization_window")
    assert window.default is MISSING
    assert field("scaling.behavior.scaleDown.stabilizationWindowSeconds")["default"] == 60
    assert field("scaling.behavior.scaleUp.stabilizationWindowSeconds")["default"] == 0
