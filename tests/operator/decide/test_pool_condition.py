"""The condition InferencePool."""

import pytest

from inflight_operator.decide.status.gateway_conditions import pool_condition
from inflight_operator.observe.pool_view import PoolParent, pool_parents

WORKS = {"gateway": True, "picker": True, "api": True, "parents": ()}
TAKES = PoolParent("Gateway infra/edge")


@pytest.mark.parametrize(
    ("facts", "status", "reason", "message"),
    [
        ({}, "True", "PoolNotReferenced", "an HTTPRoute must have it as a backend"),
        ({"parents": (TAKES,)}, "True", "PoolInUse", "used by Gateway infra/edge"),
        (
            {"parents": (TAKES, PoolParent("Gateway infra/two", "InvalidExtensionRef: no Service"))},
            "False",
            "PoolRefused",
            "Gateway infra/two does not use the InferencePool: InvalidExtensionRef: no Service",
        ),
        ({"api": False}, "False", "NoInferencePoolApi", "install the CRDs"),
        ({"picker": False, "api": False}, "False", "NoEndpointPicker", "gateway.extProcPort"),
        ({"gateway": False, "picker": False}, "False", "NoGateway", "gateway.enabled=true"),
    ],
)
def test_the_condition_names_what_is_missing_or_in_front(facts, status, reason, message):
    found = pool_condition(**{**WORKS, **facts})
    assert (found.type, found.status, found.reason) == ("InferencePool", status, reason)
    assert message in found.message


def test_parents_are_read_from_the_status_of_the_pool():
    accepted = {"type": "Accepted", "status": "True", "reason": "Accepted", "message": ""}
    refs = {"type": "ResolvedRefs", "status": "False", "reason": "InvalidExtensionRef", "message": "no Service"}
    parents = [
        {"parentRef": {"name": "edge"}, "conditions": [accepted]},
        {"parentRef": {"kind": "Gateway", "namespace": "infra", "name": "two"}, "conditions": [accepted, refs]},
        {"parentRef": {"kind": "Mesh", "name": "m"}},
    ]
    pool = {"metadata": {"namespace": "team", "name": "chat"}, "status": {"parents": parents}}
    assert pool_parents(pool) == (
        PoolParent("Gateway team/edge"),
        PoolParent("Gateway infra/two", "InvalidExtensionRef: no Service"),
        PoolParent("Mesh team/m"),
    )


@pytest.mark.parametrize("type_", ["Exported", "example.com/Ours"])
def test_a_false_condition_that_does_not_say_whether_the_pool_is_used_is_no_complaint(type_):
    not_exported = {"type": type_, "status": "False", "reason": "NotRequested", "message": ""}
    parents = [{"parentRef": {"name": "edge"}, "conditions": [not_exported]}]
    pool = {"metadata": {"namespace": "team", "name": "chat"}, "status": {"parents": parents}}
    assert pool_parents(pool) == (PoolParent("Gateway team/edge"),)


@pytest.mark.parametrize("type_", ["Accepted", "ResolvedRefs"])
def test_a_pool_that_is_not_accepted_or_whose_picker_is_not_found_is_a_complaint(type_):
    refused = {"type": type_, "status": "False", "reason": "No", "message": "why"}
    pool = {"metadata": {"namespace": "team"}, "status": {"parents": [{"conditions": [refused]}]}}
    assert [one.complaint for one in pool_parents(pool)] == ["No: why"]


@pytest.mark.parametrize(
    "pool", [None, {"metadata": {}}, {"metadata": {}, "status": None}, {"metadata": {}, "status": {}}]
)
def test_a_pool_without_a_status_has_no_parents(pool):
    assert pool_parents(pool) == ()
