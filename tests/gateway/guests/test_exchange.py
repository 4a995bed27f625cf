"""A request at the picker: checks of its key alone, and reports of what Envoy tried for it."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace

import pytest
from envoy.config.core.v3.base_pb2 import HeaderMap, HeaderValue
from envoy.service.ext_proc.v3.external_processor_pb2 import HttpHeaders, ProcessingRequest
from inflight_gateway.guests.dispatcher import Dispatcher
from inflight_gateway.guests.server import Processor
from inflight_gateway.request.view import Head

from inflight_base.manifest.keys import ObjectKey, ServiceKey
from inflight_gateway.discovery.catalog import Catalog
from inflight_gateway.engines.ledger import Ledger
from inflight_gateway.guests.exchange import Exchange, Parts
from inflight_gateway.hold.queue import HoldQueue
from inflight_gateway.pick.picker import Picker
from inflight_gateway.request.body import NO_FIELDS, Body, to_header
from inflight_gateway.tenants.estimate import Estimates
from inflight_gateway.tenants.gate import Gate
from inflight_gateway.tenants.keys import KeyTables
from inflight_gateway.tenants.sharing import SharedLimits
from inflight_gateway.tenants.signature import EngineHeaders
from inflight_gateway.types import Endpoint, Retried, ServiceConfig
from tests.gateway.tenants.things import secret

CHAT, OTHER = ServiceKey("ns", "chat"), ServiceKey("ns", "other")
OPEN = ServiceConfig(CHAT, "u", "m", max_attempts=3)
KEYED = replace(OPEN, api_keys_secret="keys")
ADDRESSES = [f"10.0.0.{one}:80" for one in range(1, 5)]


class AccessRecords:
    def __init__(self):
        self.refusals = []

    def started(self, request, pick, held_s, *, relayed):
        return object()

    def refused(self, head, service, refusal):
        self.refusals.append((service, refusal.status))
        return object()

    def answered(self, record, status):
        pass

    def ended(self, record):
        pass

    def decided(self, seconds):
        pass


class World:
    def __init__(self, *configs):
        self.now = 100.0
        self.catalog = Catalog()
        self.catalog.update(
            services={config.key: config for config in configs},
            endpoints={config.key: [Endpoint(each, "p") for each in ADDRESSES] for config in configs},
            secrets={ObjectKey("ns", "keys"): secret(acme="ifk_1"), ObjectKey("ns", "more"): secret(b="ifk_2")},
        )
        estimates = Estimates()
        self.ledger = Ledger(self.catalog.endpoints_of, lambda _: None, estimates)
        dispatcher = Dispatcher(self.catalog, Picker(), HoldQueue(), self.ledger, lambda: self.now, lambda: None)
        limits = SharedLimits("gw", lambda: {}, None)
        self.gate = Gate(KeyTables(self.catalog), limits, estimates)
        self.records = AccessRecords()
        self.refused = []
        self.parts = Parts(
            *(self.catalog, self.gate, EngineHeaders(None), dispatcher, self.records),
            *(lambda: self.now, self.refused.append),
        )

    def exchange(self, host="chat.ns", ends=False, **headers):
        pairs = {":authority": host, ":path": "/v1/completions", "x-inflight-attempt": "1", **headers}
        return Exchange(
            self.parts,
            Head([(name.replace("_", "-"), value) for name, value in pairs.items()], end_of_stream=ends),
            None,
        )

    def attempt(self, number, avoid=""):
        """Sent to an engine. Returns its exchange and the endpoints picked."""
        exchange = self.exchange(
            x_inflight_request_id="one", x_inflight_attempt=str(number), **{"x-inflight-avoid": avoid}
        )

        async def place():
            return [answer async for answer in exchange.place("request_headers", NO_FIELDS, 0)]

        asyncio.run(place())
        return exchange, [endpoint.address for endpoint in exchange._picked]

    def in_flight(self):
        return [address for address in self.ledger.addresses() for _ in range(self.ledger.in_flight(address))]


def test_the_endpoints_before_the_one_that_answered_have_refused():
    world = World(OPEN)
    exchange, picked = world.attempt(1)
    world.parts.retried(Retried("one", 1, picked[1], 2))
    assert world.refused == picked[:1]
    assert world.in_flight() == [picked[1]]
    exchange.close()
    world.parts.retried(Retried("one", 1, picked[1], 2))
    assert world.refused == picked[:1]


def test_a_report_that_arrives_during_the_next_attempt_says_nothing_about_its_endpoints():
    """Relays send reports in batches: an engine may be lost, and the request sent elsewhere, before that."""
    world = World(OPEN)
    first, picked = world.attempt(1)
    lost = picked[1]
    second, again = world.attempt(2, avoid=lost)
    first.close()
    world.parts.retried(Retried("one", 1, lost, 2))
    assert world.refused == []
    assert world.in_flight() == [again[0]]
    second.close()
    assert world.in_flight() == []


async def test_an_open_stream_keeps_neither_the_message_nor_the_hashes():
    """They would take up to 22 KiB of each request that is generating."""
    world = World(OPEN)
    fields = {
        ":authority": "chat.ns",
        ":path": "/v1/completions",
        "x-inflight-request-id": "one",
        "x-inflight-attempt": "1",
        "x-inflight-body": to_header(Body(blocks=bytes(800))).decode(),
    }
    head = HeaderMap(headers=[HeaderValue(key=name, raw_value=value.encode()) for name, value in fields.items()])
    message = ProcessingRequest(request_headers=HttpHeaders(headers=head))

    async def sent():
        yield message

    references = sys.getrefcount(message)
    stream = Processor(world.parts).Process(sent(), None)
    assert (await anext(stream)).HasField("request_headers")
    assert sys.getrefcount(message) == references
    assert world.parts.sent["one"]._head.body is None
    await stream.aclose()


def checked(world, host, key=None):
    """The status for a relay that asks only about the key."""
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    exchange = world.exchange(host, ends=True, x_inflight_check_key="1", **headers)
    response = exchange.refusal().immediate_response
    marked = any(one.header.key == "x-inflight-check-key" for one in response.headers.set_headers)
    exchange.close()
    assert marked is (response.status.code == 401)
    return response.status.code


@pytest.mark.parametrize(("key", "status"), [(None, 401), ("ifk_wrong", 401), ("ifk_1", 200)])
def test_a_key_is_checked_before_the_body(key, status):
    world = World(KEYED)
    assert checked(world, "chat.ns", key) == status
    assert world.records.refusals == ([(CHAT, 401)] if status == 401 else [])


@pytest.mark.parametrize(("key", "status"), [(None, 401), ("ifk_wrong", 401), ("ifk_1", 200), ("ifk_2", 200)])
@pytest.mark.parametrize("host", ["10.0.0.9", "localhost:8080", "gone.ns"])
def test_where_the_model_names_the_service_the_key_must_be_that_of_one(host, key, status):
    world = World(KEYED, ServiceConfig(OTHER, "u", "m2", api_keys_secret="more"))
    assert checked(world, host, key) == status
    assert world.records.refusals == ([(None, 401)] if status == 401 else [])


def test_where_one_service_needs_no_key_a_body_without_one_may_be_for_it():
    assert checked(World(KEYED, ServiceConfig(OTHER, "u", "m2")), "10.0.0.9") == 200


def test_other_refusals_are_left_to_the_request_itself_and_counted_once():
    world = World(KEYED)
    world.catalog.update(secrets={ObjectKey("ns", "keys"): None})
    assert checked(world, "chat.ns", "ifk_1") == 200
    assert checked(World(), "chat.ns", "ifk_1") == 200
    assert world.records.refusals == []
    assert world.exchange().refusal().immediate_response.status.code == 503
    assert world.records.refusals == [(CHAT, 503)]
