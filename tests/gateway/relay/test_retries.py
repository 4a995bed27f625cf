"""Engines that do not take a request, within one attempt; and failures of services without continuation."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace

import pytest

from inflight_gateway.types import PromptBlocks
from tests.gateway.relay.conftest import QUICK
from tests.gateway.relay.fake_engine import Do, frames_for
from tests.gateway.relay.test_continue import LOST, STREAM, WHOLE, same

FRAMES = frames_for(STREAM)
MIDDLE = FRAMES.index(b"\n\n", len(FRAMES) // 2) + 2
BUSY = Do(status=503, body=b'{"error":{"message":"drains"}}', headers=(("retry-after", "7"),))


@pytest.fixture
def three(relay):
    """A relay whose picks name three engines."""
    relay.picker.picks = 3
    return relay


@pytest.mark.parametrize("asked", [STREAM, WHOLE], ids=["stream", "whole"])
async def test_an_engine_that_refuses_its_connection_costs_a_pause_and_no_attempt(three, asked):
    await three.engine.stop(three.engine.addresses[0])
    begun = time.monotonic()
    status, _, body = await three.post(asked)
    assert status == 200
    assert same(body, asked)
    assert time.monotonic() - begun >= 0.025
    report = await three.report()
    assert report["endpoints"] == [three.engine.addresses[1]]
    assert [ask.attempt for ask in three.picker.asked] == [1]
    (answering,) = three.picker.answering
    assert (answering.address, answering.refused) == (three.engine.addresses[1], (three.engine.addresses[0],))


async def test_an_engine_that_answers_503_is_passed_over_and_its_connection_kept(three):
    three.script(BUSY, BUSY, Do())
    status, headers, body = await three.post(STREAM)
    assert (status, headers.get("retry-after")) == (200, None)
    assert same(body, STREAM)
    assert [seen.address for seen in three.engine.seen] == three.engine.addresses[:3]
    await three.report()
    assert three.picker.answering[0].refused == tuple(three.engine.addresses[:2])
    assert len(three.shared.pool._idle_until) == 3


async def test_the_503_of_the_last_engine_is_passed_on(three):
    three.script(BUSY)
    status, headers, body = await three.post(STREAM)
    assert (status, body, headers["retry-after"]) == (503, BUSY.body, "7")
    assert len(three.engine.seen) == 3
    assert len(three.picker.asked) == 1


@pytest.mark.parametrize("status", [400, 429, 500, 502])
async def test_other_answers_are_the_engines_word(three, status):
    three.script(Do(status=status, body=b"{}"))
    assert (await three.post(STREAM))[0] == status
    assert len(three.engine.seen) == 1


async def test_a_loss_is_no_refusal_and_not_tried_again_within_the_attempt(three):
    """The request may have killed the engine."""
    three.script(Do(no_head=True), Do())
    status, _, body = await three.post(STREAM)
    assert status == 200
    assert same(body, STREAM)
    assert [ask.avoid for ask in three.picker.asked] == [(), (three.engine.addresses[0],)]


async def test_after_all_engines_of_a_pick_refused_others_are_asked_for(three):
    for address in three.engine.addresses[:3]:
        await three.engine.stop(address)
    status, _, body = await three.post(STREAM)
    assert status == 200
    assert same(body, STREAM)
    assert three.picker.asked[1].avoid == tuple(three.engine.addresses[:3])
    assert three.engine.seen[0].address == three.engine.addresses[3]


async def test_a_client_that_leaves_during_the_pause_ends_the_request(three, monkeypatch):
    monkeypatch.setattr("inflight_gateway.relay.attempt._MIN_PAUSE_S", 1.0)
    monkeypatch.setattr("inflight_gateway.relay.attempt._MAX_PAUSE_S", 1.0)
    await three.engine.stop(three.engine.addresses[0])
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(three.post(STREAM), 0.4)
    assert (await three.report())["error"] == "client_left"
    await asyncio.sleep(1.0)
    assert three.engine.seen == []


async def test_without_continuation_a_failure_before_the_first_token_is_tried_again(make):
    relay = await make(continuation=False)
    relay.script(Do(cut=FRAMES.index(b":t ")), Do())
    assert same((await relay.post(STREAM))[2], STREAM)


@pytest.mark.parametrize("failure", [Do(cut=MIDDLE), Do(cut=MIDDLE, error=LOST), Do(hang=MIDDLE)])
async def test_without_continuation_a_failure_after_the_first_token_ends_the_answer(make, failure):
    relay = await make(continuation=False)
    relay.script(failure, Do())
    status, _, body = await relay.post(STREAM)
    assert status == 200
    assert b"[DONE]" not in body
    assert "error" in json.loads(body.rstrip().rsplit(b"data: ", 1)[1])
    assert len(relay.picker.asked) == 1
    assert (await relay.report())["completion_tokens"] > 0


async def test_without_continuation_a_whole_answer_that_failed_is_an_error(make):
    relay = await make(continuation=False)
    relay.script(Do(cut=len(frames_for(WHOLE)) // 2), Do())
    status, _, body = await relay.post(WHOLE)
    assert (status, json.loads(body)["error"]["code"]) == (502, "engine_lost")


async def test_without_continuation_a_head_may_take_as_long_as_the_answer(make):
    """An engine without progress frames sends it with the whole answer."""
    relay = await make(replace(QUICK, head_s=0.05), continuation=False)
    relay.script(Do(status=200, body=b'{"choices":[]}', pause_s=0.4))
    assert (await relay.post(WHOLE))[0] == 200


TOLD = b":b 16 20 AQAAAAAAAAA=\n\n:t 0 5\n"
ENDS = {
    True: TOLD + b'data: {"choices":[]}\n\ndata: [DONE]\n\n',
    False: TOLD + b"\n:f 0 stop\n:u {}\n:w 200\ndata: {}\n\n",
}


@pytest.mark.parametrize("asked", [STREAM, WHOLE], ids=["stream", "whole"])
async def test_the_picker_hears_of_the_prompts_blocks_once_with_the_first_token(three, asked):
    three.script(Do(frames=ENDS[asked is STREAM]))
    status, _, body = await three.post(asked)
    assert status == 200
    assert b":b" not in body
    await three.report()
    assert [each.blocks for each in three.picker.answering] == [PromptBlocks(16, 20, b"\1" + bytes(7))]
