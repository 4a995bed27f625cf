"""Rendering is stable: nothing the operator decides or measures, and no upgrade of the operator, restarts a pod."""

import hashlib
import json
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_operator.render.deployment import template_inputs
from inflight_operator.render.plan import ChildPlan
from inflight_operator.render.service_children import render
from inflight_settings.limits import Limits, LimitsInForce
from tests.operator.render.services import CPU, PLAN, SETTINGS, make, pod


def digest(manifest):
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def template_of(children):
    (deployment,) = (child for child in children if child["kind"] == "Deployment")
    return deployment["spec"]["template"]


limits = st.builds(
    LimitsInForce, st.builds(Limits, st.integers(1, 10**5), st.integers(1, 10**6)), st.integers(0, 10**9)
)
plans = st.builds(ChildPlan, st.integers(0, 100), limits, st.text(min_size=1))


@given(plan=plans)
def test_the_same_input_gives_the_same_bytes_and_no_plan_changes_the_pod_template(plan):
    service = make(template={"labels": {"b": "1", "a": "2"}, "env": [{"name": "X", "value": "y"}]}, **CPU)
    assert json.dumps(render(service, plan, SETTINGS)) == json.dumps(render(service, plan, SETTINGS))
    assert digest(template_of(render(service, plan, SETTINGS))) == digest(template_of(render(service, PLAN, SETTINGS)))


@pytest.mark.parametrize(
    "change",
    [
        {"slo": {"tpotP95": "2s"}, "engine": {"scheduling": {"policy": "fcfs"}}},
        {"scaling": {"maxReplicas": 2}},
        {"tuning": {"mode": "Off"}},
        {"rollout": {"strategy": "ReleaseFirst"}},
        {"rollout": {"maxSurge": "25%", "maxUnavailable": 1, "releaseAfter": "5m"}},
        {"replicas": 3},
        {"className": "other"},
        {"networkPolicy": {"from": []}},
    ],
)
def test_what_the_operator_alone_acts_on_does_not_restart_pods(change):
    assert pod(make(**CPU, **change)) == pod(make(**CPU))


def test_the_target_that_engines_order_by_is_all_of_the_latency_targets_that_restarts_pods():
    def changed(before, after, policy=None):
        one, other = (make(**CPU, slo=slo, engine={"scheduling": {"policy": policy}}) for slo in (before, after))
        assert (pod(one) == pod(other)) == (template_inputs(one.spec) == template_inputs(other.spec))
        return pod(one) != pod(other)

    assert changed({"ttftP95": "1s"}, {"ttftP95": "2s"})
    assert changed(None, {"ttftP95": "500ms"})
    assert not changed({"tpotP95": "50ms"}, {"tpotP95": "20ms"})
    assert not changed({"ttftP95": "1s"}, {"ttftP95": "2s"}, policy="fcfs")
    assert changed({}, {"ttftPerThousandTokens": "60ms"})
    assert not changed({}, {"ttftPerThousandTokens": "0ms"})
    assert not changed({}, {"ttftPerThousandTokens": "60ms"}, policy="fcfs")


def test_a_change_of_the_sleep_of_engines_is_a_change_of_the_spec_and_no_upgrade():
    specs = [
        make(**CPU, scaling={"sleep": sleep} if sleep else {}) for sleep in (None, {"after": "5m"}, {"after": "1h"})
    ]
    for one, other in combinations(specs, 2):
        assert pod(one) != pod(other)
        assert template_inputs(one.spec) != template_inputs(other.spec)


def test_the_pace_of_a_rollout_is_no_part_of_the_identity_of_the_spec():
    """Else a change of it would bring a newer engine release that waits for its turn."""
    paced = make(**CPU, rollout={"maxSurge": 3, "maxUnavailable": "5%", "releaseAfter": "5m"})
    assert template_inputs(paced.spec) == template_inputs(make(**CPU).spec)


# The API server stored these in services that name neither, before a target meant an order.
def test_the_defaults_that_earlier_releases_stored_change_neither_pods_nor_the_identity_of_the_spec():
    stored = make(**CPU, slo={"ttftP95": "500ms", "tpotP95": "50ms"}, engine={"scheduling": {"policy": "fcfs"}})
    assert pod(stored) == pod(make(**CPU))
    assert template_inputs(stored.spec) == template_inputs(make(**CPU).spec)


def test_a_status_does_not_change_any_child():
    body = make(**CPU).model_dump(mode="json", by_alias=True)
    seen = type(make()).from_dict({**body, "status": {"replicas": 3, "readyReplicas": 1}})
    assert render(seen, PLAN, SETTINGS) == render(make(**CPU), PLAN, SETTINGS)


def test_a_new_engine_image_rolls_out_new_pods():
    assert pod(make(), replace(SETTINGS, engine_image="other")) != pod(make())


# A template that differs from what the last release rendered restarts every pod of every user when the operator is
# upgraded. Change a digest only when that is meant, and say so in the release notes.
DIGESTS = {
    "cpu": ({**CPU}, "72849031e326bebf3587ff4f2cb7be82f40c833fce65366529d4cb07ed483c8c"),
    "gpu": (
        {"model": {"source": "hf://Qwen/Qwen3-8B"}},
        "8fa58882452056bd30a911b3d7450a7093a2c4cfd82fb6d2e0563d195ac10084",
    ),
    "claim": (
        {"model": {"source": "pvc://models/qwen3"}},
        "c44f26396ab4c1e8e34a813fd1eb35e156005a2d0825e16819102717175c713b",
    ),
    "engine": (
        {
            "model": {"source": "hf://Qwen/Qwen3-8B", "revision": "v1", "servedName": "qwen"},
            "engine": {
                "dtype": "bfloat16",
                "maxModelLen": 4096,
                "maxNumSeqs": 64,
                "maxNumBatchedTokens": 2048,
                "kvCache": {"memory": "1.5Gi"},
                "maxQueuedRequests": 10,
                "queueTimeout": "500ms",
                "requestTimeout": "1m30s",
                "extraArgs": ["--block-size=32"],
            },
            "rollout": {"drainTimeout": "30s"},
        },
        "0a094234680c8814a58264d436461afe0e7d001603a5665b77451dc1a669722b",
    ),
}


@pytest.mark.parametrize("case", DIGESTS)
def test_the_pod_template_is_that_of_the_last_release(case):
    spec, known = DIGESTS[case]
    assert digest(pod(make(**spec))) == known
