"""Answers without progress frames pass unchanged."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import aiohttp
import pytest

from inflight_gateway.relay import bodies
from tests.gateway.relay.conftest import QUICK
from tests.gateway.relay.fake_engine import Do, frames_for
from tests.gateway.relay.test_continue import STREAM, WHOLE, same


async def raw(relay, data: bytes, end: bytes | None = None) -> bytes:
    """Sends bytes; returns the answer up to `end` or the connection's end."""
    reader, writer = await asyncio.open_unix_connection(str(relay.socket))
    writer.write(data)
    try:
        async with asyncio.timeout(3):
            return await (reader.read() if end is None else reader.readuntil(end))
    finally:
        writer.transport.abort()


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
async def test_other_requests_pass_with_method_path_headers_and_body(relay, method):
    relay.script(Do(status=201, body=b"made", headers=(("x-own", "1"), ("connection", "x-hop"), ("x-hop", "2"))))
    sent = b"" if method == "GET" else b"hello"
    async with relay.session.request(
        method, "http://svc.ns/v1/files?a=1&b=%20", data=sent, headers={"x-mine": "7", "TE": "trailers"}
    ) as response:
        assert (response.status, await response.read(), response.headers["x-own"]) == (201, b"made", "1")
        assert not {"x-hop", "x-inflight-endpoint", "x-inflight-service"} & set(response.headers)
    seen = relay.engine.seen[0]
    assert (seen.method, seen.target, seen.body) == (method, "/v1/files?a=1&b=%20", sent)
    assert (seen.headers["x-mine"], seen.headers["host"]) == ("7", "svc.ns")
    assert not {"te", "x-inflight-progress", "x-inflight-attempt"} & set(seen.headers)
    assert relay.reports == []


async def test_a_get_of_a_generation_path_is_no_generation(relay):
    relay.script(Do(status=405))
    async with relay.session.get("http://svc/v1/completions") as response:
        assert response.status == 405
    assert "x-inflight-progress" not in relay.engine.seen[0].headers


async def test_a_head_request_keeps_the_length_and_has_no_body(relay):
    relay.script(Do(status=200, body=b"12345"), Do(status=200, body=b"next"))
    async with relay.session.head("http://svc/v1/models") as response:
        assert (response.status, response.headers["content-length"]) == (200, "5")
    async with relay.session.get("http://svc/v1/models") as response:
        assert await response.read() == b"next"


async def test_a_head_request_that_fails_has_no_body_either(relay):
    relay.script(Do(no_head=True))
    answer = await raw(relay, b"HEAD /v1/models HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 502 ")
    assert answer.endswith(b"\r\n\r\n")


async def test_bodies_stream_both_ways(relay):
    async def parts():
        for _ in range(50):
            yield b"x" * 100_000

    relay.script(Do(status=200, body=b"y" * 3_000_000))
    async with relay.session.post("http://svc/v1/audio", data=parts()) as response:
        assert await response.read() == b"y" * 3_000_000
    assert relay.engine.seen[0].body == b"x" * 5_000_000


async def test_token_counts_of_an_engine_without_progress_frames_are_reported(relay):
    usage = b'{"prompt_tokens": 7, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}'
    body = b'{"choices":[{"text":"\\"prompt_tokens\\":99' + b"x" * 5000 + b'"}],"usage":' + usage + b"}"
    relay.script(Do(status=200, body=body))
    await relay.post(WHOLE)
    report = await relay.report()
    assert (report["prompt_tokens"], report["cached_tokens"], report["completion_tokens"]) == (7, 4, 9)


async def test_internal_headers_of_a_client_go_no_further(relay):
    relay.script(Do(status=200))
    forged = {"x-gateway-destination-endpoint": "1.2.3.4:9", "x-inflight-tenant": "boss", "x-inflight-avoid": "a"}
    for path in ("/v1/completions", "/v1/models"):
        await relay.post(STREAM, path, headers=forged)
        assert not set(forged) & set(relay.engine.seen[-1].headers)


async def test_a_response_before_the_end_of_the_request_costs_both_connections(relay):
    relay.script(Do(early=True))
    head = b"POST /v1/files HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\n12345"
    answer = await raw(relay, head)
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert relay.worker._shared.pool._idle == []


@pytest.mark.parametrize("stream", [True, False])
async def test_an_engine_without_progress_frames_answers_as_it_does(relay, stream):
    body = b'data: {"choices":[]}\n\n: a comment of its own\n\ndata: [DONE]\n\n' if stream else b'{"choices":[]}'
    relay.script(Do(status=200, body=body, headers=(("content-type", "text/event-stream"),)))
    status, headers, got = await relay.post({**STREAM, "stream": stream})
    assert (status, got, headers["content-type"]) == (200, body, "text/event-stream")
    report = await relay.report()
    assert (report["status"], report["stream"], report["endpoints"]) == (200, stream, ["10.0.0.1:8000"])


async def test_an_answer_without_progress_frames_that_breaks_off_is_broken_off(relay):
    relay.script(Do(status=200, body=b"half", headers=(("content-length", "100"),)))
    with pytest.raises((aiohttp.ClientError, TimeoutError)):
        await asyncio.wait_for(relay.post(STREAM), 0.2)
    relay.reports.clear()


async def test_a_body_that_is_no_json_reaches_the_engine_as_it_is(relay):
    relay.script(Do(status=400, body=b"{}"))
    async with relay.session.post("http://svc/v1/completions", data=b"not json") as response:
        assert response.status == 400
    assert relay.engine.seen[0].body == b"not json"
    assert "x-inflight-progress" not in relay.engine.seen[0].headers


async def test_reports_tell_tokens_times_and_endpoints(relay):
    frames = frames_for(STREAM)
    first = frames.index(b"\n\n", frames.index(b":t ")) + 2
    relay.script(Do(split=first, pause_s=0.1))
    await relay.post(STREAM, headers={"x-request-id": "mine"})
    report = await relay.report()
    assert report["external_id"] == "mine"
    assert relay.engine.seen[0].headers["x-request-id"] == "mine"
    assert (report["prompt_tokens"], report["cached_tokens"], report["completion_tokens"]) == (5, 1, 7)
    assert report["stream"] is True
    assert 0 <= report["ttft_s"] <= report["e2e_s"]
    assert 0.08 < report["longest_gap_s"] < report["e2e_s"]
    await relay.post(WHOLE)
    whole = await relay.report(1)
    assert (whole["stream"], whole["ttft_s"], whole["completion_tokens"]) == (False, None, 7)
    assert whole["external_id"] == relay.engine.seen[1].headers["x-request-id"]


async def test_requests_with_one_x_request_id_have_an_id_of_their_own_at_all_attempts(relay):
    """Else two clients that send the same one would settle each other's charge."""
    forged = {"x-request-id": "same", "x-inflight-request-id": "forged"}
    relay.script(Do(no_head=True), Do())
    await relay.post(STREAM, headers=forged)
    await relay.post(STREAM, headers=forged)
    first, again, other = (seen.headers["x-inflight-request-id"] for seen in relay.engine.seen)
    assert first == again != other
    assert "forged" not in (first, other)
    assert {seen.headers["x-request-id"] for seen in relay.engine.seen} == {"same"}
    reports = [await relay.report(number) for number in (0, 1)]
    assert [report["request_id"] for report in reports] == [first, other]


async def test_without_a_picker_reports_are_dropped_and_answers_go_on(relay):
    await relay._collector.cleanup()
    for _ in range(5):
        assert same((await relay.post(WHOLE))[2], WHOLE)
    await asyncio.sleep(0.3)
    assert relay.worker._reports.dropped == 5


@pytest.mark.parametrize("known", [True, False], ids=["length", "chunked"])
async def test_a_body_over_the_bound_is_refused(relay, known, monkeypatch):
    monkeypatch.setattr("inflight_gateway.relay.generation.MAX_BODY_BYTES", 1000)
    framing = b"content-length: 2000\r\n\r\n" if known else b"transfer-encoding: chunked\r\n\r\n7d0\r\n" + b"x" * 2000
    answer = await raw(relay, b"POST /v1/completions HTTP/1.1\r\nhost: a\r\n" + framing)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in answer
    assert relay.engine.seen == []


@pytest.mark.parametrize(("processes", "mebibytes"), [(1, 256), (2, 128), (8, 32), (64, 32)])
def test_processes_divide_the_bound_of_bodies_and_each_can_keep_a_whole_one(processes, mebibytes):
    assert bodies.bodies_bytes_of_one(processes) == mebibytes << 20


async def test_an_early_response_reaches_a_client_that_still_sends(relay, monkeypatch):
    """A connection that is closed with unread data is reset: the response could be lost."""
    monkeypatch.setattr("inflight_gateway.relay.generation.MAX_BODY_BYTES", 1000)
    reader, writer = await asyncio.open_unix_connection(str(relay.socket))
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 5000000\r\n\r\n")
    for _ in range(50):
        writer.write(b"x" * 100_000)
        await writer.drain()
    answer = await asyncio.wait_for(reader.read(), 1)
    assert answer.startswith(b"HTTP/1.1 413 ")
    writer.close()


async def test_bodies_under_way_are_bounded_together(make):
    relay = await make(replace(QUICK, max_bodies_bytes=3000))
    asked = {**STREAM, "messages": "x" * 1000}
    relay.script(Do(hang=0))
    waiting = [asyncio.create_task(relay.post(asked)) for _ in range(2)]
    await asyncio.sleep(0.1)
    relay.script(Do())
    status, headers, _ = await relay.post(asked)
    assert (status, headers["retry-after"]) == (503, "1")
    await asyncio.gather(*waiting)
    assert (await relay.post(asked))[0] == 200
    assert relay.worker._shared.bodies.kept == 0


async def test_connections_are_used_again(relay):
    for _ in range(5):
        assert (await relay.post(WHOLE))[0] == 200
    assert relay.engine.connections == 1


async def test_a_connection_that_was_closed_while_idle_costs_no_attempt(relay):
    relay.script(Do(), Do(no_head=True), Do())
    await relay.post(WHOLE)
    assert same((await relay.post(STREAM))[2], STREAM)
    assert [seen.headers["x-inflight-attempt"] for seen in relay.engine.seen] == ["1", "1", "1"]
    relay.script(Do(no_head=True), Do(status=200, body=b"models"))
    async with relay.session.get("http://svc/v1/models") as response:
        assert await response.read() == b"models"


async def test_idle_connections_that_close_are_forgotten(relay):
    await relay.post(WHOLE)
    for task in [*relay.engine._tasks]:
        task.cancel()
    await asyncio.sleep(0.05)
    assert relay.worker._shared.pool._idle == []
    assert same((await relay.post(STREAM))[2], STREAM)


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\ncontent-length: x\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\nzz",
        b"GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\nabc",
        b"GET /a HTTP/1.1\r\nhost: a\r\n\r\nGET /b HTTP/1.1\r\nhost: a\r\n\r\n",
    ],
)
async def test_what_envoy_would_not_send_closes_the_connection(relay, data, caplog):
    relay.script(Do(status=200, body=b"ok"))
    assert (await raw(relay, data)).count(b"HTTP/1.1 200") <= 1
    assert (await relay.post(WHOLE, "/v1/other"))[0] == 200
    assert "Traceback" not in caplog.text


async def test_a_client_that_waits_for_100_continue_gets_it(relay):
    head = b"POST /v1/files HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n"
    assert await raw(relay, head, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"


@pytest.mark.parametrize("given", ["über-1", "a b", "x" * 129])
async def test_a_request_id_that_cannot_be_signed_is_replaced(relay, given):
    """Picker and engine would read its bytes differently, and reports would fit no request."""
    status, _, _ = await relay.post(STREAM, headers={"x-request-id": given})
    assert status == 200
    seen = relay.engine.seen[0].headers["x-request-id"]
    assert len(seen) == 32
    assert (await relay.report())["external_id"] == seen


@pytest.mark.parametrize("depth", [500, 5_000, 100_000])
async def test_bodies_of_any_depth_are_the_engines_to_refuse(relay, depth):
    relay.script(Do(status=400, body=b"too deep"))
    data = b'{"messages":' + b"[" * depth + b"]" * depth + b"}"
    async with relay.session.post("http://svc/v1/chat/completions", data=data) as response:
        assert (response.status, await response.read()) == (400, b"too deep")


async def test_a_head_that_is_no_http1_gets_a_400(relay):
    answer = await raw(relay, b"foo /v1/models HTTP/1.1\r\nhost: a\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "malformed_request"
    assert relay.engine.seen == []
