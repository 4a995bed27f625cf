"""Conditions of a service behind the gateway."""

import pytest

from inflight_operator.decide.decision import Reason
from inflight_operator.decide.status.conditions import Finding, stuck
from inflight_operator.decide.status.gateway_conditions import GatewayFacts, with_gateway
from inflight_operator.observe.gateway_view import GatewayView

HEARD = GatewayView(pods=2, heard=2)
HOST = "gateway.system.svc.cluster.local"
IDLE = Reason("Idle", {"timeout": 600.0})
USED = Reason("LatelyUsed", {"timeout": 600.0, "seconds": 30})
SERVING = Finding("Ready", "True", "Serving", "1 of 1 replicas takes requests")
LOADING = Finding("Ready", "False", "Loading", "1 of 1 pod loads the model")
ZERO = Finding("Ready", "False", "ScaledToZero", "spec.replicas is 0")


def said(ready, **facts):
    progress = Finding("Progressing", "True", "StartingPods", "")
    found = with_gateway((ready, progress), GatewayFacts(**{"service": HOST, "view": HEARD, **facts}))
    return {one.type: one for one in found}


@pytest.mark.parametrize(
    ("facts", "status", "reason", "message"),
    [
        ({}, "True", "Routing", "2 gateway pods route requests"),
        (
            {"view": GatewayView(pods=2, heard=1, silence="gateway pod g-2 is not heard: HTTP 500")},
            "True",
            "Routing",
            "1 gateway pod routes requests; gateway pod g-2 is not heard: HTTP 500",
        ),
        ({"service": ""}, "False", "NoGateway", "install the chart with gateway.enabled=true"),
        ({"view": GatewayView()}, "False", "NoGatewayPods", f"no gateway pod is found behind {HOST}"),
        ({"view": GatewayView(pods=1, silence="g-1 does not answer")}, "False", "GatewayNotHeard", "g-1 does not"),
        ({"view": GatewayView(pods=1, silence="cannot look up")}, "False", "GatewayNotHeard", "cannot look up"),
    ],
)
def test_the_gateway_is_ready_where_a_pod_of_it_is_heard(facts, status, reason, message):
    found = said(SERVING, **facts)
    assert (found["GatewayReady"].status, found["GatewayReady"].reason) == (status, reason)
    assert message in found["GatewayReady"].message
    assert found["Ready"] == SERVING
    assert "Idle" not in found


def test_a_sleeping_service_is_ready_as_long_as_its_gateway_is():
    found = said(ZERO, why=IDLE, asleep=True)
    assert [(found[kind].status, found[kind].reason) for kind in ("Ready", "Idle", "Waking")] == [
        ("True", "Idle"),
        ("True", "Idle"),
        ("False", "Idle"),
    ]
    assert said(ZERO, why=IDLE, asleep=True, view=GatewayView())["Ready"].reason == "NoGatewayPods"


def test_a_waking_service_is_ready_unless_its_replica_has_a_problem():
    found = said(LOADING, why=Reason("NoReadyPods"), waking=True, view=GatewayView(pods=1, heard=1, held=2))
    assert (found["Ready"].status, found["Ready"].reason) == ("True", "Waking")
    assert found["Ready"].message == (
        "2 requests wait at the gateway until a replica is ready; 1 of 1 pod loads the model"
    )
    assert found["Waking"].status == "True"
    assert said(LOADING, why=Reason("NoReadyPods"), waking=True, blocked=1)["Ready"] == LOADING
    assert said(LOADING, why=Reason("NoReadyPods"))["Ready"] == LOADING


def test_a_service_in_use_is_neither_idle_nor_waking():
    found = said(SERVING, why=USED)
    assert [(found[kind].status, found[kind].reason) for kind in ("Ready", "Idle", "Waking")] == [
        ("True", "Serving"),
        ("False", "LatelyUsed"),
        ("False", "Awake"),
    ]


def test_a_waking_service_whose_replica_cannot_be_ordered_is_not_ready():
    found = with_gateway(
        (LOADING, Finding("Progressing", "True", "StartingPods", "")),
        GatewayFacts(service=HOST, view=HEARD, why=Reason("NoReadyPods"), waking=True),
    )
    after = {one.type: one for one in stuck(found, "ApplyFailed", "forbidden")}
    assert (after["Ready"].status, after["Ready"].reason) == ("False", "ApplyFailed")
