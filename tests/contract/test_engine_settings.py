"""Figures of the engine and of the resource that have to fit each other. Settings are in `inflight_settings` only."""

import pytest
from annotated_types import Ge, Le

from inflight_base.manifest.units import parse_duration
from inflight_engine.messages import SHORT_STEP_SECONDS
from inflight_engine.server.engine.session import KILL_GRACE_SECONDS
from inflight_engine.server.engine.supervisor import CHECK_SECONDS
from inflight_operator.api.crd import crd
from inflight_operator.api.engine.fields import KVCache, Model, StartOptions
from inflight_operator.api.pods.scheduling import BOUNDS, ClassSLO, Scheduling, ServiceClass
from inflight_operator.api.setting import settings_in
from inflight_operator.render.engine_flags import seconds
from inflight_operator.render.engines.inflight import engine_probes
from inflight_settings.flags import parser_of
from inflight_settings.scheduling import SchedulingSettings
from inflight_settings.server import ServerSettings
from inflight_settings.setting import settings_of

SETTINGS = {
    f"{part.__name__}.{name}": (part.model_fields[name], setting)
    for part in (Model, StartOptions, KVCache, Scheduling, ServiceClass, ClassSLO)
    for name, setting in settings_in(part)
}


def field(path):
    """The schema of a field as the CRD has it."""
    schema = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    for name in path.split("."):
        schema = schema["properties"][name]
    return schema


@pytest.mark.parametrize("name", SETTINGS)
def test_the_engine_takes_the_least_and_the_most_that_the_api_server_takes(name):
    declared, setting = SETTINGS[name]
    bounds = [each.ge if isinstance(each, Ge) else each.le for each in declared.metadata if isinstance(each, Ge | Le)]
    texts = [str(setting.kind(each)) for each in bounds]
    for text in map(seconds, BOUNDS) if setting.unit == "seconds" else texts:
        assert parser_of(setting)(text) == float(text)


def test_fields_beside_the_engines_settings_have_their_defaults():
    per_1k_tokens = settings_of(SchedulingSettings)["ttft_per_1k_tokens"]
    assert parse_duration(field("slo.ttftPerThousandTokens")["default"]) == per_1k_tokens.default
    assert (
        parse_duration(field("rollout.drainTimeout")["default"]) == settings_of(ServerSettings)["drain_timeout"].default
    )


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

    from inflight_operator.decide.replicas.behavior import ScalingRules

    (window,) = (each for each in fields(ScalingRules) if each.name == "stabilization_window")
    assert window.default is MISSING
    assert field("scaling.behavior.scaleDown.stabilizationWindowSeconds")["default"] == 60
    assert field("scaling.behavior.scaleUp.stabilizationWindowSeconds")["default"] == 0
