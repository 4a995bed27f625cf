"""Requests that engines die with: a bad request must not kill one engine with each attempt."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.gateway.relay.conftest import QUICK
from tests.gateway.relay.fake_engine import Do, frames_for
from tests.gateway.relay.test_continue import STREAM, WHOLE, same

FRAMES = frames_for(STREAM)
MIDDLE = FRAMES.index(b"\n\n", len(FRAMES) // 2) + 2
DIED = b':e 503 retry\ndata: {"error":{"message":"the engine process was lost","code":"engine_failed"}}\n\n'
MOST = 10


def code(body: bytes) -> str:
    return json.loads(body.rstrip().rsplit(b"data: ", 1)[-1])["error"]["code"]


@pytest.mark.parametrize("asked", [STREAM, WHOLE], ids=["stream", "whole"])
@pytest.mark.parametrize(
    "death",
    [Do(cut=0), Do(cut=0, error=DIED), Do(no_head=True)],
    ids=["cut", "reported", "before the head"],
)
async def test_after_two_engines_died_in_its_prefill_a_request_is_not_tried_again(relay, asked, death):
    await relay.configure(max_attempts=MOST)
    relay.script(death)
    status, headers, body = await relay.post(asked)
    assert (status, code(body), headers["x-should-retry"]) == (502, "engines_died", "false")
    assert len(relay.engine.seen) == 2
    report = await relay.report()
    assert (report["status"], report["error"]) == (502, "engines_died")


async def test_an_engine_lost_before_its_head_is_avoided_at_the_next_attempt(relay):
    relay.script(Do(no_head=True), Do())
    status, _, body = await relay.post(STREAM)
    assert status == 200
    assert same(body, STREAM)
    assert relay.picker.asked[1].avoid == (relay.engine.addresses[0],)


async def test_an_engine_without_a_head_in_time_is_silent_and_not_dead(make):
    relay = await make(replace(QUICK, head_s=0.1), max_attempts=MOST)
    relay.script(*[Do(no_head=True, pause_s=5)] * 3, Do())
    status, _, body = await relay.post(STREAM)
    assert status == 200
    assert same(body, STREAM)


async def test_a_request_that_waited_while_engines_died_is_no_suspect(relay):
    innocent = Do(cut=0, error=DIED.replace(b"engine_failed", b"engine_restarting"))
    await relay.configure(max_attempts=MOST)
    relay.script(innocent, innocent, innocent, Do())
    status, _, body = await relay.post(STREAM)
    assert status == 200
    assert same(body, STREAM)


async def test_deaths_after_tokens_and_refusals_are_no_suspicion(relay):
    """Engines die with many requests that are not the cause."""
    busy = Do(cut=0, error=b':e 503 retry\ndata: {"error":{"message":"drains","code":"draining"}}\n\n')
    await relay.configure(max_attempts=MOST)
    relay.script(Do(cut=MIDDLE), Do(cut=0), busy, busy, Do())
    status, _, body = await relay.post(STREAM)
    assert status == 200
    assert same(body, STREAM)


async def test_an_engine_that_dies_with_a_request_on_an_idle_connection_counts_as_dead(relay):
    """It looks like a connection that was closed while idle, but no new one is accepted."""
    await relay.configure(max_attempts=MOST)
    await relay.post(STREAM)
    first = relay.engine.addresses[0]
    await relay.engine.stop(first)
    relay.script(Do(no_head=True), Do(no_head=True), Do())
    status, _, body = await relay.post(STREAM)
    assert (status, code(body)) == (502, "engines_died")
    assert len(relay.engine.seen) == 3
