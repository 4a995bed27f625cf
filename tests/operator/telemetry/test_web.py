"""/metrics and /healthz."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from time import sleep

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


def test_scrapes_can_be_asked_for_by_name(served):
    address, metrics, _ = served
    metrics.count_scrapes(lambda: (5, 2))
    page = httpx.get(f"{address}/metrics", params={"name[]": "inflight_operator_scrapes_total"}).text
    assert 'inflight_operator_scrapes_total{result="done"} 5.0' in page


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


def connected(address, source="127.0.0.1"):
    return socket.create_connection((address.host, address.port), timeout=60, source_address=(source, 0))


def test_slow_clients_have_few_threads_and_take_no_place_of_probes(served):
    address, before = httpx.URL(served[0]), threading.active_count()
    with ExitStack() as clients:
        honest = clients.enter_context(connected(address, "127.0.0.2"))
        honest.sendall(b"GET /healthz HTTP/1.1\r\n")
        for _ in range(4 * 64):
            clients.enter_context(connected(address)).sendall(b"GET /metrics HTTP/1.1\r\n")
        served[2].beat(rounds_due=False)
        assert httpx.get(f"{served[0]}/healthz").status_code == 200
        while threading.active_count() - before > web.MOST_CONNECTIONS:
            sleep(0.01)  # those of closed connections end
        served[2].beat(rounds_due=False)
        honest.sendall(b"\r\n")
        assert honest.recv(12) == b"HTTP/1.0 200"


def test_few_pages_are_made_at_once_and_probes_answered_beside_them(served, monkeypatch):
    address, metrics, _ = served
    begun, go = threading.Semaphore(0), threading.Event()

    class Slow:
        def collect(self):
            begun.release()
            go.wait(60)
            return []

    with ThreadPoolExecutor() as clients:
        monkeypatch.setattr(metrics.registry, "collect", Slow().collect)
        pages = [clients.submit(httpx.get, f"{address}/metrics", timeout=60) for _ in range(web.PAGES_AT_ONCE)]
        try:
            for _ in pages:
                assert begun.acquire(timeout=60)
            refused = httpx.get(f"{address}/metrics")
            assert refused.status_code == 503
            assert "others are given /metrics now" in refused.text
            assert httpx.get(f"{address}/healthz").status_code == 200
        finally:
            go.set()
        assert {page.result().status_code for page in pages} == {200}


def test_other_paths_say_what_there_is(served):
    answer = httpx.get(f"{served[0]}/")
    assert answer.status_code == 404
    assert "/healthz" in answer.text
