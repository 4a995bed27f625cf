"""The services of a wake storm, and when they sleep."""

import json

import pytest

from e2e.storm.__main__ import manifest, not_there, parser
from e2e.storm.watch import ordered_services, resident_bytes
from inflight_operator.api import InferenceService
from inflight_operator.quantities import parse_quantity

OPTIONS = parser().parse_args([])


@pytest.mark.parametrize("asleep", [True, False])
def test_the_operator_reads_the_services_and_they_have_a_bound_on_memory(asleep):
    body = manifest(3, OPTIONS, asleep=asleep)
    body["metadata"]["uid"] = "u"
    service, unread = InferenceService.read(body)
    assert unread == ()
    assert service.spec.gateway.hold.max_wait == "300s"
    assert parse_quantity(body["spec"]["template"]["resources"]["requests"]["memory"]) == 2**30
    assert (service.spec.scaling.mode, service.spec.replicas) == (("Operator", None) if asleep else ("External", 0))


def seen(replicas=0, generation=1, ready=("True", "Idle")):
    condition = {"type": "Ready", "status": ready[0], "reason": ready[1], "message": "why"}
    status = {"observedGeneration": generation, "replicas": replicas, "conditions": [condition]}
    return {"metadata": {"name": "sleeper-00", "generation": 1}, "status": status}


def test_services_sleep_when_all_are_at_zero_and_ready_to_wake():
    assert not_there([seen()], 1, asleep=True) is None
    assert "1 of 2" in not_there([seen()], 2, asleep=True)
    assert "not at zero" in not_there([seen(replicas=1)], 1, asleep=True)
    assert "not at zero" in not_there([seen(generation=0)], 1, asleep=True)
    assert "not ready to wake: why" in not_there([seen(ready=("False", "NoGatewayPods"))], 1, asleep=True)
    assert not_there([seen(ready=("False", "ScaledToZero"))], 1, asleep=False) is None
    assert not_there([{"metadata": {"name": "sleeper-00", "generation": 1}}], 1, asleep=True) is not None


def test_ordered_services_are_those_with_a_replica():
    items = [{"metadata": {"name": name}, "spec": {"replicas": count}} for name, count in (("a", 0), ("b", 1))]
    assert ordered_services(json.dumps({"items": items})) == ["b"]


def test_the_memory_of_a_process_is_read_and_that_of_a_gone_one_is_none():
    import os

    assert resident_bytes(os.getpid()) > 2**20
    assert resident_bytes(2**22 + 1) == 0
