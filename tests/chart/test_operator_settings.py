"""Every setting that a value of the chart and a flag of the operator state has one default and one range."""

import argparse
import json
import re
from pathlib import Path

import pytest
import yaml

from inflight_base.manifest.units import Share, parse_share
from inflight_operator import cli

CHART = Path(__file__).parents[2] / "helm" / "inflight"

VALUES = {
    "interval": "interval",
    "metrics.port": "metrics-port",
    "metrics.authentication.enabled": "metrics-authentication",
    "leaderElection.enabled": "leader-elect",
    "engine.upgrade.mode": "engine-upgrade",
    "engine.upgrade.servicesAtOnce": "engine-upgrades-at-once",
    "engine.upgrade.stuckServices": "engine-upgrade-stuck-services",
    "operator.className": "class-name",
    "engine.adminPeers": "admin-peers",
    "engine.clientPeers": "client-peers",
    "engine.modelCache.claimName": "model-cache-claim",
    "engine.modelCache.hostPath": "model-cache-host-path",
    "engine.modelCache.size": "model-cache-size",
    "engine.modelCache.namespaces": "model-cache-namespace",
    "engine.tracing.endpoint": "engine-traces-endpoint",
    "engine.tracing.samplingRatio": "engine-traces-sampling-ratio",
    "engine.logs.format": "engine-log-format",
    "engine.logs.accessLog": "engine-access-log",
    "logs.format": "log-format",
    "logs.level": "log-level",
    "engine.image.pullPolicy": "engine-image-pull-policy",
    "watchNamespaces": "namespace",
    "recordDecisions.services": "record-service",
    "recordDecisions.size": "record-size",
}
"""Values of the chart, and the operator's flags."""

NO_VALUE = {
    "engine-image",
    "plugin-image",
    "vllm-image",
    "gateway-service",
    "gateway-endpoint-picker",
    "kubeconfig",
    "lease-name",
    "key-secret",
    "record-decisions",
    "help",
}
"""Flags that the chart makes of names, and such as it has no use for."""


def operator_flags():
    (commands,) = (a for a in cli.build_parser()._actions if isinstance(a, argparse._SubParsersAction))
    return {
        option.removeprefix("--"): action
        for action in commands.choices["run"]._actions
        for option in action.option_strings
        if option.startswith("--")
    }


def chart_value(path):
    value = yaml.safe_load((CHART / "values.yaml").read_text())
    for name in path.split("."):
        value = value[name]
    return value


def chart_schema(path):
    schema = json.loads((CHART / "values.schema.json").read_text())
    for name in path.split("."):
        schema = schema["properties"][name]
    return schema


def test_every_flag_of_the_operator_has_its_value_in_the_chart():
    flags = {flag for flag in operator_flags() if not flag.startswith("no-")}
    assert flags == {*VALUES.values(), *NO_VALUE}


@pytest.mark.parametrize("path", VALUES)
def test_a_value_of_the_chart_and_the_operators_flag_have_one_default(path):
    default, value = operator_flags()[VALUES[path]].default, chart_value(path)
    if isinstance(default, Share):
        value = parse_share(value)
    assert (list(default) if isinstance(default, tuple) else default) == value


@pytest.mark.parametrize(
    "path",
    [
        "interval",
        "metrics.port",
        "engine.tracing.samplingRatio",
        "recordDecisions.size",
    ],
)
def test_the_operator_takes_the_least_and_the_most_that_the_chart_takes(path):
    flag, schema = VALUES[path], chart_schema(path)
    for bound in (schema["minimum"], schema["maximum"]):
        given = cli.build_parser().parse_args(["run", "--engine-image=x", f"--{flag}={bound}"])
        assert getattr(given, flag.replace("-", "_")) == bound


@pytest.mark.parametrize("path", ["engine.upgrade.servicesAtOnce", "engine.upgrade.stuckServices"])
def test_the_operator_takes_the_numbers_and_percentages_that_the_chart_takes(path):
    flag, (number, percentage) = VALUES[path], chart_schema(path)["anyOf"]
    for given in (number["minimum"], number["maximum"], *(f"{share}%" for share in range(-1, 102))):
        accepted = isinstance(given, int) or re.match(percentage["pattern"], given)
        try:
            taken = cli.build_parser().parse_args(["run", "--engine-image=x", f"--{flag}={given}"])
        except SystemExit:
            assert not accepted, given
        else:
            assert accepted, given
            assert getattr(taken, flag.replace("-", "_")) == parse_share(given)


@pytest.mark.parametrize("path", ["engine.upgrade.mode", "engine.logs.format", "logs.format", "logs.level"])
def test_the_operator_takes_every_word_that_the_chart_takes(path):
    assert list(operator_flags()[VALUES[path]].choices) == chart_schema(path)["enum"]


def test_the_operator_takes_every_pull_policy_that_the_chart_takes():
    policies = chart_schema("engine.image.pullPolicy")["enum"]
    assert ["", *operator_flags()["engine-image-pull-policy"].choices] == policies
