"""Streams that wait for a replica."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from inflight_gateway.link.wire import Ask, Go, Held, Refuse, frame
from tests.gateway.relay.conftest import QUICK, eventually
from tests.gateway.relay.fake_engine import Do
from tests.gateway.relay.test_continue import STREAM, WHOLE, same

WAITING = b": waiting for a replica\n\n"


class Holding:
    """A relay whose picker holds requests until a test says more."""

    def __init__(self, relay) -> None:
        self.relay = relay
        self.asked: list[Ask] = []
        relay.picker._pick = self._hold
        self.holds = True

    def _hold(self, ask: Ask):
        self.asked.append(ask)
        if self.holds:
            return Held(ask.id, ask.attempt)
        return Go(ask.id, ask.attempt, tuple(self.relay.engine.addresses[:1]))

    def answer(self, message) -> None:
        for writer in self.relay.picker._writers:
            writer.write(frame([message]))

    def go(self) -> None:
        ask = self.asked[-1]
        self.answer(Go(ask.id, ask.attempt, tuple(self.relay.engine.addresses[:1]), 60.0, (("x-limit", "3"),)))

    def refuse(self, status: int = 503) -> None:
        ask = self.asked[-1]
        self.answer(Refuse(ask.id, ask.attempt, status, "no_replica", "no replica", (("retry-after", "5"),)))


@pytest.fixture
async def holding(make) -> Holding:
    return Holding(await make(replace(QUICK, waiting_s=0.15)))


async def test_a_stream_that_waits_gets_a_head_and_comments_and_then_its_answer(holding):
    task = asyncio.create_task(holding.relay.post(STREAM))
    await asyncio.sleep(0.4)
    holding.go()
    status, headers, body = await task
    assert (status, headers["content-type"].partition(";")[0]) == (200, "text/event-stream")
    assert body.startswith(2 * WAITING)
    assert same(body.replace(WAITING, b""), STREAM)
    report = await holding.relay.report()
    assert (report["status"], report["error"]) == (200, "")


async def test_before_that_a_refusal_has_its_status_so_that_clients_try_again(holding):
    task = asyncio.create_task(holding.relay.post(STREAM))
    await asyncio.sleep(0.05)
    holding.refuse()
    status, headers, body = await task
    assert (status, headers["retry-after"]) == (503, "5")
    assert WAITING not in body


async def test_an_error_after_the_head_is_an_event(holding):
    task = asyncio.create_task(holding.relay.post(STREAM))
    await asyncio.sleep(0.2)
    holding.refuse()
    status, _, body = await task
    assert (status, body[: len(WAITING)]) == (200, WAITING)
    assert json.loads(body.removeprefix(WAITING).removeprefix(b"data: "))["error"]["code"] == "no_replica"
    report = await holding.relay.report()
    assert (report["status"], report["error"]) == (200, "no_replica")


@pytest.mark.parametrize(
    "do",
    [
        Do(status=400, body=b'{"error":\n{"code":"bad"}}'),
        Do(cut=0, error=b':e 400 final\ndata: {"error":{"code":"bad"}}\n\n'),
    ],
    ids=["plain", "frame"],
)
async def test_an_engines_error_after_the_head_is_an_event_too(holding, do):
    holding.relay.script(do)
    task = asyncio.create_task(holding.relay.post(STREAM))
    await asyncio.sleep(0.2)
    holding.go()
    status, _, body = await task
    event = body.replace(WAITING, b"")
    assert status == 200
    assert event.count(b"\n\n") == 1
    assert json.loads(event.removeprefix(b"data: "))["error"]["code"] == "bad"


async def test_a_stream_of_an_engine_without_frames_follows_the_comments(holding):
    stream = b'data: {"choices":[{"text":"a"}]}\n\ndata: [DONE]\n\n'
    holding.relay.script(Do(status=200, body=stream, headers=(("content-type", "text/event-stream"),)))
    task = asyncio.create_task(holding.relay.post(STREAM))
    await asyncio.sleep(0.2)
    holding.go()
    assert (await task)[2].replace(WAITING, b"") == stream


async def test_a_whole_answer_waits_without_a_byte(holding):
    task = asyncio.create_task(holding.relay.post(WHOLE))
    await asyncio.sleep(0.3)
    holding.go()
    status, headers, body = await task
    assert (status, headers["x-limit"]) == (200, "3")
    assert same(body, WHOLE)


async def test_a_long_prefill_gets_comments_only_after_a_head(holding):
    holding.holds = False
    beats = Do(frames=b":h\n\n" * 8 + b":t 0 5\ndata: {}\n\ndata: [DONE]\n\n", split=4, pause_s=0.05)
    holding.relay.script(beats)
    assert WAITING not in (await holding.relay.post(STREAM))[2]
    holding.holds = True
    task = asyncio.create_task(holding.relay.post(STREAM))
    await asyncio.sleep(0.2)
    holding.go()
    assert (await task)[2].count(WAITING) >= 3


async def test_a_client_that_leaves_while_it_waits_ends_the_request(holding):
    client = asyncio.create_task(holding.relay.post(STREAM))
    await eventually(lambda: holding.asked)
    await asyncio.sleep(0.2)
    client.cancel()
    report = await holding.relay.report()
    assert report["error"] == "client_left"
    assert holding.relay.shared.bodies.kept == 0
    assert holding.relay.engine.seen == []
