"""Requests that engines die with: a bad request must not kill one engine with each attempt."""

from __future__ import annotations

import json

import pytest

from tests.gateway.relay.fake_engine import Do, frames_for
from tests.gateway.relay.test_continue import STREAM, WHOLE, same

FRAMES = frames_for(STREAM)
MIDDLE = FRAMES.index(b"\n\n", len(FRAMES) // 2) + 2
DIED = b':e 503 retry\ndata: {"error":{"message":"the engine process was lost","code":"engine_failed"}}\n\n'
MOST = 10


def lost(flags: str, number: int = 1, **more) -> Do:
    """Envoy's own response in place of an engine's."""
    failure = (("x-inflight-upstream-failure", flags), ("x-inflight-max-attempts", str(MOST)))
    return Do(status=503, body=b'{"error":{}}', headers=failure, endpoint=f"10.0.0.{number}:8000", **more)


def code(body: bytes) -> str:
    return json.loads(body.rstrip().rsplit(b"data: ", 1)[-1])["error"]["code"]


@pytest.mark.parametrize("asked", [STREAM, WHOLE], ids=["stream", "whole"])
@pytest.mark.parametrize(
    "death",
    [Do(cut=0, most=MOST), Do(cut=0, error=DIED, most=MOST), lost("UC"), lost("UPE,URX")],
    ids=["cut", "reported", "before the head", "garbage"],
)
async def test_after_two_engines_died_in_its_prefill_a_request_is_not_tried_again(relay, asked, death):
    relay.script(death)
    status, headers, body = await relay.post(asked)
    assert (status, code(body), headers["x-should-retry"]) == (502, "engines_died", "false")
    assert len(relay.engine.seen) == 2
    report = await relay.report()
    assert (report["status"], report["error"]) == (502, "engines_died")


async def test_an_engine_lost_before_its_head_is_avoided_at_the_next_attempt(relay):
    relay.script(lost("UC", 7), Do())
    status, _, body = await relay.post(STREAM)
    assert status == 200
    assert same(body, STREAM)
    assert relay.engine.seen[1].headers["x-inflight-avoid"] == "10.0.0.7:8000"


async def test_an_engine_without_a_head_in_time_is_silent_and_not_dead(relay):
    relay.script(lost("UT", 1), lost("UT", 2), lost("UT", 3), Do())
    status, _, body = await relay.post(STREAM)
    assert status == 200
    assert same(body, STREAM)


async def test_a_request_that_waited_while_engines_died_is_no_suspect(relay):
    innocent = Do(cut=0, error=DIED.replace(b"engine_failed", b"engine_restarting"), most=MOST)
    relay.script(innocent, innocent, innocent, Do())
    status, _, body = await relay.post(STREAM)
    assert status == 200
    assert same(body, STREAM)


async def test_deaths_after_tokens_and_refusals_are_no_suspicion(relay):
    """Engines die with many requests that are not the cause."""
    busy = Do(cut=0, error=b':e 503 retry\ndata: {"error":{"message":"drains","code":"draining"}}\n\n')
    relay.script(Do(cut=MIDDLE, most=MOST), Do(cut=0, most=MOST), busy, busy, Do())
    status, _, body = await relay.post(STREAM)
    assert status == 200
    assert same(body, STREAM)


async def test_where_no_engine_is_reached_envoys_answer_passes(relay):
    relay.script(lost("UF,URX"))
    status, _, body = await relay.post(STREAM)
    assert (status, body) == (503, b'{"error":{}}')
    assert len(relay.engine.seen) == 1


async def test_the_picker_hears_of_endpoints_that_refused(relay):
    tried = (("x-inflight-tries", "2"),)
    relay.script(Do(headers=tried, endpoint="10.0.0.2:8000"), Do(headers=(("x-inflight-tries", "1"),)))
    await relay.post(STREAM)
    await relay.post(STREAM)
    first, second = [await relay.report(number) for number in (0, 1)]
    assert relay.retried == [{"request_id": first["request_id"], "attempt": 1, "endpoint": "10.0.0.2:8000", "tries": 2}]
    assert second["request_id"] != first["request_id"]
