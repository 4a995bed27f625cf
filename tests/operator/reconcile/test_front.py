"""The Service of a service that is put behind the gateway, or taken from behind it, in rounds: no client is lost."""

import base64

import pytest

from inflight_base.manifest.names import pod_labels
from inflight_base.manifest.slices import GatewayAddress
from tests.operator.fakes import KEY, delete, endpoints_body
from tests.operator.reconcile.world import GATEWAY

ON = {"gateway": {"enabled": True}}
ENGINES = pod_labels("chat")


@pytest.fixture
def world(world):
    world.behind_gateway()
    return world


def service(world):
    return world.cache.child(KEY, "Service", "chat")["spec"]


def selects_engines(world):
    return service(world).get("selector") == ENGINES


def gateway_pods(world):
    live = world.cache.child(KEY, "EndpointSlice", "chat-gateway-ipv4")
    return [] if live is None else [one["addresses"][0] for one in live["endpoints"]]


def kubernetes(world):
    """Takes deleted objects away, and keeps the slices that Kubernetes makes of the ready pods for both Services."""
    for _, kind, name in world.api.of("delete"):
        delete(world.cache, kind, world.cache.child(KEY, kind, name))
    ready = [body for body in world.listed.values() if body]
    for name, selects in (("chat", selects_engines(world)), ("chat-engines", has_engines_service(world))):
        body = endpoints_body(ready if selects else [])
        body["metadata"] |= {"name": f"{name}-slice", "uid": f"uid-{name}"}
        body["metadata"]["labels"] = {**body["metadata"]["labels"], "kubernetes.io/service-name": name}
        world.cache.put("EndpointSlice", body)


def has_engines_service(world):
    return world.cache.child(KEY, "Service", "chat-engines") is not None


def endpoints(world):
    """Returns what clients of the Service can reach now."""
    return {*gateway_pods(world), *world.cache.endpoints(KEY, "chat")}


async def rounds(world, count=1, seconds=3.0):
    for _ in range(count):
        await world.round(seconds)
        kubernetes(world)
        yield endpoints(world)


async def running(world, spec=None):
    world.service(spec=spec)
    world.pod(1)
    async for _ in rounds(world, 4):
        pass


async def test_switched_on_the_gateways_pods_come_first_and_the_address_stays(world):
    await running(world)
    assert (selects_engines(world), gateway_pods(world)) == (True, [])
    world.service(spec=ON, generation=2)
    seen = [found async for found in rounds(world, 3)]
    assert seen[0] == {"10.0.0.1", "10.0.0.2", *world.cache.endpoints(KEY, "chat-engines")}
    assert seen[1:] == [{"10.0.0.1", "10.0.0.2"}] * 2
    assert service(world)["type"] == "ClusterIP"
    assert ("delete", "Service", "chat") not in world.api.calls


async def test_switched_on_without_a_ready_gateway_pod_clients_stay_at_the_engines(world):
    await running(world)
    for unknown in (None, ()):
        world.gateway.addresses = unknown
        world.service(spec=ON, generation=2)
        async for found in rounds(world, 3):
            assert found == world.cache.endpoints(KEY, "chat-engines") != set()
    world.gateway.addresses = (GatewayAddress("10.0.0.9"),)
    assert [found async for found in rounds(world, 2)][-1] == {"10.0.0.9"}


async def switched_off(world):
    """Switches the gateway off; the engines are replaced."""
    world.service(spec={}, generation=2)
    async for _ in rounds(world, 3):
        assert not selects_engines(world), "pods that ask for a signature are left"
    world.rolled_out()


async def test_switched_off_the_engines_are_replaced_first_and_the_gateway_goes_when_they_are_listed(world):
    await running(world, ON)
    assert endpoints(world) == {"10.0.0.1", "10.0.0.2"}
    await switched_off(world)
    await world.round()
    assert selects_engines(world)
    assert gateway_pods(world) == ["10.0.0.1", "10.0.0.2"]
    seen = [found async for found in rounds(world, 3)]
    assert all(seen)
    assert seen[-1] == world.cache.endpoints(KEY, "chat")
    assert gateway_pods(world) == []


async def test_switched_off_without_a_ready_engine_the_gateways_pods_stay(world):
    await running(world, ON)
    world.pod(1, ready=False)
    await switched_off(world)
    async for found in rounds(world, 20):
        assert found == {"10.0.0.1", "10.0.0.2"}


async def test_engines_from_before_take_all_requests_until_they_are_replaced(world):
    await running(world, {"gateway": {"enabled": True, "auth": {"apiKeysSecret": "keys"}}})
    await switched_off(world)
    assert base64.b64decode(known_secret(world)["data"]["tenant-key"]) == b"none"


def known_secret(world):
    children = world.reconciler._known[KEY].memory.rendered.children
    return next(child for child in children if child["kind"] == "Secret")


async def test_the_gateway_serves_a_service_that_left_until_no_request_comes(world):
    await running(world, ON)
    world.gateway.says(idle_s=0.0)
    await switched_off(world)
    async for _ in rounds(world, 30):
        assert has_engines_service(world)
    world.gateway.says(heard=1, idle_s=3600.0)
    async for _ in rounds(world, 2):
        assert has_engines_service(world), "a pod that is not heard may have requests"
    world.gateway.says(heard=2)
    async for _ in rounds(world, 1):
        assert not has_engines_service(world)
    world.api.calls.clear()
    async for _ in rounds(world, 3):
        assert not has_engines_service(world)


async def test_clients_that_never_leave_the_gateway_are_served_for_a_quarter_of_an_hour(world):
    await running(world, ON)
    world.gateway.says(in_flight=1, idle_s=0.0)
    await switched_off(world)
    served = [has_engines_service(world) async for _ in rounds(world, 32, 30.0)]
    assert served == [True] * 29 + [False] * 3


async def test_an_uninstalled_gateway_leaves_no_addresses_behind(world):
    await running(world, ON)
    world.settings, world.gateway = type(world.settings)(engine_image="engine:dev"), None
    world.restart()
    async for _ in rounds(world, 2):
        pass
    assert (selects_engines(world), gateway_pods(world)) == (True, [])
    assert not has_engines_service(world)


async def test_an_alias_of_an_earlier_release_stays_until_the_gateways_pods_are_listed(world):
    await running(world)
    alias = {"type": "ExternalName", "externalName": GATEWAY}
    world.cache.put("Service", {**world.cache.child(KEY, "Service", "chat"), "spec": alias})
    world.service(spec=ON, generation=2)
    world.gateway.addresses = None
    await world.round()
    assert service(world)["type"] == "ExternalName"
    world.gateway.addresses = (GatewayAddress("10.0.0.9"),)
    await world.round()
    assert (service(world)["type"], gateway_pods(world)) == ("ExternalName", ["10.0.0.9"])
    await world.round()
    assert (service(world)["type"], service(world).get("externalName")) == ("ClusterIP", None)
    assert not selects_engines(world)


async def test_a_change_of_the_gateways_pods_is_one_write_of_each_service_and_no_pods_is_none(world):
    await running(world, ON)
    world.gateway.addresses = (GatewayAddress("10.0.0.2"), GatewayAddress("10.0.0.3"))
    await world.round()
    assert [call[:2] for call in world.api.of("apply")] == [("apply", "EndpointSlice")]
    assert gateway_pods(world) == ["10.0.0.2", "10.0.0.3"]
    for unknown in ((), None):
        world.gateway.addresses = unknown
        await world.round()
        assert (world.api.of("apply"), world.api.of("delete")) == ([], [])
    assert gateway_pods(world) == ["10.0.0.2", "10.0.0.3"]


async def test_a_service_of_that_name_of_somebody_else_gets_no_endpoints(world):
    labels = {"inflight.dev/service": "chat"}
    metadata = {"name": "chat", "namespace": "team", "labels": labels}
    world.cache.put("Service", {"kind": "Service", "metadata": metadata, "spec": {"selector": ENGINES}})
    world.service(spec=ON)
    for _ in range(3):
        await world.round()
    assert gateway_pods(world) == []
    assert world.condition("Progressing")["reason"] == "ApplyFailed"
