"""Errors that clients get when answers cannot go on, and the time until failures are noticed."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace

import pytest

from inflight_gateway.relay.budget import BudgetLimits
from inflight_gateway.relay.decide import Limits
from inflight_gateway.relay.shared import Tuning
from tests.gateway.relay.conftest import QUICK, eventually
from tests.gateway.relay.fake_engine import Do, frames_for
from tests.gateway.relay.test_continue import LOST, STREAM, WHOLE, same

FRAMES = frames_for(STREAM)
MIDDLE = FRAMES.index(b"\n\n", len(FRAMES) // 2) + 2
FINAL = b':e 500 final\ndata: {"error":{"message":"broken"}}\n\n'


@pytest.mark.parametrize("asked", [STREAM, WHOLE], ids=["stream", "whole"])
@pytest.mark.parametrize("at", [0, 5, MIDDLE])
async def test_an_engine_that_hangs_is_left_after_its_silence(relay, asked, at):
    relay.script(Do(hang=min(at, len(frames_for(asked)) // 2)), Do())
    begun = time.monotonic()
    status, _, body = await relay.post(asked)
    assert status == 200
    assert same(body, asked)
    assert time.monotonic() - begun > 0.3
    assert relay.engine.seen[0].cancelled.is_set()


async def test_an_engine_that_only_beats_is_left_when_the_first_token_is_overdue(relay):
    beats = b":h\n\n" * 1000
    relay.script(Do(frames=beats, split=4, pause_s=0.05, within=0.3), Do())
    begun = time.monotonic()
    status, _, body = await relay.post(STREAM)
    assert status == 200
    assert same(body, STREAM)
    # The beats take 50 s.
    assert 0.3 < time.monotonic() - begun < 25
    assert "inflight_continuation" not in relay.engine.seen[1].json
    assert relay.picker.asked[1].avoid == (relay.engine.addresses[0],)


async def test_heartbeats_keep_an_answer_open_and_tokens_after_the_first_need_no_hurry(relay):
    first = FRAMES[: FRAMES.index(b"\n\n", FRAMES.index(b":t ")) + 2]
    slow = first + b":h\n\n" * 12 + FRAMES[len(first) :]
    relay.script(Do(frames=slow, split=len(first), pause_s=0.2, within=0.1))
    _, _, body = await relay.post(STREAM)
    assert same(body, STREAM)
    assert len(relay.engine.seen) == 1


@pytest.mark.parametrize("asked", [STREAM, WHOLE], ids=["stream", "whole"])
async def test_a_final_error_before_the_first_token_has_its_status(relay, asked):
    relay.script(Do(cut=0, error=FINAL))
    status, headers, body = await relay.post(asked)
    assert (status, json.loads(body)) == (500, {"error": {"message": "broken"}})
    assert headers["content-type"] == "application/json"
    report = await relay.report()
    assert (report["status"], report["error"], report["service"]) == (500, "engine_failed", ["ns", "svc"])


@pytest.mark.parametrize("most", [1, 2, 5])
async def test_a_service_bounds_the_attempts_of_its_requests(relay, most):
    await relay.configure(max_attempts=most)
    relay.script(Do(cut=0, error=LOST))
    assert (await relay.post(STREAM))[0] == 503
    assert len(relay.engine.seen) == most


async def test_a_lost_engine_is_retried_and_its_error_is_the_last_word(relay):
    relay.script(Do(cut=0, error=LOST), Do(cut=0, error=LOST), Do(cut=0, error=LOST))
    status, headers, body = await relay.post(STREAM)
    assert (status, json.loads(body)["error"]["message"]) == (503, "engine died")
    assert headers["retry-after"] == "1"
    assert len(relay.engine.seen) == 3


async def test_silence_at_every_attempt_is_504(relay):
    relay.script(Do(hang=0))
    status, _, body = await relay.post(WHOLE)
    assert (status, json.loads(body)["error"]["code"]) == (504, "engine_silent")


async def test_a_connection_without_any_answer_is_502(make):
    relay = await make(max_attempts=1)
    relay.script(Do(no_head=True))
    status, _, body = await relay.post(STREAM)
    error = json.loads(body)["error"]
    assert (status, error["code"], error["type"], error["param"]) == (502, "engine_lost", "server_error", None)


async def test_without_any_engine_that_accepts_connections_it_is_503_after_a_wait(make):
    relay = await make(Tuning(limits=Limits(min_pause_s=0.05, max_pause_s=0.05, max_wait_s=0.5)))
    await relay.engine.stop()
    begun = time.monotonic()
    status, headers, body = await relay.post(STREAM)
    assert (status, json.loads(body)["error"]["code"], headers["retry-after"]) == (503, "no_replica", "5")
    assert time.monotonic() - begun > 0.4


async def test_garbled_frames_are_a_failure_of_their_engine(relay):
    relay.script(Do(frames=b":t zero 5\n\n"), Do())
    _, _, body = await relay.post(STREAM)
    assert same(body, STREAM)


@pytest.mark.parametrize("notes", [b"", b":f 0 stop\n\n", b":t 0 5\n\n"])
async def test_a_stream_of_anthropics_that_is_only_an_end_is_a_failure_of_its_engine(relay, notes):
    """Its clients would get a response without a head."""
    relay.script(Do(frames=notes + b"data: [DONE]\n\n"))
    asked = {"stream": True, "max_tokens": 3, "messages": [{"role": "user", "content": "hi"}]}
    status, _, body = await relay.post(asked, "/v1/messages")
    assert (status, json.loads(body)["type"]) == (502, "error")


async def test_garbled_frames_after_tokens_end_the_answer_rather_than_leave_a_gap(relay):
    garbled = b':t 0 9\n:t 1 \ndata: {"lost":1}\n\n'
    relay.script(Do(frames=FRAMES[:MIDDLE] + garbled, split=MIDDLE, pause_s=0.05), Do())
    _, _, body = await relay.post(STREAM)
    assert json.loads(body.rstrip().rsplit(b"data: ", 1)[1])["error"]["code"] == "not_continued"
    assert b"lost" not in body


@pytest.mark.parametrize("status", [400, 404, 429, 503])
async def test_a_refusal_of_the_first_attempt_is_passed_on(relay, status):
    said = b'{"error":{"message":"no"}}'
    relay.script(Do(status=status, body=said, headers=(("retry-after", "7"),)))
    got, headers, body = await relay.post(STREAM)
    assert (got, body, headers["retry-after"], headers["x-ratelimit-limit-requests"]) == (status, said, "7", "3")
    assert len(relay.engine.seen) == 1


async def test_no_free_replica_is_waited_for_only_so_long(make):
    relay = await make(Tuning(limits=Limits(min_pause_s=0.05, max_pause_s=0.05, max_wait_s=1.0)))
    relay.script(Do(cut=MIDDLE), Do(refuse=503, headers=(("retry-after", "60"),)))
    status, _, body = await relay.post(STREAM)
    assert status == 200
    assert json.loads(body.rstrip().rsplit(b"data: ", 1)[1])["error"]["code"] == "no_replica"
    # Pauses are 40 ms and more; a Retry-After of 60 s does not count.
    assert 2 < len(relay.picker.asked) <= 2 + 1.0 / 0.04


@pytest.mark.parametrize("status", [200, 502, 504])
async def test_an_engine_that_cannot_continue_is_left_for_one_that_can(relay, status):
    relay.script(Do(cut=MIDDLE), Do(status=status, body=b"{}"), Do())
    _, _, body = await relay.post(STREAM)
    assert same(body, STREAM)
    assert relay.picker.asked[2].avoid == tuple(relay.engine.addresses[:2])


async def test_a_continuation_that_is_refused_ends_the_answer(relay):
    relay.script(Do(cut=MIDDLE), Do(status=400, body=b"{}"))
    _, _, body = await relay.post(STREAM)
    assert json.loads(body.rstrip().rsplit(b"data: ", 1)[1])["error"]["code"] == "not_continued"
    assert len(relay.engine.seen) == 2


async def test_an_outage_is_not_multiplied(make):
    relay = await make(Tuning(budget=BudgetLimits(ratio=0.2, per_s=0.0, burst=5)))
    relay.script(Do(cut=0, error=LOST))
    answers = [await relay.post(STREAM) for _ in range(100)]
    assert {status for status, _, _ in answers} == {503}
    assert len(relay.engine.seen) <= 100 + 5 + 20
    codes = {json.loads(body)["error"].get("code") for _, _, body in answers}
    assert "retry_budget_exhausted" in codes


async def test_a_client_may_not_forge_a_continuation(relay):
    status, _, body = await relay.post({**STREAM, "inflight_continuation": {"choices": [], "created": 1}})
    assert status == 400
    assert json.loads(body)["error"]["type"] == "invalid_request_error"
    assert relay.engine.seen == []


PATIENT = replace(QUICK, silence_s=300.0, head_s=300.0)
"""So that a request can end only because its client left."""


async def leaves(relay, asked, when):
    """A client that leaves a moment after `when()` is true."""
    client = asyncio.create_task(relay.post(asked))
    await eventually(when)
    await asyncio.sleep(0.1)
    client.cancel()
    await asyncio.wait([client])


async def test_a_client_that_leaves_ends_the_request_at_once(make):
    relay = await make(PATIENT)
    relay.script(Do(hang=MIDDLE))
    async with relay.session.post("http://svc.ns/v1/chat/completions", json=STREAM) as response:
        await response.content.readany()
    await asyncio.wait_for(relay.engine.seen[0].cancelled.wait(), 60)
    report = await relay.report()
    assert (report["status"], report["error"]) == (200, "client_left")
    assert report["completion_tokens"] > 0


async def test_a_client_that_leaves_before_an_answer_ends_the_request_too(make):
    relay = await make(PATIENT)
    relay.script(Do(hang=0))
    await leaves(relay, WHOLE, lambda: relay.engine.seen)
    await asyncio.wait_for(relay.engine.seen[0].cancelled.wait(), 60)
    assert (await relay.report())["status"] == 0


async def test_a_client_that_leaves_while_a_replica_is_waited_for_is_not_retried(make):
    relay = await make(Tuning(limits=Limits(min_pause_s=1.0)))
    relay.script(Do(cut=MIDDLE), Do(refuse=503, headers=(("retry-after", "0"),)))
    await leaves(relay, STREAM, lambda: len(relay.picker.asked) == 2)
    await asyncio.sleep(1.5)
    assert len(relay.picker.asked) == 2
