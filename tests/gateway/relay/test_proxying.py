"""Requests that generate nothing, and answers without progress frames."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import aiohttp
import pytest

from tests.gateway.relay.answers.test_usage import DONE, LAST, content
from tests.gateway.relay.conftest import QUICK, eventually
from tests.gateway.relay.fake_engine import Do, frames_for
from tests.gateway.relay.test_continue import STREAM, WHOLE, same

COUNTED = {**STREAM, "stream_options": {"include_usage": True}}
EVENTS = (("content-type", "text/event-stream"),)


async def test_other_requests_pass_with_path_headers_and_body_and_without_the_picker(relay):
    relay.script(Do(status=201, body=b"made", headers=(("x-own", "1"), ("connection", "x-hop"), ("x-hop", "2"))))
    url, headers = "http://svc.ns/tokenize?a=1&b=%20", {"x-mine": "7", "TE": "trailers"}
    async with relay.session.post(url, data=b"hello", headers=headers) as response:
        assert (response.status, await response.read(), response.headers["x-own"]) == (201, b"made", "1")
        assert "x-hop" not in response.headers
    seen = relay.engine.seen[0]
    assert (seen.method, seen.target, seen.body) == ("POST", "/tokenize?a=1&b=%20", b"hello")
    assert (seen.headers["x-mine"], seen.headers["host"]) == ("7", "svc.ns")
    assert not {"te", "x-inflight-progress"} & set(seen.headers)
    assert relay.picker.asked == []


@pytest.mark.parametrize("frames", [True, False])
@pytest.mark.parametrize(("path", "asked"), [("/tokenize", {}), ("/v1/chat/completions", STREAM)])
async def test_an_engine_does_not_say_which_pages_may_read_answers(make, path, asked, frames):
    """vLLM permits all origins unless told otherwise."""
    relay = await make(continuation=frames)
    cors = (("access-control-allow-origin", "*"), ("Access-Control-Allow-Credentials", "true"), ("vary", "Origin"))
    relay.script(Do(status=200, body=content("a") + DONE, headers=(*EVENTS, *cors)))
    status, headers, _ = await relay.post(asked, path)
    assert (status, headers["vary"]) == (200, "Origin")
    assert not [name for name in headers if name.startswith("access-control-")]


@pytest.mark.parametrize("size", [0, 1_000_000])
async def test_bodies_stream_both_ways(relay, size):
    async def parts():
        for _ in range(10):
            yield b"x" * (size // 10)

    relay.script(Do(status=200, body=b"y" * 3_000_000))
    async with relay.session.post("http://svc.ns/tokenize", data=parts()) as response:
        assert await response.read() == b"y" * 3_000_000
    assert relay.engine.seen[0].body == b"x" * size


async def test_a_head_request_keeps_the_length_and_has_no_body(relay):
    relay.script(Do(status=200, body=b"12345"), Do(status=200, body=b"next"))
    async with relay.session.head("http://svc.ns/version") as response:
        assert (response.status, response.headers["content-length"]) == (200, "5")
    async with relay.session.get("http://svc.ns/version") as response:
        assert await response.read() == b"next"


async def test_a_request_that_its_engine_does_not_answer_is_502(relay):
    relay.script(Do(no_head=True))
    status, _, body = await relay.post({}, "/tokenize")
    assert (status, json.loads(body)["error"]["code"]) == (502, "engine_lost")
    assert (await relay.report())["status"] == 502


async def test_a_request_that_its_engine_does_not_answer_in_time_is_504(make):
    relay = await make(replace(QUICK, head_s=0.1))
    relay.script(Do(pause_s=30))
    status, _, body = await relay.post({}, "/tokenize")
    assert (status, json.loads(body)["error"]["code"]) == (504, "engine_silent")
    assert (await relay.report())["status"] == 504
    assert not relay.shared.pool._in_flight


async def test_a_response_may_take_longer_than_its_head(make):
    relay = await make(replace(QUICK, head_s=0.1))
    relay.script(Do(frames=b"slow" * 3, split=4, pause_s=0.1))
    status, _, body = await relay.post({}, "/tokenize")
    assert (status, body) == (200, b"slow" * 3)


async def test_a_connection_that_was_closed_while_idle_costs_no_attempt_and_no_request(make):
    relay = await make(engines=1)
    relay.script(Do(), Do(no_head=True), Do(), Do(no_head=True), Do(status=200, body=b"tokens"))
    await relay.post(WHOLE)
    assert same((await relay.post(STREAM))[2], STREAM)
    assert [ask.attempt for ask in relay.picker.asked] == [1, 1]
    status, _, body = await relay.post({"prompt": "x" * 1000}, "/tokenize")
    assert (status, body) == (200, b"tokens")
    assert relay.engine.seen[-1].body == relay.engine.seen[-2].body != b""


async def test_connections_are_used_again(relay):
    for _ in range(5):
        assert (await relay.post(WHOLE))[0] == 200
    assert relay.engine.connections == 1


@pytest.mark.parametrize("stream", [True, False])
async def test_an_engine_without_progress_frames_answers_as_it_does(relay, stream):
    body = content("a") + b": a comment of its own\n\n" + DONE if stream else b'{"choices":[]}'
    relay.script(Do(status=200, body=body, headers=EVENTS))
    status, headers, got = await relay.post({**STREAM, "stream": stream})
    assert (status, got, headers["content-type"]) == (200, body, "text/event-stream")
    report = await relay.report()
    assert (report["status"], report["stream"], report["endpoints"]) == (200, stream, relay.engine.addresses[:1])


async def test_token_counts_of_a_whole_answer_without_progress_frames_are_reported(relay):
    usage = b'{"prompt_tokens": 7, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}'
    body = b'{"choices":[{"text":"\\"prompt_tokens\\":99' + b"x" * 5000 + b'"}],"usage":' + usage + b"}"
    relay.script(Do(status=200, body=body))
    await relay.post(WHOLE)
    report = await relay.report()
    assert (report["prompt_tokens"], report["cached_tokens"], report["completion_tokens"]) == (7, 4, 9)


@pytest.mark.parametrize("asked", [STREAM, COUNTED], ids=["not asked", "asked"])
@pytest.mark.parametrize("continuation", [True, False])
async def test_streams_of_engines_without_frames_are_counted_and_only_who_asks_gets_the_counts(
    make, asked, continuation
):
    """An engine without frames tells its counts only if asked for them."""
    relay = await make(continuation=continuation)
    relay.script(Do(status=200, body=content("a") + LAST + DONE, headers=EVENTS))
    _, _, body = await relay.post(asked)
    assert relay.engine.seen[0].json["stream_options"] == {"include_usage": True}
    assert body == content("a") + (LAST if asked is COUNTED else b"") + DONE
    report = await relay.report()
    assert (report["prompt_tokens"], report["cached_tokens"], report["completion_tokens"]) == (7, 4, 9)


async def test_streams_without_any_counts_count_their_events_as_a_lower_bound(relay):
    relay.script(Do(status=200, body=content("a") + content("b") + DONE, headers=EVENTS))
    await relay.post(STREAM)
    assert (await relay.report())["completion_tokens"] == 2


@pytest.mark.parametrize("continuation", [True, False])
async def test_streams_with_frames_are_counted_and_only_who_asks_gets_the_counts(make, continuation):
    relay = await make(continuation=continuation)
    for number, asked in enumerate((STREAM, COUNTED)):
        _, _, body = await relay.post(asked)
        assert body.count(b'"usage"') == number
        assert relay.engine.seen[-1].headers["x-inflight-progress"] == "1"
        report = await relay.report(number)
        assert (report["prompt_tokens"], report["cached_tokens"], report["completion_tokens"]) == (5, 1, 7)


async def test_an_answer_without_progress_frames_that_breaks_off_is_broken_off(relay):
    relay.script(Do(status=200, body=b"half", headers=(("content-length", "100"),)))
    with pytest.raises((aiohttp.ClientError, TimeoutError)):
        await asyncio.wait_for(relay.post(WHOLE), 0.2)


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


async def test_idle_connections_that_close_are_forgotten(relay):
    await relay.post(WHOLE)
    for task in [*relay.engine._tasks]:
        task.cancel()
    await eventually(lambda: len(relay.shared.pool._idle_until) == 0)
    assert same((await relay.post(STREAM))[2], STREAM)
