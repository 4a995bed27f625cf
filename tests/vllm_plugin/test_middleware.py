"""The middleware around an application that stands in for vLLM's."""

import asyncio
import contextlib
import json
import signal
import time

import httpx
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from inflight_base.signing import signed, tenant_message
from inflight_operator.observe.metrics import parse_metrics
from inflight_vllm import middleware
from inflight_vllm.board import Board, Report
from inflight_vllm.middleware import Inflight
from tools.measure.served import free_port


class FakeVllm:
    """Stands in for vLLM's application: answers with the request as it got it, and with 503 when it is not healthy."""

    def __init__(self):
        self.healthy = True
        self.hold = asyncio.Event()
        self.hold.set()

    async def __call__(self, scope, receive, send):
        message, body = {"more_body": True}, b""
        while message.get("more_body"):
            message = await receive()
            body += message.get("body", b"")
        await self.hold.wait()
        length = dict(scope["headers"]).get(b"content-length", b"").decode()
        content = {"path": scope["path"], "body": body.decode(), "length": length}
        status = 503 if scope["path"] == "/health" and not self.healthy else 200
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(content).encode()})


@pytest.fixture
def vllm():
    return FakeVllm()


@pytest.fixture
def serve(vllm, monkeypatch, tmp_path):
    """Returns a client, made with variables of the environment."""

    def make(policy="fcfs", **variables):
        monkeypatch.setattr(middleware, "problem", lambda: None)
        monkeypatch.setenv("INFLIGHT_STATE_FILE", str(tmp_path / "state"))
        monkeypatch.setenv("INFLIGHT_DRAIN_DELAY", "0")
        for name, value in variables.items():
            monkeypatch.setenv(f"INFLIGHT_{name}", value)
        report = Report(max_num_seqs=8, max_num_batched_tokens=256, policy=policy)
        Board.create(tmp_path / "state").report.write(report)
        app = Inflight(vllm)
        client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://vllm")
        client.inflight = app
        return client

    return make


async def test_ready_is_vllms_health(serve, vllm):
    client = serve()
    answer = await client.get("/ready")
    assert (answer.status_code, answer.json()["path"]) == (200, "/health")
    vllm.healthy = False
    assert (await client.get("/ready")).status_code == 503


async def test_limits_are_read_on_the_serving_port_and_changed_on_the_admin_port_only(serve):
    client = serve()
    assert (await client.get("/v1/runtime_config")).json()["capacity"]["max_num_seqs"] == 8
    for answer in (await client.patch("/v1/runtime_config", json={}), await client.post("/admin/drain")):
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "admin_port")
        assert "8001" in answer.json()["error"]["message"]


async def test_a_request_passes_unchanged_without_classes_and_tenants(serve):
    body = '{"prompt":  "x", "priority": 3}'
    assert (await serve().post("/v1/completions", content=body)).json()["body"] == body


async def test_a_silent_stream_gets_comments(serve, vllm, monkeypatch):
    async def stream(scope, receive, send):
        """Stands in for vLLM: an event, a pause and another one."""
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
        await asyncio.sleep(0.3)
        await send({"type": "http.response.body", "body": b"data: 2\n\n"})

    monkeypatch.setattr(middleware, "_SILENCE_S", 0.05)
    client = serve()
    client.inflight._app = stream
    answer = await client.post("/v1/completions", json={"prompt": "x", "stream": True})
    opening, first, *comments, second, end = answer.text.split("\n\n")
    assert (opening, first, second, end) == (": keep-alive", "data: 1", "data: 2", "")
    assert comments
    assert set(comments) == {": keep-alive"}


async def test_class_and_tenant_become_fields_of_vllm(serve, tmp_path):
    (tmp_path / "key").write_bytes(b"secret")
    client = serve("priority", TENANT_KEY_FILE=str(tmp_path / "key"), CLASSES="a:priority=1;b:priority=2")
    message = tenant_message("team", "id-1")
    headers = {
        "x-inflight-tenant": "team",
        "x-request-id": "id-1",
        "x-inflight-signature": signed([b"secret"], message, time.time()),
    }
    answer = (await client.post("/v1/completions", json={"prompt": "x", "class": "b"}, headers=headers)).json()
    fields = json.loads(answer["body"])
    assert (fields["prompt"], fields["priority"], len(fields["cache_salt"])) == ("x", 2, 64)
    assert "class" not in fields
    assert int(answer["length"]) == len(answer["body"])
    unsigned = await client.post("/v1/completions", json={"prompt": "x"})
    assert (unsigned.status_code, unsigned.json()["error"]["code"]) == (401, "invalid_tenant_signature")
    unknown = await client.post("/v1/completions", json={"class": "c"}, headers=headers)
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (400, "class")
    assert client.inflight._drain.running == 0


async def test_a_websocket_needs_the_signature_too(serve, vllm, tmp_path):
    (tmp_path / "key").write_bytes(b"secret")
    app = serve(TENANT_KEY_FILE=str(tmp_path / "key")).inflight
    sent = []

    async def send(message):
        sent.append(message)

    async def receive():
        return {"type": "websocket.connect"}

    await app({"type": "websocket", "path": "/v1/realtime", "headers": []}, receive, send)
    assert [(each["type"], each.get("code")) for each in sent] == [("websocket.close", 1008)]
    assert app._drain.running == 0


async def test_a_drain_lets_running_requests_finish_and_refuses_new_ones(serve, vllm, monkeypatch):
    client, left = serve(), asyncio.Event()
    client.inflight._drain._leave = left.set
    vllm.hold.clear()
    running = asyncio.create_task(client.post("/v1/completions", json={"prompt": "x"}))
    while not client.inflight._drain.running:  # noqa: ASYNC110
        await asyncio.sleep(0)
    client.inflight._drain.begin()
    await asyncio.sleep(0.02)
    ready = await client.get("/ready")
    assert (ready.status_code, ready.json()["status"]) == (503, "draining")
    refused = await client.post("/v1/completions", json={"prompt": "x"})
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert not left.is_set()
    vllm.hold.set()
    assert (await running).status_code == 200
    async with asyncio.timeout(60):
        await left.wait()


async def test_an_answer_that_begins_during_a_drain_asks_to_close_the_connection(serve, vllm):
    client = serve(DRAIN_DELAY="60")
    client.inflight._drain.begin()
    answer = await client.post("/v1/completions", json={"prompt": "x"})
    assert (answer.status_code, answer.headers["connection"]) == (200, "close")


async def test_the_admin_port_answers_and_a_port_in_use_is_only_logged(serve, caplog):
    admin, port = serve().inflight._admin, free_port()
    server = asyncio.create_task(middleware._serve(admin, port))
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client, asyncio.timeout(60):
        answer = None
        while answer is None:
            with contextlib.suppress(httpx.ConnectError):
                answer = await client.get("/v1/runtime_config")
        assert answer.json()["capacity"] == {"max_num_seqs": 8, "max_num_batched_tokens": 256}
        assert (await client.patch("/v1/runtime_config", json={})).status_code in (401, 403)
        assert (await client.patch("/v1/runtime_config", content=b" " * 100_000)).status_code == 413
        await middleware._serve(admin, port)
    assert "Address already in use" in caplog.text
    server.cancel()
    await asyncio.gather(server, return_exceptions=True)


async def test_after_a_start_that_fails_vllm_serves_and_drains_and_the_page_says_why(serve, vllm, monkeypatch, caplog):
    seen, registry = [], CollectorRegistry()

    async def starts(scope, receive, send):
        seen.append(scope["type"])

    monkeypatch.setattr(middleware, "REGISTRY", registry)
    inflight = serve(ADMIN_PORT=str(free_port())).inflight
    monkeypatch.setattr(inflight, "_app", starts)
    await inflight({"type": "lifespan"}, None, None)  # without the state that vLLM's application has
    assert seen == ["lifespan"]
    assert "inflight: the plugin failed; vLLM goes on without it" in caplog.text
    page = "vllm:num_requests_running 0\n" + generate_latest(registry).decode()
    assert parse_metrics(page, 1.0).plugin_problem == "the plugin failed: KeyError"
    assert asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
    inflight._server.cancel()
    await asyncio.gather(inflight._server, return_exceptions=True)
