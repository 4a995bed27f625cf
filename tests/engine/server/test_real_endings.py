"""How a server ends: drained, cut short, or because its engine died. Each test has a server of its own."""

import json
import os
import signal
import threading
import time

import httpx
import pytest

pytestmark = pytest.mark.slow


class Stream(threading.Thread):
    """A streaming client in the background; `events` grows, `status` comes with the headers."""

    def __init__(self, server, **body):
        super().__init__(daemon=True)
        self.events, self.status, self.broken = [], None, None
        self._url = f"{server.url}/v1/completions"
        self._body = {"prompt": "Once upon a time", "ignore_eos": True, "stream": True, **body}
        self.start()
        deadline = time.monotonic() + 60
        while not self.events and time.monotonic() < deadline:
            time.sleep(0.01)
        assert self.events

    def run(self):
        try:
            with httpx.stream("POST", self._url, json=self._body, timeout=120) as answer:
                self.status = answer.status_code
                self.events.extend(line.removeprefix("data: ") for line in answer.iter_lines() if line)
        except httpx.HTTPError as error:
            self.broken = error

    def finished(self):
        self.join(120)
        assert not self.is_alive()
        return self.events


def test_sigterm_drains(own_server):
    """During the delay requests are accepted, then refused; running ones end whole; exit 0."""
    server = own_server("--drain-delay", "2", "--drain-timeout", "240")
    with httpx.Client(base_url=server.url, timeout=120) as http:
        assert "connection" not in http.get("/health").headers
        stream = Stream(server, max_tokens=20)
        server.process.send_signal(signal.SIGTERM)
        while (ready := http.get("/ready")).status_code == 200:
            time.sleep(0.01)
        assert ready.headers["connection"] == "close"
        assert ready.json()["status"] == "draining"
        # Keeps the server draining after the delay.
        long = Stream(server, max_tokens=120)
        assert long.status == 200
        while (answer := http.post("/v1/completions", json={"prompt": "a", "max_tokens": 1})).status_code == 200:
            assert answer.headers["connection"] == "close"
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "draining")
        assert answer.headers["retry-after"] == "1"
    for events in (stream.finished(), long.finished()):
        assert events[-1] == "[DONE]"
        assert json.loads(events[-2])["choices"][0]["finish_reason"] == "length"
    assert server.process.wait(60) == 0


def test_while_the_model_loads_http_answers_and_sigterm_ends_at_once(own_server):
    server = own_server(wait=False)
    health, ready = (httpx.get(server.url + path, timeout=60) for path in ("/health", "/ready"))
    assert (health.status_code, health.json()["status"]) == (200, "loading")
    assert ready.status_code == 503
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(60) == 0


def test_sigterm_before_http_answers_ends_at_once(own_server):
    server = own_server(wait=False)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(60) == 0


def test_drain_timeout_ends_a_stream_with_an_error_it_can_see(own_server):
    server = own_server("--drain-timeout", "0.5")
    stream = Stream(server, max_tokens=900)
    whole = threading.Thread(target=lambda: answers.append(ask_whole(server)))
    answers = []
    whole.start()
    while server.metrics()["vllm:num_requests_running"] < 2:
        time.sleep(0.01)
    server.process.send_signal(signal.SIGTERM)
    error = json.loads(stream.finished()[-1])["error"]
    assert error["code"] == "drain_timeout"
    whole.join(120)
    assert (answers[0].status_code, answers[0].json()["error"]["code"]) == (503, "drain_timeout")
    assert server.process.wait(60) == 0


def ask_whole(server):
    body = {"prompt": "a", "max_tokens": 900, "ignore_eos": True}
    return httpx.post(f"{server.url}/v1/completions", json=body, timeout=120)


def test_second_sigterm_ends_at_once(own_server):
    server = own_server("--drain-timeout", "240")
    stream = Stream(server, max_tokens=900)
    server.process.send_signal(signal.SIGTERM)
    while server.status("/ready") == 200:
        time.sleep(0.01)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(60) == 1
    assert json.loads(stream.finished()[-1])["error"]["code"] == "shutdown"
    assert server.last_line() == "error: told twice to stop: 1 requests were ended before they were complete"


def test_engine_process_that_is_killed_while_it_loads_ends_the_server_with_the_reason(own_server):
    server = own_server(wait=False)
    os.kill(server.engine_pid(), signal.SIGKILL)
    assert server.process.wait(60) == 1
    assert server.last_line().startswith("error: the engine process was killed (signal 9")
    assert server.last_line().endswith("while it loaded the model")
    assert server.status("/health") is None


def test_admin_port_answers_until_the_end_of_a_drain(own_server):
    server = own_server("--admin-port", "0", "--no-serving-metrics", "--drain-timeout", "60")
    admin = f"http://127.0.0.1:{server.admin_port()}"
    assert httpx.get(f"{server.url}/metrics").status_code == 404
    assert httpx.patch(f"{server.url}/v1/runtime_config", json={}).json()["error"]["code"] == "admin_port"
    stream = Stream(server, max_tokens=40)
    token = {"authorization": "Bearer test-token"}
    assert httpx.post(f"{admin}/admin/drain", headers=token).status_code == 202
    with httpx.Client(base_url=admin, timeout=60) as http:
        while stream.is_alive():
            assert http.get("/ready").json()["status"] == "draining"
            assert "inflight_draining{" in http.get("/metrics").text
            time.sleep(0.05)
    assert stream.events[-1] == "[DONE]"
    assert server.process.wait(60) == 0
