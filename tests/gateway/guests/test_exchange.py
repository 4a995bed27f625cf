"""Requests of other gateways, from their heads to the ends of their responses."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from inflight_base.manifest.keys import ObjectKey
from inflight_gateway.discovery.hosts import Hosts
from inflight_gateway.guests.exchange import Exchange, Parts
from inflight_gateway.guests.head import Head
from inflight_gateway.link.ready_pods import ReadyPods
from inflight_gateway.request.body import NO_FIELDS, Body
from inflight_gateway.request.headers import DESTINATION
from inflight_gateway.state.picks import PicksLog
from inflight_gateway.telemetry.request_log import RequestLog
from inflight_gateway.tenants.signature import EngineHeaders
from inflight_gateway.types import GatewayPod, RateLimits
from tests.gateway.requests.world import CONFIG, KEY, World
from tests.gateway.tenants.things import secret

KEYED = replace(CONFIG, api_keys_secret="keys")


class Guests(World):
    def __init__(self, config=CONFIG, endpoints=2, gateway_key=b"key"):
        super().__init__(config, endpoints)
        self.catalog.update(secrets={ObjectKey("default", "keys"): secret(acme="ifk_1")}, hosts=Hosts(by_model=True))
        log = RequestLog(self.metrics, PicksLog(), access_log=True)
        self.pods = ReadyPods("gw-0", self.catalog)
        self.parts = Parts(self.catalog, self.gate, EngineHeaders(gateway_key), self.requests, log, self.pods)

    def exchange(self, allowed=None, **headers):
        pairs = {":authority": "a.default", ":path": "/v1/completions", **headers}
        head = Head((name.replace("_", "-"), value) for name, value in pairs.items())
        return Exchange(self.parts, head, allowed, None)

    async def placed(self, exchange, body=NO_FIELDS):
        return [answer async for answer in exchange.place("request_body", body, 0)]


def headers(answer):
    mutation = answer.request_body.response.header_mutation
    return {one.header.key: one.header.raw_value.decode() for one in mutation.set_headers}


async def test_a_request_goes_to_the_pick_and_counts_until_it_ends():
    world = Guests()
    exchange = world.exchange()
    (answer,) = await world.placed(exchange)
    first = headers(answer)[DESTINATION].split(",")[0]
    assert answer.dynamic_metadata["envoy.lb"][DESTINATION] == headers(answer)[DESTINATION]
    assert world.in_flight() == {first: 1}
    exchange.answered(429)
    exchange.close()
    world.assert_empty()
    assert world.value("requests_total", status="429") == 1


async def test_a_request_that_has_to_wait_asks_for_time_and_leaves_the_queue_with_its_client():
    world = Guests(endpoints=0)
    exchange = world.exchange()
    answers = exchange.place("request_body", NO_FIELDS, 0)
    assert (await anext(answers)).override_message_timeout.seconds >= 10
    waiting = asyncio.create_task(anext(answers))
    await asyncio.sleep(0)
    assert len(world.holds) == 1
    waiting.cancel()
    exchange.close()
    world.assert_empty()


@pytest.mark.parametrize(("key", "status"), [(None, 401), ("ifk_wrong", 401), ("ifk_1", 200)])
async def test_keys_are_checked(key, status):
    world = Guests(KEYED)
    exchange = world.exchange(**({} if key is None else {"authorization": f"Bearer {key}"}))
    refusal = exchange.refusal()
    assert (200 if refusal is None else refusal.immediate_response.status.code) == status
    if refusal is None:
        (answer,) = await world.placed(exchange)
        assert headers(answer)["x-inflight-tenant"] == "acme"
        assert {"authorization", "api-key"} <= set(answer.request_body.response.header_mutation.remove_headers)
    exchange.close()
    world.assert_empty()
    assert world.value("tenant_refused_total", tenant="anonymous", reason="key") == (1 if status == 401 else None)


async def test_a_token_that_this_gateway_did_not_verify_opens_no_service():
    """The other gateway may not remove the header of its clients."""
    world = Guests(replace(CONFIG, jwt_tenants=("*",)))
    assert world.exchange(x_inflight_jwt_tenant="acme").refusal().immediate_response.status.code == 401


async def test_without_a_gateway_key_services_with_api_keys_are_closed():
    world = Guests(KEYED, gateway_key=None)
    refusal = world.exchange(authorization="Bearer ifk_1").refusal()
    assert refusal.immediate_response.status.code == 503


async def test_limits_refuse_with_429():
    world = Guests(replace(CONFIG, default_limits=RateLimits(requests_per_minute=1)))
    for status in (200, 429):
        exchange = world.exchange()
        (answer,) = await world.placed(exchange)
        assert (answer.immediate_response.status.code or 200) == status
        exchange.close()
    world.assert_empty()


async def test_each_gateway_pod_applies_its_share_of_the_limits():
    world = Guests(replace(CONFIG, default_limits=RateLimits(requests_per_minute=6)))
    world.pods.set([GatewayPod(f"gw-{number}", "10.0.0.1:9005") for number in range(3)])
    found = [(await world.placed(world.exchange()))[0].immediate_response.status.code or 200 for _ in range(4)]
    assert found == [200, 200, 429, 429]


async def test_no_path_but_public_ones_passes():
    assert Guests().exchange(**{":path": "/admin/drain"}).refusal().immediate_response.status.code == 404


@pytest.mark.parametrize("path", ["/v1/models", "/tokenize", "/health"])
async def test_what_generates_nothing_is_never_held_and_wakes_nothing(path):
    world = Guests(endpoints=0)
    exchange = world.exchange(**{":path": path})
    (answer,) = await world.placed(exchange)
    assert answer.immediate_response.status.code == 503
    exchange.close()
    assert world.ledger.service(KEY, world.now) == (0, None)
    world.endpoints(1)
    exchange = world.exchange(**{":path": path})
    (answer,) = await world.placed(exchange)
    assert headers(answer)[DESTINATION] == "10.0.0.0:80"
    exchange.close()
    assert world.ledger.service(KEY, world.now) == (0, None)
    world.assert_empty()


@pytest.mark.parametrize("sent", ["", "with space", "x" * 200, "\u00e9"])
async def test_an_id_that_engines_would_replace_is_replaced_before_it_is_signed(sent):
    world = Guests()
    exchange = world.exchange(x_request_id=sent)
    (answer,) = await world.placed(exchange, Body(prompt_tokens=1))
    assert len(headers(answer)["x-request-id"]) == 32
    exchange.close()
