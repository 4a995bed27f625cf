import asyncio
import json
import logging

import pytest

from inflight_engine import logs
from inflight_engine.request import FinishReason
from tests.engine.server.fake_engine import until

SECRET = "the prompt that nobody may read"
DEFAULT = frozenset(("/health", "/ready", "/metrics"))


@pytest.fixture
def written(caplog):
    """The lines of the access log so far, as JSON."""
    logger = logging.getLogger("inflight_engine.access")
    level = logger.level
    formatter = logs.JsonFormatter("api")
    lines = []

    class Keep(logging.Handler):
        def emit(self, record):
            lines.append(json.loads(formatter.format(record)))

    handler = Keep()
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)
    logger.setLevel(level)


async def test_a_line_has_ids_class_tokens_and_times_and_no_content(make_fake, written):
    fake = await make_fake(enable_access_log=True, trust_tenant_header=True)
    headers = {"x-request-id": "r-1", "x-inflight-tenant": "acme", "authorization": "Bearer key-of-a-client"}
    asked = asyncio.create_task(fake.http.post("/v1/completions?k=v", json={"prompt": SECRET}, headers=headers))
    await until(lambda: fake.engine.requests)
    fake.engine.report(admitted=[(0, 0, 16)], num_running=1)
    fake.engine.report(tokens={0: 97}, num_running=1, num_decode_tokens=1)
    fake.engine.report(finished=[(0, FinishReason.STOP)])
    response = await asked
    assert response.headers["x-request-id"] == "r-1"
    (line,) = written
    assert line["queue_ms"] <= line["ttft_ms"] <= line["total_ms"]
    expected = {
        "level": "INFO",
        "logger": "inflight_engine.access",
        "message": "request",
        "request_id": "r-1",
        "method": "POST",
        "path": "/v1/completions",
        "status": 200,
        "client": "127.0.0.1:123",
        "class": "default",
        "tenant": "acme",
        "priority": 0,
        "prompt_tokens": len(SECRET),
        "cached_tokens": 16,
        "output_tokens": 1,
        "preemptions": 0,
        "finish_reason": "stop",
        "aborted": False,
    }
    assert {key: line.get(key) for key in expected} == expected
    assert SECRET not in json.dumps(line)
    assert "key-of-a-client" not in json.dumps(line)
    assert "k=v" not in json.dumps(line)


async def test_refused_requests_have_a_line_with_their_class(make_fake, written):
    fake = await make_fake(enable_access_log=True)
    await fake.post("/v1/completions", prompt="x" * 200)
    await fake.post("/v1/completions", prompt=1.5)
    too_long, malformed = written
    assert (too_long["status"], too_long["class"]) == (400, "default")
    assert "prompt_tokens" not in too_long
    assert malformed["status"] == 400
    assert "class" not in malformed


async def test_a_client_that_leaves_is_aborted(make_fake, written):
    fake = await make_fake(enable_access_log=True)
    left = asyncio.Event()
    body = json.dumps({"prompt": "hello", "stream": True}).encode()
    sent = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive():
        if sent:
            return sent.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        pass

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/completions",
        "raw_path": b"/v1/completions",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
        "client": None,
        "server": ("engine", 80),
        "scheme": "http",
        "http_version": "1.1",
        "root_path": "",
    }
    serving = asyncio.create_task(fake.app(scope, receive, send))
    await until(lambda: fake.engine.requests)
    left.set()
    await serving
    (line,) = written
    assert (line["aborted"], line["finish_reason"], line["status"], line["client"]) == (True, "abort", None, None)
    assert line["ttft_ms"] is None


async def test_probes_have_no_line_unless_asked_for(make_fake, written):
    fake = await make_fake(enable_access_log=True)
    await fake.http.get("/health")
    await fake.http.get("/metrics")
    assert written == []
    fake = await make_fake(enable_access_log=True, disable_access_log_for_endpoints="/metrics")
    await fake.http.get("/health")
    assert [line["path"] for line in written] == ["/health"]


async def test_a_path_cannot_break_the_line_and_is_bounded(make_fake, written):
    fake = await make_fake(enable_access_log=True)
    await fake.http.get("/a%0Ab" + "c" * 1000)
    assert written[0]["path"].startswith("/a%0Abcc")
    assert len(written[0]["path"]) == 256


async def test_without_the_flag_lines_are_written_at_debug_only(make_fake, written):
    fake = await make_fake()
    await fake.http.get("/v1/models")
    assert written == []
    logging.getLogger("inflight_engine.access").setLevel(logging.DEBUG)
    await fake.http.get("/v1/models")
    assert [line["level"] for line in written] == ["DEBUG"]


async def test_every_answer_has_a_request_id_also_errors_and_streams(make_fake):
    fake = await make_fake()
    for path in ("/v1/models", "/nowhere", "/health"):
        assert len((await fake.http.get(path)).headers["x-request-id"]) == 32
    for given in ("two words", "x" * 129, ""):
        response = await fake.http.get("/nowhere", headers={"x-request-id": given})
        assert len(response.headers["x-request-id"]) == 32
    asked = asyncio.create_task(
        fake.http.post("/v1/completions", json={"prompt": "a", "stream": True}, headers={"x-request-id": "s-1"})
    )
    await until(lambda: fake.engine.requests)
    assert fake.engine.requests[0].external_id == "s-1"
    fake.engine.answer(0, "b")
    assert (await asked).headers["x-request-id"] == "s-1"
