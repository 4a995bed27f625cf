"""Under load every query of every panel of the chart's dashboards of Inflight's engines returns data, from a real
Prometheus."""

import time
from contextlib import ExitStack

import pytest

from e2e.scenarios.conftest import apply
from tools.prometheus.answers import Window, ask, load
from tools.prometheus.monitors import watching
from tools.testbed.load_pod import driver_pod
from tools.testbed.service import is_ready

# A small KV cache with a disk behind it, and a short queue: requests are preempted, swapped and rejected under load.
BUSY = {
    "model": {"source": "builtin://smollm2"},
    "accelerator": {"count": 0},
    "engine": {
        "quantization": "int8",
        "maxModelLen": 1024,
        "kvCache": {"memory": "40Mi", "swap": "64Mi", "disk": {"size": "64Mi"}},
        "maxQueuedRequests": 24,
    },
    "slo": {"ttftP95": "1s", "tpotP95": "100ms"},
    "scaling": {"maxReplicas": 2, "behavior": {"scaleDown": {"stabilizationWindowSeconds": 60}}},
    "cost": {"pricePerReplicaHour": "0.80", "currency": "USD"},
}
STEADY = {
    "model": {"source": "builtin://smollm2"},
    "accelerator": {"count": 0},
    "engine": {"quantization": "int8", "maxNumSeqs": 32, "kvCache": {"swap": "64Mi"}},
    "disaggregation": {"mode": "Fixed", "prefill": {"maxReplicas": 1}},
    "slo": {"ttftP95": "3s", "tpotP95": "200ms"},
    "scaling": {"maxReplicas": 1},
    "cost": {"pricePerReplicaHour": "0.80", "currency": "USD"},
}
SCRAPE_SECONDS = 1.0
LONGEST_SECONDS = 200
LIGHT = ("--clients=8", "--rate=2", "--requests=100000", "--seconds=300", "--prompt-words=30", "--max-tokens=16")
BEHIND = ("--clients=4", "--rate=0.7", "--requests=100000", "--seconds=300", "--prompt-words=30", "--max-tokens=16")
"""Load of the service behind the gateway: its panels need any traffic, and the other service needs the machine."""
HEAVY = ("--clients=40", "--requests=100000", "--seconds=20", "--prompt-words=60", "--max-tokens=48")
HEAVY_AFTER_SECONDS = 8
"""The cost of steps is fitted first. The overload that follows preempts, swaps, rejects, scales and tunes."""
SHOWN = {name: one for name, one in load().items() if "-" not in name}
"""Dashboards of services here: those of other types of engines end in the type."""


@pytest.fixture(scope="module")
def problems(namespace, client_image):
    """Queries without data for each dashboard, once all have some, or after `LONGEST_SECONDS` of load.

    The panels of the gateway and of hand-overs are those of a second service, which is behind the gateway: there,
    requests wait at the gateway and are not rejected by engines.
    """
    service = apply("seen", namespace, **BUSY)
    behind = apply("behind", namespace, **STEADY, gateway={"enabled": True})
    for one in (service, behind):
        one.wait("Ready", is_ready, seconds=180)
    with ExitStack() as running:
        prometheus = running.enter_context(watching(SCRAPE_SECONDS, [namespace]))
        running.enter_context(driver_pod(service, "light", list(LIGHT), image=client_image))
        running.enter_context(driver_pod(behind, "behind", list(BEHIND), image=client_image))
        begun = round(time.time())
        time.sleep(HEAVY_AFTER_SECONDS)
        running.enter_context(driver_pod(service, "heavy", list(HEAVY), image=client_image))
        while True:
            window = Window(begun, round(time.time()), SCRAPE_SECONDS)
            found = {name: missing(prometheus, one, window, (service, behind)) for name, one in SHOWN.items()}
            down = prometheus.targets_down()
            if time.time() > begun + LONGEST_SECONDS or not (down or any(found.values())):
                break
            time.sleep(3)
        assert not down, "a target misses one scrape under load, not all that follow"
        return found


def missing(prometheus, dashboard, window, services):
    """Queries without data: those of the gateway's panels and of hand-overs for the second service, all others for the
    first one."""
    seen, behind = (ask(prometheus, dashboard, window, wanted(one)) for one in services)
    assert seen
    chosen = [one for one in seen if not of_second(one)] + [one for one in behind if of_second(one)]
    return [one for one in chosen if one.problem]


def of_second(answer):
    names = ("inflight_gateway_", "_held_requests", "inflight_peer_", 'tier="peer"')
    return any(name in answer.query for name in names)


def wanted(service):
    return {"namespace": service.namespace, "service": service.name}


@pytest.mark.parametrize("name", sorted(SHOWN))
def test_every_query_of_every_panel_returns_data_under_load(problems, name):
    assert not problems[name], "\n".join(map(str, problems[name]))
