"""Under load: replicas go 1 -> 2 -> 1, a running engine's limits change, and every request is answered."""

import json

import pytest

from e2e.scenarios.conftest import apply
from e2e.traffic.pod import driver_pod

pytestmark = pytest.mark.timeout(420)


def test_replicas_and_limits_follow_the_load_and_every_request_is_answered(namespace, client_image):
    service = apply(
        "busy",
        namespace,
        slo={"ttftP95": "2s", "tpotP95": "100ms"},
        scaling={"maxReplicas": 2, "behavior": {"scaleDown": {"stabilizationWindowSeconds": 10}}},
    )
    service.wait("Ready", lambda view: view.ready, seconds=180)
    (first,) = service.pods()
    before = service.runtime_config(first.name)
    limits_before = (before["max_num_seqs"], before["max_num_batched_tokens"])
    arguments = ["--clients", "48", "--requests", "100000", "--seconds", "45", "--max-tokens", "40"]
    with driver_pod(service, "load", arguments, image=client_image) as pod:
        service.wait("a second replica", lambda view: view.ready_replicas == 2, seconds=90)
        closing = json.loads("".join(pod.follow()).strip().splitlines()[-1])
    # The very process that ran before the load: same pod, no restart, other limits.
    assert [(pod.uid, pod.restarts) for pod in service.pods() if pod.name == first.name] == [(first.uid, 0)]
    tuned = service.runtime_config(first.name)
    assert (tuned["max_num_seqs"], tuned["max_num_batched_tokens"]) != limits_before
    service.wait("one replica again", lambda view: view.replicas == view.ready_replicas == 1, seconds=120)

    assert closing["lost"] == {}
    assert closing["answered"] == closing["sent"] > 0
    decisions = service.view().decisions
    assert {decision["change"] for decision in decisions} >= {"replicas 1 -> 2", "replicas 2 -> 1"}
    assert any(decision["kind"] == "Tuning" for decision in decisions)
    assert all(decision["reason"] for decision in decisions)
    limits = service.view().limits
    assert limits != limits_before
    for left in service.pods():
        config = service.runtime_config(left.name)
        assert (config["max_num_seqs"], config["max_num_batched_tokens"]) == limits
        assert left.restarts == 0
