"""Under load: replicas go 1 -> 2 -> 1, a running engine's limits change, and every request is answered."""

import json

import pytest

from e2e.scenarios.conftest import apply
from tools.testbed.load_pod import driver_pod
from tools.testbed.service import is_ready

pytestmark = pytest.mark.timeout(420)


def limits_of(service, pod):
    """The limits that the pod reports."""
    config = service.runtime_config(pod.name)
    return config["max_num_seqs"], config["max_num_batched_tokens"]


def test_replicas_and_limits_follow_the_load_and_every_request_is_answered(namespace, client_image):
    # 48 clients and 8 places: one replica is too few on a CPU of any speed.
    service = apply(
        "busy",
        namespace,
        engine={"maxNumSeqs": 8},
        slo={"ttftP95": "2s", "tpotP95": "100ms"},
        scaling={"maxReplicas": 2, "behavior": {"scaleDown": {"stabilizationWindowSeconds": 10}}},
    )
    service.wait("Ready", is_ready, seconds=180)
    (first,) = service.pods()
    before = service.runtime_config(first.name)
    limits_before = limits_of(service, first)
    arguments = ["--clients", "48", "--requests", "100000", "--seconds", "45", "--max-tokens", "40"]
    with driver_pod(service, "load", arguments, image=client_image) as pod:
        service.wait("a second replica", lambda status: status.get("readyReplicas") == 2, seconds=90)
        service.wait("other limits in the first pod", lambda _: limits_of(service, first) != limits_before, seconds=60)
        closing = json.loads("".join(pod.follow()).strip().splitlines()[-1])
    # The very process that ran before the load: same pod, no restart.
    assert [(pod.uid, pod.restarts) for pod in service.pods() if pod.name == first.name] == [(first.uid, 0)]
    service.wait(
        "one replica again",
        lambda status: status.get("replicas") == status.get("readyReplicas") == len(service.pods()) == 1,
        seconds=120,
    )

    assert closing["lost"] == {}
    assert closing["answered"] == closing["sent"] > 0
    decisions = service.status()["decisions"]
    assert {decision["change"] for decision in decisions} >= {"replicas 1 -> 2", "replicas 2 -> 1"}
    assert any(decision["kind"] == "Tuning" for decision in decisions)
    assert all(decision["reason"] for decision in decisions)
    assert all("requests/s" in one["reason"] for one in decisions if one["change"] == "replicas 2 -> 1")
    limits = service.status()["limits"]
    for left in service.pods():
        assert limits_of(service, left) == (limits["maxNumSeqs"], limits["maxNumBatchedTokens"])
        assert service.runtime_config(left.name)["revision"] > before["revision"]
        assert left.restarts == 0
