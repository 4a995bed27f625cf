"""Picks, refusals and reports appear in metrics and the access log."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import msgspec
import pytest

from inflight_base.logs import JsonFormatter
from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.hold.queue import HoldQueue
from inflight_gateway.request.view import Head
from inflight_gateway.state.picks import PicksLog
from inflight_gateway.telemetry import reports
from inflight_gateway.telemetry.access_records import AccessRecords
from inflight_gateway.telemetry.metrics import Metrics
from inflight_gateway.types import Endpoint, Finished, Pick, Refusal, RequestView

KEY = ServiceKey("default", "a")
REQUEST = RequestView("id", KEY, 0.0, tenant="acme", external_id="theirs")
START = Pick((Endpoint("10.0.0.1:80", "p"),), "prefix", cached_tokens=64), 0.25
TRIED = ("10.0.0.1:80", "10.0.0.2:80")
REPORT = Finished("id", KEY, 200, True, 100, 48, 7, 0.5, 1.5, 0.1, TRIED, 1, "engine_lost", "theirs")


class NoGate:
    """Stands in for the accounts of tenants."""

    def __init__(self):
        self.settled = []

    def settle(self, finished):
        self.settled.append(finished)


class World:
    def __init__(self):
        self.now, self.metrics, self.gate = 0.0, Metrics(), NoGate()
        self.records = AccessRecords(self.metrics, PicksLog(), self.gate, HoldQueue(), lambda: self.now, log=True)

    def value(self, name, **labels):
        return self.metrics.registry.get_sample_value(f"inflight_gateway_{name}", labels)


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, "inflight_gateway.access")
    return lambda: [json.loads(JsonFormatter().format(record)) for record in caplog.records]


def test_a_report_is_counted_settled_and_logged(lines):
    world = World()
    record = world.records.started(REQUEST, *START, relayed=True)
    world.records.ended(record)
    world.records.report(REPORT)
    service = {"namespace": "default", "service": "a"}
    assert world.value("requests_total", **service, status="200") == 1
    assert world.value("attempts_total", **service) == 2
    assert world.value("continuations_total", **service) == 1
    assert world.value("picks_total", **service, reason="prefix") == 1
    assert world.value("cached_tokens_predicted_total", **service) == 64
    assert world.value("cached_tokens_found_total", **service) == 48
    assert world.value("time_to_first_token_seconds_sum", **service) == 0.5
    assert world.value("held_seconds_sum", **service) == 0.25
    assert world.gate.settled == [REPORT]
    (line,) = lines()
    wanted = {
        "request_id": "theirs",
        "service": "default/a",
        "tenant": "acme",
        "endpoint": "10.0.0.2:80",
        "attempts": 2,
    }
    wanted |= {"held_s": 0.25, "status": 200, "ttft_s": 0.5, "continuations": 1}
    assert wanted.items() <= line.items()


def test_a_request_without_a_report_is_logged_after_a_while(lines):
    world = World()
    record = world.records.started(REQUEST, *START, relayed=True)
    world.records.ended(record)
    world.records.expire()
    assert lines() == []
    world.now = 31.0
    world.records.expire()
    assert [line["status"] for line in lines()] == [None]
    assert world.value("requests_total", namespace="default", service="a", status="unknown") == 1


def test_the_wait_for_a_report_begins_anew_with_each_attempt(lines):
    world = World()
    record = world.records.started(REQUEST, *START, relayed=True)
    world.records.ended(record)
    world.now = 20.0
    record = world.records.started(replace(REQUEST, attempt=2), *START, relayed=True)
    world.now = 40.0
    world.records.expire()
    assert lines() == []
    world.records.report(REPORT)
    assert [line["held_s"] for line in lines()] == [0.5]


def test_without_a_relay_the_end_of_the_stream_is_the_report(lines):
    world = World()
    record = world.records.refused(head(), KEY, Refusal(401, "invalid_api_key", "no"))
    world.records.ended(record)
    (line,) = lines()
    wanted = {"status": 401, "refusal": "invalid_api_key", "service": "default/a", "request_id": "theirs"}
    assert wanted.items() <= line.items()


def test_the_status_of_another_gateways_request_is_that_of_its_response():
    world = World()
    record = world.records.started(REQUEST, *START, relayed=False)
    world.records.answered(record, 200)
    world.records.ended(record)
    assert world.value("requests_total", namespace="default", service="a", status="200") == 1


def test_a_deleted_service_leaves_no_metrics():
    world = World()
    other = ServiceKey("default", "b")
    for key in (KEY, other):
        world.records.started(replace(REQUEST, service=key), *START, relayed=True)
        world.records.refused(head(), key, Refusal(401, "invalid_api_key", "no"))
        world.records.report(replace(REPORT, service=key, error="engines_died"))
    assert b'service="a"' in world.metrics.page()
    before = world.metrics.page().count(b'service="b"')
    world.metrics.forget(KEY)
    assert b'service="a"' not in world.metrics.page()
    assert world.metrics.page().count(b'service="b"') == before


def test_a_request_that_ends_after_its_service_was_deleted_is_not_counted():
    world = World()
    world.metrics = world.records._metrics = Metrics(lambda key: False)
    world.records.report(REPORT)
    assert b'service="a"' not in world.metrics.page()


def test_a_report_without_a_service_is_of_the_one_that_was_picked_for():
    world = World()
    world.records.started(REQUEST, *START, relayed=True)
    world.records.report(Finished("id", ServiceKey("", ""), 0, True))
    assert world.value("requests_total", namespace="default", service="a", status="0") == 1


def test_reports_are_read_as_relays_write_them():
    assert reports._finished_decoder.decode(msgspec.json.encode([REPORT])) == [REPORT]
    for wrong in (b"{", b"{}", b'[{"request_id": 5}]'):
        with pytest.raises(ValueError, match=r"[Ee]xpected|truncated"):
            reports._finished_decoder.decode(wrong)


def test_requests_with_one_x_request_id_are_logged_and_charged_each(lines):
    """X-Request-Id is the clients' own: a tenant that repeats one must not get its tokens at another's cost."""
    world = World()
    served = []
    world.records._holds.served = lambda request, tokens: served.append((request.tenant, tokens))
    for number, tenant in enumerate(("acme", "other", "acme")):
        request = replace(REQUEST, request_id=str(number), tenant=tenant)
        world.records.ended(world.records.started(request, *START, relayed=True))
    for number, tokens in (("1", 5), ("2", 6), ("0", 7)):
        world.now += 10.0
        world.records.report(replace(REPORT, request_id=number, completion_tokens=tokens))
    assert served == [("other", 5), ("acme", 6), ("acme", 7)]
    assert [(line["tenant"], line["request_id"]) for line in lines()] == [
        ("other", "theirs"),
        ("acme", "theirs"),
        ("acme", "theirs"),
    ]
    world.now += 100.0
    world.records.expire()
    assert len(lines()) == 3


def test_a_try_again_that_is_refused_belongs_to_its_request(lines):
    world = World()
    record = world.records.started(REQUEST, *START, relayed=True)
    world.records.ended(record)
    assert world.records.refused(head(attempt="2"), KEY, Refusal(503, "no_replica", "no")) is record
    world.records.ended(record)
    world.records.report(replace(REPORT, error="no_replica"))
    world.now = 100.0
    world.records.expire()
    (line,) = lines()
    assert (line["refusal"], line["error"]) == ("no_replica", "no_replica")


def head(**internal):
    pairs = [("x-request-id", "theirs"), *((f"x-inflight-{name}", value) for name, value in internal.items())]
    return Head([*pairs, ("x-inflight-request-id", "id")], end_of_stream=True)
