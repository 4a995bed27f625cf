"""A real Envoy and the ADS server in this process: what Envoy refuses changes nothing."""

from __future__ import annotations

from dataclasses import replace

import grpc
from envoy.service.discovery.v3 import ads_pb2_grpc

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.proxy import listeners
from inflight_gateway.proxy.ads import Ads
from inflight_gateway.proxy.snapshot import ENDPOINTS, LISTENERS, ROUTES, Fixed, resources, snapshot
from inflight_gateway.settings import Sockets
from inflight_gateway.types import Endpoint, ServiceConfig
from tests.gateway.client import ask
from tests.gateway.gateway_stack import until

KEY = ServiceKey("default", "a")


class Answers:
    """Envoy's answers to versions."""

    def __init__(self):
        self.taken, self.refused = [], []

    def ads(self, first):
        return Ads(first, lambda *both: self.taken.append(both), lambda *both: self.refused.append(both))


def a_snapshot(stack, *addresses):
    fixed = Fixed(Sockets(stack.run_dir), "127.0.0.1", stack.port, relays=0)
    engines = {KEY: tuple(Endpoint(address, "pod") for address in addresses)}
    return snapshot(fixed, {KEY: ServiceConfig(KEY, "uid", "m")}, {KEY: ("a", "a.default")}, engines)


async def serving(stack, ads):
    server = grpc.aio.server()
    ads_pb2_grpc.add_AggregatedDiscoveryServiceServicer_to_server(ads, server)
    server.add_insecure_port(f"unix:{Sockets(stack.run_dir).picker}")
    await server.start()
    stack.start_envoy()
    await until(lambda: ads.acknowledged(LISTENERS) and ads.acknowledged(ROUTES), "Envoy has its configuration")
    return server


async def test_a_refused_listener_is_told_and_the_old_one_serves_on(stack, engines, http):
    engine = await engines("engine")
    answers, good = Answers(), a_snapshot(stack, engine.address)
    ads = answers.ads(good)
    server = await serving(stack, ads)
    assert not answers.refused
    # There is no external processor here: requests go by least requests.
    assert (await ask(http, stack, host="a"))[0] == 200

    address = {"socket_address": {"address": "127.0.0.1", "port_value": stack.port}}
    without_filters = {"name": "outer", "address": address}
    bad = resources(LISTENERS, [without_filters, listeners.inner(Sockets(stack.run_dir))])
    ads.publish({**good, LISTENERS: bad})
    await until(lambda: answers.refused, "Envoy refuses the listener")
    assert answers.refused == [(LISTENERS, bad.version)]
    assert (await ask(http, stack, host="a"))[0] == 200
    ads.publish(good)
    await until(lambda: answers.taken[-1] == (LISTENERS, good[LISTENERS].version), "Envoy takes the good one again")
    assert (await ask(http, stack, host="a"))[0] == 200
    await server.stop(0)


async def test_new_endpoints_are_told_as_taken(stack, engines, http):
    first, second = await engines("first"), await engines("second")
    answers = Answers()
    ads = answers.ads(a_snapshot(stack, first.address))
    server = await serving(stack, ads)
    new = a_snapshot(stack, second.address)
    ads.publish(new)
    await until(lambda: (ENDPOINTS, new[ENDPOINTS].version) in answers.taken, "Envoy takes the endpoints")
    status, body, _ = await ask(http, stack, host="a")
    assert (status, body) == (200, {"engine": "second"})
    await server.stop(0)


def test_equal_content_has_an_equal_version(stack):
    one, same, other = (a_snapshot(stack, address) for address in ("10.0.0.1:80", "10.0.0.1:80", "10.0.0.2:80"))
    assert {key: part.version for key, part in one.items()} == {key: part.version for key, part in same.items()}
    assert one[ENDPOINTS].version != other[ENDPOINTS].version
    assert one[LISTENERS].version == other[LISTENERS].version


def test_services_with_keys_never_fail_open(stack):
    fixed = Fixed(Sockets(stack.run_dir), "::", 8080, relays=1)
    config = replace(ServiceConfig(KEY, "uid", "m"), api_keys_secret="keys")
    routes = snapshot(fixed, {KEY: config}, {KEY: ("a",)}, {})[ROUTES].by_name["inner"]
    assert b"service/default/a" not in routes.value
