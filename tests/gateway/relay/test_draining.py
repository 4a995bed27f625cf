"""Answers of an engine that drains go on at another one, which is told where their keys and values are."""

from __future__ import annotations

import re

import pytest

from inflight_gateway.link.wire import Ask, Left, Running
from inflight_gateway.relay import generation
from tests.gateway.relay.conftest import eventually
from tests.gateway.relay.fake_engine import Do, frames_for
from tests.gateway.relay.test_continue import STREAM, WHOLE, same, undisturbed

NAME = "10.0.0.1:8001 uid-1 identity 1700000000 mac"
NOTE = f":d {NAME}\n\n".encode()
TWO = {**STREAM, "n": 2, "max_tokens": 3}
ENDS = {asked["max_tokens"]: [m.end() for m in re.finditer(rb"\n\n", frames_for(asked))] for asked in (STREAM, TWO)}


def sources(relay) -> list[str | None]:
    """Returns the name in each continuation."""
    return [seen.json["inflight_continuation"].get("source") for seen in relay.engine.seen if b"inflight_" in seen.body]


def drained(asked: dict, at: int) -> bytes:
    frames = frames_for(asked)
    return frames[:at] + NOTE + frames[at:]


@pytest.mark.parametrize("asked", [STREAM, WHOLE, TWO], ids=["stream", "whole", "two"])
async def test_an_answer_moves_wherever_the_engine_says_that_it_drains(relay, asked):
    frames = frames_for(asked)
    ends = [match.end() for match in re.finditer(rb"\n\n", frames)]
    for end in ends[:-4]:
        at = end + len(NOTE)
        relay.script(Do(frames=drained(asked, end), hang=at), Do())
        before = len(relay.engine.seen)
        status, _, body = await relay.post(asked)
        assert status == 200
        assert same(body, asked), end
        assert len(relay.engine.seen) == before + 2, end
        await eventually(relay.engine.seen[before].cancelled.is_set)
    assert len(sources(relay)) > 2
    assert set(sources(relay)) == {NAME}
    kinds = [type(message) for message in relay.picker.told if isinstance(message, (Ask, Left))]
    assert kinds == [Ask, Left, Ask] * (len(kinds) // 3)
    moved = [ask for ask in relay.picker.asked if ask.attempt == 2]
    assert {ask.avoid for ask in moved} == {(relay.engine.addresses[0],)}
    assert all(report["error"] == "" for report in relay.reports)


@pytest.mark.parametrize("asked", [STREAM, WHOLE], ids=["stream", "whole"])
async def test_an_answer_that_no_other_engine_takes_ends_where_it_is(relay, asked):
    for match in re.finditer(rb"\n\n", frames_for(asked)):
        before = len(relay.engine.seen)
        relay.script(Do(frames=drained(asked, match.end()), split=60, pause_s=0.001), Do(refuse=503))
        status, _, body = await relay.post(asked)
        assert (status, same(body, asked)) == (200, True)
        assert len(relay.engine.seen) == before + 1
    stayed = [message for message in relay.picker.told if isinstance(message, Running)]
    assert {(each.ask.attempt, each.address) for each in stayed} == {(2, relay.engine.addresses[0])}


async def test_a_picker_that_knows_no_other_engine_does_not_make_the_answer_begin_again_where_it_is(make):
    relay = await make(engines=1)
    for end in ENDS[7][:-4]:
        before = len(relay.engine.seen)
        relay.script(Do(frames=drained(STREAM, end), split=60, pause_s=0.001))
        status, _, body = await relay.post(STREAM)
        assert (status, same(body, STREAM)) == (200, True)
        assert len(relay.engine.seen) == before + 1


async def test_another_engine_is_asked_for_again_until_there_is_one(relay, monkeypatch):
    monkeypatch.setattr(generation, "_MOVE_AGAIN_S", 0.01)
    end = ENDS[7][5]
    at = end + len(NOTE)
    relay.script(Do(frames=drained(STREAM, end), hang=at), *[Do(refuse=503)] * 5, Do())
    status, _, body = await relay.post(STREAM)
    assert (status, same(body, STREAM)) == (200, True)
    assert sources(relay) == [NAME]
    assert [ask.attempt for ask in relay.picker.asked] == [*range(1, 8)]


async def test_an_engine_that_dies_while_another_is_asked_makes_no_difference(relay):
    for end in ENDS[7][:-4]:
        for later in (0, 1, 40):
            relay.script(Do(frames=drained(STREAM, end), cut=end + len(NOTE) + later), Do())
            status, _, body = await relay.post(STREAM)
            assert (status, same(body, STREAM)) == (200, True)
    assert set(sources(relay)) == {NAME}


async def test_an_answer_moves_again_where_the_next_engine_drains_too(relay):
    first = ENDS[7][4]
    other = NOTE.replace(b"uid-1", b"uid-2")
    relay.script(Do(frames=drained(STREAM, first), hang=first + len(NOTE)), Do(), Do())
    undrained = relay.engine.script

    def script(turn):
        do = undrained(turn)
        if len(relay.engine.seen) == 2:
            frames = frames_for(relay.engine.seen[1].json)
            at = [match.end() for match in re.finditer(rb"\n\n", frames)][2]
            return Do(frames=frames[:at] + other + frames[at:], hang=at + len(other))
        return do

    relay.engine.script = script
    status, _, body = await relay.post(STREAM)
    assert (status, same(body, STREAM)) == (200, True)
    assert sources(relay) == [NAME, NAME.replace("uid-1", "uid-2")]


@pytest.mark.parametrize("number", [5, 6])
async def test_an_answer_that_may_not_be_continued_stays(make, number):
    relay = await make(continuation=False)
    end = ENDS[7][number]
    relay.script(Do(frames=drained(STREAM, end)))
    status, _, body = await relay.post(STREAM)
    assert (status, body) == (200, undisturbed(STREAM))
    assert len(relay.engine.seen) == 1


@pytest.mark.parametrize(
    "name", ['a" b', "a\\u0000", "é", "x" * 600, ""], ids=["quote", "escape", "no ASCII", "long", "empty"]
)
async def test_a_name_that_is_none_is_an_answer_that_cannot_be_read(relay, name):
    end = ENDS[7][0]
    frames = frames_for(STREAM)[:end] + f":d {name}\n\n".encode()
    relay.script(Do(frames=frames, hang=len(frames)), Do())
    status, _, body = await relay.post(STREAM)
    assert (status, same(body, STREAM)) == (200, True)
    assert sources(relay) == []


HANDED_OVER = NOTE.replace(b":d ", b":c 5\n:d ")


@pytest.mark.parametrize("asked", [STREAM, WHOLE, TWO], ids=["stream", "whole", "two"])
async def test_an_engine_of_the_prefill_set_is_asked_to_hand_over_and_the_next_one_is_not(relay, asked):
    relay.picker.prefill = True
    frames = frames_for(asked)
    ends = [match.end() for match in re.finditer(rb"\n\n", frames)]
    end = next(end for end in ends if b":t " in frames[:end])
    handing = frames[:end] + HANDED_OVER + frames[end:]
    relay.script(Do(frames=handing, hang=end + len(HANDED_OVER)), Do())
    status, _, body = await relay.post(asked)
    assert (status, same(body, asked)) == (200, True)
    first, second = relay.engine.seen
    assert (first.headers["x-inflight-hand-over"], second.headers.get("x-inflight-hand-over")) == ("1", None)
    assert (sources(relay), second.json["inflight_continuation"]["cached_tokens"]) == ([NAME], 5)
    assert [ask.handed_over for ask in relay.picker.asked] == [False, True]


async def test_clients_cannot_ask_for_a_hand_over(relay):
    await relay.post(STREAM, headers={"x-inflight-hand-over": "1"})
    assert "x-inflight-hand-over" not in relay.engine.seen[0].headers


@pytest.mark.parametrize("count", [b"-1", b"x", b"99999999999"])
async def test_a_count_that_no_prompt_has_fails_the_attempt(relay, count):
    frames = frames_for(STREAM)
    relay.script(Do(frames=b":c " + count + b"\n\n" + frames), Do())
    status, _, body = await relay.post(STREAM)
    assert (status, same(body, STREAM)) == (200, True)
    assert len(relay.engine.seen) == 2


async def test_an_engine_that_drains_before_the_first_token_hands_nothing_over(relay):
    frames = frames_for(STREAM)
    relay.script(Do(frames=NOTE + frames, hang=len(NOTE)), Do())
    status, _, body = await relay.post(STREAM)
    assert (status, same(body, STREAM)) == (200, True)
    assert [ask.handed_over for ask in relay.picker.asked] == [False, False]


async def test_an_engine_that_dies_after_a_hand_over_gives_nothing_to_the_next_one(relay):
    first = ENDS[7][4]
    relay.script(Do(frames=drained(STREAM, first), hang=first + len(NOTE)), Do(cut=200), Do())
    status, _, body = await relay.post(STREAM)
    assert (status, same(body, STREAM)) == (200, True)
    assert [ask.handed_over for ask in relay.picker.asked] == [False, True, False]


async def test_an_engine_that_refuses_the_name_of_a_source_goes_on_without_it(relay):
    first = ENDS[7][4]
    relay.script(Do(frames=drained(STREAM, first), hang=first + len(NOTE)), Do(status=400, body=b"{}"), Do())
    status, _, body = await relay.post(STREAM)
    assert (status, same(body, STREAM)) == (200, True)
    assert sources(relay) == [NAME, None]
    assert relay.engine.seen[1].address == relay.engine.seen[2].address
    assert len(relay.picker.asked) == 2


async def test_an_engine_that_refuses_the_continuation_itself_ends_the_answer(relay):
    first = ENDS[7][4]
    relay.script(Do(frames=drained(STREAM, first), hang=first + len(NOTE)), Do(status=400, body=b"{}"))
    _, _, body = await relay.post(STREAM)
    assert b"not_continued" in body
    assert len(relay.engine.seen) == 3


async def test_an_answer_that_stayed_and_then_moved_is_left_where_it_is(relay, monkeypatch):
    monkeypatch.setattr(generation, "_MOVE_AGAIN_S", 0.05)
    frames, (first, second) = frames_for(STREAM), ENDS[7][4:6]
    twice = frames[:first] + NOTE + frames[first:second] + NOTE
    relay.script(
        Do(frames=twice, hang=len(twice), split=len(frames[:first] + NOTE), pause_s=0.02),
        Do(refuse=503),
        Do(split=30, pause_s=0.02),
    )
    status, _, body = await relay.post(STREAM)
    assert (status, same(body, STREAM)) == (200, True)
    assert [ask.attempt for ask in relay.picker.asked] == [1, 2, 3]
