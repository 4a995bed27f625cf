"""Picks, refusals and ends of requests appear in metrics and the access log."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import pytest

from inflight_base.logs import JsonFormatter
from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.state.picks import PicksLog
from inflight_gateway.telemetry.metrics import Metrics
from inflight_gateway.telemetry.request_log import RequestLog
from inflight_gateway.types import Endpoint, Finished, Pick, Refusal, RequestView

KEY = ServiceKey("default", "a")
REQUEST = RequestView("id", KEY, 0.0, tenant="acme", external_id="theirs")
PICK = Pick((Endpoint("10.0.0.1:80", "p"),), "prefix", cached_tokens=64)
TRIED = ("10.0.0.1:80", "10.0.0.2:80")
REPORT = Finished("id", KEY, 200, True, 100, 48, 7, 0.5, 1.5, 0.1, TRIED, 1, "engine_lost", "theirs", "acme", "k1")


class World:
    def __init__(self, exists=lambda _: True):
        self.metrics = Metrics(exists)
        self.log = RequestLog(self.metrics, PicksLog(), access_log=True)

    def value(self, name, **labels):
        labels = {"namespace": "default", "service": "a", **labels}
        return self.metrics.registry.get_sample_value(f"inflight_gateway_{name}", labels)


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, "inflight_gateway.access")
    return lambda: [json.loads(JsonFormatter().format(record)) for record in caplog.records]


def test_a_report_is_counted_and_logged_with_the_tenants_key(lines):
    world = World()
    world.log.picked(REQUEST, PICK, 0.25, "exact")
    world.log.ended(REPORT, 0.25, "", "exact")
    assert world.value("requests_total", status="200") == 1
    assert world.value("attempts_total") == 2
    assert world.value("continuations_total") == 1
    assert world.value("picks_total", reason="prefix") == 1
    assert world.value("cached_tokens_predicted_total", index="exact") == 64
    assert world.value("cached_tokens_found_total", index="exact") == 48
    assert world.value("time_to_first_token_seconds_sum") == 0.5
    assert world.value("held_seconds_sum") == 0.25
    (line,) = lines()
    wanted = {"request_id": "theirs", "service": "default/a", "tenant": "acme", "key_id": "k1", "attempts": 2}
    wanted |= {"endpoint": "10.0.0.2:80", "held_s": 0.25, "status": 200, "ttft_s": 0.5, "continuations": 1}
    assert wanted.items() <= line.items()
    assert line["error"] == "engine_lost"
    assert "refusal" not in line


def test_a_refusal_has_a_line_and_a_count_by_its_code(lines):
    world = World()
    world.log.refused(KEY, Refusal(503, "no_replica", "no"))
    world.log.ended(replace(REPORT, status=503, endpoints=(), error="no_replica"), 60.0, "no_replica")
    assert world.value("refusals_total", code="no_replica") == 1
    assert [(line["refusal"], line["error"], line["status"]) for line in lines()] == [("no_replica", "no_replica", 503)]


def test_refusals_of_relays_are_counted_also_without_a_service(lines):
    world = World()
    refused = replace(REPORT, service=ServiceKey("", ""), status=404, endpoints=(), error="service_not_found")
    world.log.ended(refused, None, "")
    assert world.value("refusals_total", namespace="", service="", code="service_not_found") == 1
    assert lines()[0]["service"] is None


def test_a_deleted_service_leaves_no_metrics():
    world = World()
    other = ServiceKey("default", "b")
    for key in (KEY, other):
        world.log.picked(replace(REQUEST, service=key), PICK, 0.25)
        world.log.refused(key, Refusal(401, "invalid_api_key", "no"))
        world.log.ended(replace(REPORT, service=key, error="engines_died"), 0.25, "")
    assert b'service="a"' in world.metrics.page()
    before = world.metrics.page().count(b'service="b"')
    world.metrics.forget(KEY)
    assert b'service="a"' not in world.metrics.page()
    assert world.metrics.page().count(b'service="b"') == before


def test_a_request_that_ends_after_its_service_was_deleted_is_not_counted():
    world = World(lambda _: False)
    world.log.ended(REPORT, 0.25, "", "exact")
    assert b'service="a"' not in world.metrics.page()
