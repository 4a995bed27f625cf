"""A service with an InferencePool, in rounds: as the API, the gateway's pods and the spec change."""

from dataclasses import replace

import pytest

from inflight_base.kube.errors import KubeApiError
from inflight_base.manifest.slices import GatewayAddress
from inflight_operator.render.inference_pool import INFERENCE_POOL_API
from tests.operator.fakes import KEY, delete

POOL = {"gateway": {"enabled": True, "inferencePool": {"enabled": True}}}
CHILDREN = {("InferencePool", "chat"), ("Service", "chat-picker"), ("EndpointSlice", "chat-picker-ipv4")}


@pytest.fixture
def world(world):
    world.behind_gateway()
    with_api(world)
    return world


def with_api(world, *apis):
    apis = apis or (INFERENCE_POOL_API,)
    world.settings = replace(world.settings, endpoint_picker=True, available_apis=frozenset(apis))


def of_the_pool(world):
    live = {(one["kind"], one["metadata"]["name"]) for one in world.cache.children(KEY)}
    return live & CHILDREN


def endpoints(world):
    slice_ = world.cache.child(KEY, "EndpointSlice", "chat-picker-ipv4")
    return [one["addresses"][0] for one in slice_["endpoints"]]


async def test_turned_on_the_pool_is_made_once_and_turned_off_it_is_deleted(world):
    world.service(spec=POOL)
    await world.round()
    assert of_the_pool(world) == CHILDREN
    assert world.condition("InferencePool")["reason"] == "PoolNotReferenced"
    await world.round()
    assert world.api.of("apply") == []
    world.service(spec={"gateway": {"enabled": True}}, generation=2)
    await world.round()
    assert {call[1:] for call in world.api.of("delete")} == CHILDREN
    assert "InferencePool" not in {one["type"] for one in world.status["conditions"]}


async def test_the_picker_follows_the_gateways_pods_and_keeps_them_while_they_are_unknown(world):
    world.service(spec=POOL)
    await world.round()
    assert endpoints(world) == ["10.0.0.1", "10.0.0.2"]
    world.gateway.addresses = (GatewayAddress("10.0.0.3"),)
    await world.round()
    assert endpoints(world) == ["10.0.0.3"]
    world.restart()
    world.gateway.addresses = None
    await world.round()
    assert endpoints(world) == ["10.0.0.3"]


async def test_ready_pods_of_an_earlier_type_on_another_port_are_named_until_they_are_replaced(world):
    def custom(port):
        return {**POOL, "engine": {"type": "custom", "image": "server:1", "custom": {"port": port}}}

    world.service(spec=custom(8080))
    world.pod(1)
    world.pod(2)
    await world.round()
    assert "another port" not in world.condition("InferencePool")["message"]
    world.service(spec=custom(9090), generation=2)
    world.pod(3)
    await world.round()
    found = world.condition("InferencePool")
    assert (found["status"], found["reason"]) == ("True", "PoolNotReferenced")
    assert "2 pods of an earlier engine type serve on another port than the InferencePool has" in found["message"]


@pytest.mark.parametrize("off", [{"gateway_service": ""}, {"endpoint_picker": False}])
async def test_without_the_right_to_pools_the_pool_is_left_and_its_picker_goes(world, off):
    world.service(spec=POOL)
    await world.round()
    world.settings = replace(world.settings, **off)
    world.gateway = world.gateway if world.settings.gateway_service else None
    world.restart()
    delete(
        world.cache, "InferencePool", world.cache.child(KEY, "InferencePool", "chat")
    )  # the operator does not list them now
    await world.round()
    deleted = {call[1:] for call in world.api.of("delete")}
    assert deleted >= {("Service", "chat-picker"), ("EndpointSlice", "chat-picker-ipv4")}
    assert "InferencePool" not in {kind for kind, _ in deleted}


def foreign(kind, name):
    labels = {"inflight.dev/service": "chat"}
    return {"kind": kind, "metadata": {"name": name, "namespace": "team", "labels": labels}, "spec": {}}


@pytest.mark.parametrize(("kind", "name"), [("InferencePool", "chat"), ("Service", "chat-picker")])
async def test_a_pool_that_cannot_be_applied_is_reported_and_one_of_somebody_else_is_left_alone(world, kind, name):
    world.service(spec=POOL)
    world.cache.put(kind, foreign(kind, name))
    assert not await world.round()
    found = world.condition("InferencePool")
    assert (found["status"], found["reason"]) == ("False", "ApplyFailed")
    assert f"{kind} {name} exists in namespace team and does not belong" in found["message"]
    assert world.cache.child(KEY, kind, name)["spec"] == {}


async def test_endpoints_of_the_picker_that_cannot_be_applied_are_reported(world):
    world.service(spec=POOL)
    world.api.refuse["EndpointSlice"] = KubeApiError("PATCH", 403, "endpointslices is forbidden")
    assert not await world.round()
    found = world.condition("InferencePool")
    assert (found["status"], found["reason"]) == ("False", "ApplyFailed")
    assert "endpointslices is forbidden" in found["message"]


async def test_another_child_that_cannot_be_applied_is_no_fault_of_the_pool(world):
    world.service(spec=POOL)
    world.api.refuse["NetworkPolicy"] = KubeApiError("PATCH", 403, "admission says no")
    assert not await world.round()
    assert world.condition("Progressing")["reason"] == "ApplyFailed"
    assert world.condition("InferencePool")["reason"] == "PoolNotReferenced"


async def test_a_picker_service_that_cannot_be_deleted_does_not_hide_why_there_is_no_pool(world):
    world.service(spec=POOL)
    await world.round()
    with_api(world, "other/v1/Kind")
    world.api.fail["delete"] = KubeApiError("DELETE", 403, "no")
    assert not await world.round()
    assert world.condition("InferencePool")["reason"] == "NoInferencePoolApi"


async def test_a_service_of_the_pickers_name_of_somebody_else_gets_no_endpoints(world):
    world.service(spec=POOL)
    world.cache.put("Service", foreign("Service", "chat-picker"))
    await world.round()
    await world.round()
    assert world.cache.child(KEY, "EndpointSlice", "chat-picker-ipv4") is None
    assert world.cache.child(KEY, "EndpointSlice", "chat-gateway-ipv4") is not None


async def test_an_api_that_comes_later_brings_the_pool(world):
    with_api(world, "other/v1/Kind")
    world.service(spec=POOL)
    await world.round()
    assert of_the_pool(world) == set()
    assert world.condition("InferencePool")["reason"] == "NoInferencePoolApi"
    with_api(world)
    await world.round()
    assert of_the_pool(world) == CHILDREN


async def test_endpoints_of_the_picker_are_no_endpoints_of_the_service(world):
    world.service(spec=POOL)
    await world.round()
    assert world.cache.endpoints(KEY) == frozenset()
    assert world.condition("Ready")["status"] == "False"
