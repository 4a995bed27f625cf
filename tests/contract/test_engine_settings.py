"""Every setting that a field of the resource and a flag of the engine state has one default, one range and one meaning:
the two programs share no code, so they are compared here."""

import argparse

import pytest
from inflight_engine.server.settings.serve_flags import add_serve_flags
from pydantic.alias_generators import to_snake

from inflight_base.manifest.units import parse_duration, parse_quantity
from inflight_engine.messages import SHORT_STEP_SECONDS
from inflight_engine.server.engine.progress import KILL_GRACE_SECONDS
from inflight_engine.server.engine.supervisor import LOOK_SECONDS
from inflight_operator.api.crd import crd
from inflight_operator.api.engine import OWN_FLAGS
from inflight_operator.render.pod import engine_probes


def as_is(value):
    return value


# A field of the spec: the engine's flag, how the field's value reads as the flag's, and words that both descriptions
# must have, or None where the name says it all.
FIELDS = {
    "model.revision": ("revision", as_is, "branch, tag or commit"),
    "engine.dtype": ("dtype", as_is, "weights and KV cache; auto"),
    "engine.quantization": ("quantization", as_is, "on CPU|on a CPU"),
    "engine.maxModelLen": ("max-model-len", as_is, "longest prompt plus output, in tokens"),
    "engine.maxNumSeqs": ("max-num-seqs", as_is, "capacity: most requests|capacity: requests"),
    "engine.maxNumBatchedTokens": ("max-num-batched-tokens", as_is, "capacity: most tokens|capacity: tokens"),
    "engine.kvCache.memory": ("kv-cache-memory", as_is, "a share of what"),
    "engine.kvCache.memoryFraction": (
        "gpu-memory-utilization",
        as_is,
        "memory for weights, activations and KV cache together|memory, 0.05 to 1, for weights, activations and KV cache"
        " together",
    ),
    "engine.kvCache.dtype": ("kv-cache-dtype", as_is, "halves the cache"),
    "engine.kvCache.headroom": ("kv-headroom", as_is, "that new requests leave"),
    "engine.kvCache.swap": ("swap-space", lambda value: int(parse_quantity(value)), "host memory"),
    "engine.kvCache.prefixCaching": ("no-prefix-caching", as_is, "prefix cache|keep the"),
    "engine.scheduling.policy": ("scheduling-policy", as_is, "X-Inflight-Tenant"),
    "engine.scheduling.shedAfter": ("shed-after", parse_duration, "predicted to wait longer"),
    "engine.scheduling.priorityAging": ("priority-aging", parse_duration, "one step of priority"),
    "engine.scheduling.preemption": ("preemption", as_is, "host memory"),
    "engine.scheduling.preemptionVictim": ("preemption-victim", to_snake, "when the KV cache is full"),
    "engine.scheduling.classes": ("service-class", as_is, None),
    "slo.ttftPerThousandTokens": ("ttft-per-1k-tokens", parse_duration, "each 1,000 tokens of a prompt add"),
    "engine.maxQueuedRequests": ("max-queued-requests", as_is, "503"),
    "engine.queueTimeout": ("queue-timeout", parse_duration, "a request may wait"),
    "engine.requestTimeout": ("request-timeout", parse_duration, "without progress"),
    "engine.servingMetrics": ("no-serving-metrics", as_is, "/metrics"),
    "accelerator.count": ("tensor-parallel-size", as_is, None),
    "rollout.drainTimeout": ("drain-timeout", parse_duration, "may finish"),
}
NO_FIELD = {
    "host",
    "port",
    "admin-port",
    "served-model-name",
    "device",
    "drain-delay",
    "limits-file",
    "tenant-key-file",
    "ttft-target",
}
"""Flags that the operator sets without a field, or from something that has no default."""
OF_THE_CHART = {"otlp-traces-endpoint", "traces-sampling-ratio", "log-format", "enable-access-log"}
"""Flags of fields whose defaults are values of the chart: tests/chart/test_engine_observability.py."""


def field(path):
    """The schema of a field as the CRD has it."""
    schema = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    for name in path.split("."):
        schema = schema["properties"][name]
    return schema


def actions(parser):
    return {
        option.removeprefix("--"): action
        for action in parser._actions
        for option in action.option_strings
        if option.startswith("--")
    }


def engine_parser():
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    add_serve_flags(parser)
    return parser


def test_every_flag_that_the_operator_sets_is_compared():
    assert {flag for flag, *_ in FIELDS.values()} | NO_FIELD | OF_THE_CHART == set(OWN_FLAGS)


@pytest.mark.parametrize("path", FIELDS)
def test_a_field_and_the_engines_flag_have_one_default(path):
    flag, read, _ = FIELDS[path]
    default = field(path).get("default")
    assert actions(engine_parser())[flag].default == (None if default is None else read(default))


@pytest.mark.parametrize("path", [path for path in FIELDS if FIELDS[path][2]])
def test_a_field_and_the_engines_flag_mean_the_same(path):
    flag, _, words = FIELDS[path]
    texts = {"the resource": field(path)["description"], "the engine": actions(engine_parser())[flag].help}
    for where, text in texts.items():
        assert any(each.lower() in text.lower() for each in words.split("|")), (where, text)


NUMBERS = [path for path in FIELDS if "minimum" in field(path) and path != "accelerator.count"]


@pytest.mark.parametrize("path", NUMBERS)
def test_the_engine_takes_the_least_and_the_most_that_the_api_server_takes(path):
    flag, schema = FIELDS[path][0], field(path)
    for bound in (schema["minimum"], schema["maximum"]):
        number = int(bound) if schema["type"] == "integer" else bound
        parsed = engine_parser().parse_args(["builtin://smollm2", f"--{flag}={number}"])
        assert getattr(parsed, flag.replace("-", "_")) == number


@pytest.mark.parametrize("path", [path for path in FIELDS if "enum" in field(path)])
def test_the_engine_takes_every_choice_that_the_api_server_takes(path):
    flag, read, _ = FIELDS[path]
    for choice in field(path)["enum"]:
        engine_parser().parse_args(["builtin://smollm2", f"--{flag}={read(choice)}"])


def test_the_api_process_replaces_a_hung_engine_process_before_the_kubelet_would_kill_both():
    liveness = engine_probes(600)["livenessProbe"]
    # The first 503 may come at once, the others one period apart each.
    soonest = (liveness["failureThreshold"] - 1) * liveness["periodSeconds"]
    assert soonest > KILL_GRACE_SECONDS + LOOK_SECONDS


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
