"""/metrics and /healthz."""

import socket

import httpx
import pytest

from inflight_operator.telemetry import web
from inflight_operator.telemetry.metrics import OperatorMetrics
from inflight_operator.telemetry.web import Heartbeat, WebServer


@pytest.fixture
def served():
    metrics, heartbeat = OperatorMetrics(), Heartbeat()
    server = WebServer(0, metrics.registry, heartbeat)
    yield f"http://127.0.0.1:{server.port}", metrics, heartbeat
    server.close()


def test_metrics_are_shown(served):
    address, metrics, _ = served
    metrics.decisions.labels("Tuning", "TpotOverTarget").inc()
    page = httpx.get(f"{address}/metrics").text
    assert 'inflight_operator_decisions_total{kind="Tuning",reason="TpotOverTarget"} 1.0' in page


def test_health_reports_when_the_event_loop_no_longer_turns(served, monkeypatch):
    address, _, heartbeat = served
    assert httpx.get(f"{address}/healthz").status_code == 200
    last = heartbeat._last
    monkeypatch.setattr(web, "monotonic", lambda: last + web.STUCK_AFTER_SECONDS + 1)
    stuck = httpx.get(f"{address}/healthz")
    assert stuck.status_code == 503
    assert "has not turned for 31 s" in stuck.text


def test_health_reports_when_no_round_ends_although_some_are_due(served, monkeypatch):
    address, _, heartbeat = served
    begun, late = web.monotonic(), web.ROUNDS_MISSING_AFTER_SECONDS + 1
    heartbeat.beat(rounds_due=True)
    monkeypatch.setattr(web, "monotonic", lambda: begun + late)
    heartbeat.beat(rounds_due=True)
    stuck = httpx.get(f"{address}/healthz")
    assert stuck.status_code == 503
    assert "no round has ended for 12" in stuck.text
    heartbeat.round_done()
    assert httpx.get(f"{address}/healthz").status_code == 200


def test_a_standby_is_healthy_however_long_it_waits_and_has_time_when_it_begins_to_lead(served, monkeypatch):
    address, _, heartbeat = served
    now = web.monotonic() + 1000
    monkeypatch.setattr(web, "monotonic", lambda: now)
    heartbeat.beat(rounds_due=False)
    assert httpx.get(f"{address}/healthz").status_code == 200
    heartbeat.beat(rounds_due=True)
    assert httpx.get(f"{address}/healthz").status_code == 200


def test_a_connection_that_sends_nothing_is_closed_and_nothing_is_logged(served, monkeypatch, capfd):
    assert web._QuietHandler.timeout is not None
    monkeypatch.setattr(web._QuietHandler, "timeout", 0.1)
    address = httpx.URL(served[0])
    for begin in (b"", b"GET /metrics HTTP/1.1\r\nHost:"):
        with socket.create_connection((address.host, address.port), timeout=60) as silent:
            silent.sendall(begin)
            assert silent.recv(1) == b""
    assert capfd.readouterr().err == ""


def test_other_paths_say_what_there_is(served):
    answer = httpx.get(f"{served[0]}/")
    assert answer.status_code == 404
    assert "/healthz" in answer.text
