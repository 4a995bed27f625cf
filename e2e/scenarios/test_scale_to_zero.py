"""A service at zero replicas: requests wake it and are all answered; beyond the bounds they are refused with
Retry-After. One whose replica sleeps answers at once, and goes to zero later."""

import json
import sys

import pytest

from e2e.scenarios.conftest import apply
from inflight_base.manifest.pods import condition
from tools.testbed.load_pod import driver_pod

pytestmark = pytest.mark.timeout(420)

AT_ONCE = 50


def sleeper(namespace, scaling=None, **hold):
    return apply(
        "sleeper",
        namespace,
        engine={"quantization": "int8", "maxNumSeqs": 64},
        scaling={"minReplicas": 0, "maxReplicas": 1, "idleTimeout": "10s", **(scaling or {})},
        tuning={"mode": "Off"},
        gateway={"enabled": True, "hold": {"maxWait": "180s", **hold}},
    )


def wait_asleep(service):
    service.wait("no replica", lambda status: not status.get("replicas") and not service.pods(), seconds=240)


def ask_at_once(service, name, requests, image):
    """The driver's closing line for so many requests, each from a client of its own."""
    arguments = [f"--clients={requests}", f"--requests={requests}", "--max-tokens=8", "--prompt-words=20"]
    arguments += ["--new-connections", "--patience=200"]
    with driver_pod(service, name, arguments, image=image) as pod:
        return json.loads("".join(pod.follow()).strip().splitlines()[-1])


def test_fifty_requests_at_once_wake_the_service_and_are_all_answered(namespace, client_image):
    service = sleeper(namespace)
    wait_asleep(service)
    closing = ask_at_once(service, "wake", AT_ONCE, client_image)
    median, p95 = closing["ttft_p50"], closing["ttft_p95"]
    print(
        f"from zero: {closing['answered']} of {closing['sent']} answered, first token of streams after {median} s "
        f"(median) and {p95} s (p95), longest answer {closing['longest_wait']} s",
        file=sys.stderr,
    )
    assert closing["lost"] == {}
    assert closing["answered"] == closing["sent"] == AT_ONCE
    assert closing["retries"] == 0
    assert service.status()["replicas"] == 1
    wait_asleep(service)


def test_requests_beyond_the_bounds_are_refused_with_retry_after(namespace, client_image):
    service = sleeper(namespace, maxRequests=5)
    wait_asleep(service)
    closing = ask_at_once(service, "bounds", 20, client_image)
    assert closing["lost"] == {}
    assert closing["answered"] == 20
    assert closing["retries"] > 0


def reason(status):
    return condition(status, "Ready").get("reason")


def test_a_replica_sleeps_answers_at_once_and_goes_to_zero_later(namespace, client_image):
    service = sleeper(namespace, scaling={"idleTimeout": "120s", "sleep": {"after": "10s"}})
    ask_at_once(service, "before", 1, client_image)
    status = service.wait("Asleep", lambda status: reason(status) == "Asleep", seconds=240)
    assert status["readyReplicas"] == status["observed"]["asleep"] == 1
    (before,) = service.pods()
    assert service.runtime_config(before.name)["state"] == "asleep"
    closing = ask_at_once(service, "asleep", 5, client_image)
    print(f"asleep: first tokens of streams after {closing['ttft_p50']} s (median)", file=sys.stderr)
    assert (closing["answered"], closing["lost"], closing["retries"]) == (5, {}, 0)
    (after,) = service.pods()
    assert after.name == before.name
    service.wait("Asleep again", lambda status: reason(status) == "Asleep", seconds=60)
    wait_asleep(service)
    assert reason(service.wait("Idle", lambda status: reason(status) == "Idle", seconds=60)) == "Idle"
