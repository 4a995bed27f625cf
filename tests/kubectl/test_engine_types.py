"""Sentences about limits by engine type: those of running engines are named only where they can change."""

import pytest

from inflight_kubectl.engines.overrides import limits_view
from inflight_kubectl.why.prospects import prospects
from tests.kubectl.objects import NOW, condition, service

LIVE = "pods run with them"
KINDS = {
    "inflight": ({}, "Measuring", True),
    "vllm": ({"type": "vllm"}, "Measuring", True),
    "vllm without the plugin": ({"type": "vllm", "plugin": False}, "NoPlugin", False),
    "vllm without the operator's image": ({"type": "vllm"}, "NoPluginImage", False),
}


def of(engine, reason, **status):
    found = service(conditions=[condition("TuningActive", "False", reason, "why")], **status)
    found.raw["spec"]["engine"] = engine
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_limits_that_cannot_change_are_those_that_pods_start_with(kind):
    engine, reason, live = KINDS[kind]
    found = of(engine, reason)
    (limits,) = (one for one in prospects(found, NOW) if one.startswith("limits: "))
    assert (LIVE in limits, "which pods start with" in limits) == (live, not live)
    assert limits_view(found).live == live


def test_nothing_is_said_about_limits_of_a_custom_server():
    found = of({"type": "custom", "image": "x"}, "NoLiveLimits", limits=None)
    assert not [one for one in prospects(found, NOW) if one.startswith("limits: ")]
    assert "tuning: why" in prospects(found, NOW)
    assert not limits_view(found).live
