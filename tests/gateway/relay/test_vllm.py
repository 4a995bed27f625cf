"""Answers of vLLM's servers: continued from their token ids, else retried before their first byte."""

from __future__ import annotations

import asyncio
import json
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest

from inflight_base.manifest.engines import EngineType
from inflight_gateway.relay.answers.answer import Answer
from inflight_gateway.relay.answers.vllm import stream_of
from tests.gateway.relay.conftest import QUICK, Setup
from tests.gateway.relay.fake_engine import Do, frames_for
from tests.gateway.relay.fake_vllm import CONTEXT, CORE_DIED, CREATED, HALF, Does, FakeVllm, events, prompt_ids
from tests.gateway.relay.test_continue import same

RECORDED = json.loads((Path(__file__).parent / "vllm_0_32.json").read_text())
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "hi"}]
ASKED = {
    CHAT: {"model": "m", "stream": True, "messages": MESSAGES, "max_tokens": 12, "temperature": 0, "ignore_eos": True},
    TEXT: {"model": "m", "stream": True, "prompt": "hello", "max_tokens": 12, "temperature": 0, "ignore_eos": True},
}
PATHS = pytest.mark.parametrize("path", [CHAT, TEXT], ids=["chat", "text"])
FRAMED = {"model": "m", "stream": True, "max_tokens": 7, "messages": MESSAGES}
VLLM = EngineType("vllm", plugin=True)


async def _make(make, tuning=QUICK, **changes) -> Setup:
    return await make(replace(tuning, mute_s=2.0), engine=FakeVllm(), of_engines=VLLM, **{"max_attempts": 6, **changes})


@pytest.fixture
async def vllm(make) -> Setup:
    return await _make(make)


def parsed(body: bytes) -> list[dict]:
    assert body.endswith(b"data: [DONE]\n\n")
    return [json.loads(one.removeprefix(b"data: ")) for one in body.split(b"\n\n")[:-2]]


def text(chunks: list[dict]) -> str:
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return "".join(choice["text"] if "text" in choice else choice["delta"]["content"] for choice in choices)


def undisturbed(asked: dict, path: str) -> list[dict]:
    return parsed(b"".join(events(asked, path, "x", 0, Does())))


def check(body: bytes, asked: dict, path: str) -> None:
    """Asserts that it is the undisturbed answer, but for the time of its first chunk and chunks without text."""
    got, expected = parsed(body), undisturbed(asked, path)
    assert text(got) == text(expected)
    assert len({(chunk["id"], chunk["created"], chunk["object"], chunk["model"]) for chunk in got}) == 1
    assert got[0].keys() == expected[0].keys()
    assert [c["finish_reason"] for chunk in got for c in chunk["choices"] if c["finish_reason"]] == ["length"]
    shapes = {(*chunk["choices"][0],) for chunk in expected if chunk["choices"]}
    assert {(*chunk["choices"][0],) for chunk in got if chunk["choices"]} <= shapes
    assert got[-1].get("usage") == expected[-1].get("usage")
    assert b'ids":[' not in body


def shape(value):
    if isinstance(value, dict):
        return {name: shape(one) for name, one in value.items()}
    return type(value)


@pytest.mark.parametrize("name", ["chat plain stream", "chat ids", "text plain stream", "text ids"])
def test_the_stand_in_sends_the_fields_of_the_real_server(name):
    recorded = RECORDED[name]
    real = parsed(recorded["data"].encode())
    made = parsed(b"".join(events({"model": "m", **recorded["body"]}, recorded["path"], "x", 1, Does())))

    def shapes(chunks: list[dict]) -> set[str]:
        # A fingerprint is in the last chunk of each stream; the gateway asks for counts, which then have it.
        return {
            json.dumps(shape({k: v for k, v in chunk.items() if k != "system_fingerprint"}), default=str)
            for chunk in chunks
        } | {
            json.dumps([shape(choice) for choice in chunk["choices"]], default=str) for chunk in chunks
        }  # fmt: skip

    assert shapes(made) == shapes(real)


@PATHS
@pytest.mark.parametrize("counts", [False, True])
async def test_an_undisturbed_stream_is_that_of_the_engine_without_ids(vllm, path, counts):
    asked = {**ASKED[path], **({"stream_options": {"include_usage": True}} if counts else {})}
    status, headers, body = await vllm.post(asked, path)
    assert status == 200
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    check(body, asked, path)
    sent = vllm.engine.seen[0].json
    assert sent == {**asked, "stream_options": {"include_usage": True}, "return_token_ids": True}
    report = await vllm.report()
    assert (report["prompt_tokens"], report["completion_tokens"]) == (3, 12)


@PATHS
@pytest.mark.parametrize("merged", [1, 2, 3])
async def test_a_cut_at_any_place_makes_no_difference(make, path, merged):
    vllm = await _make(make)
    asked = {**ASKED[path], "max_tokens": 7, "stream_options": {"include_usage": True}}
    length = len(b"".join(events({**asked, "return_token_ids": True}, path, "x" * 32, CREATED, Does(merged=merged))))
    for cut in range(0, length - 1, 29):
        vllm.script(Does(cut=cut, merged=merged), Does(merged=3))
        status, _, body = await vllm.post(asked, path)
        assert status == 200
        check(body, asked, path)


async def test_an_answer_survives_several_engines(vllm):
    asked = ASKED[CHAT]
    vllm.script(Does(cut=1500), Does(cut=900), Does(cut=700), Does())
    _, _, body = await vllm.post(asked)
    check(body, asked, CHAT)
    report = await vllm.report()
    assert (report["continuations"], report["completion_tokens"], report["prompt_tokens"]) == (3, 12, 3)


async def test_a_continuation_has_the_ids_and_what_is_left_of_the_numbers(vllm):
    asked = {
        **ASKED[CHAT],
        **{"max_tokens": None, "max_completion_tokens": 9, "seed": 40, "min_tokens": 3, "top_p": 0.5},
        **{"stop": None, "tools": [], "n": 1, "frequency_penalty": 0, "logprobs": False},
        **{"chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "low"},
        **{"add_generation_prompt": False, "continue_final_message": True},
    }
    vllm.script(Does(cut=1400), Does())
    _, _, body = await vllm.post(asked)
    check(body, asked, CHAT)
    again = next(seen for seen in vllm.engine.seen if seen.target == TEXT).json
    done = len(again["prompt"]) - 3
    assert done > 2
    assert again["prompt"][:3] == prompt_ids(asked)
    assert again["prompt"][-1] % HALF
    assert {name: value for name, value in again.items() if name != "prompt"} == {
        **{"model": "m", "temperature": 0, "ignore_eos": True, "top_p": 0.5},
        **{"stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True},
        **{"max_tokens": 9 - done, "seed": 40 + done, "min_tokens": max(0, 3 - done)},
    }


@pytest.mark.parametrize(("path", "total"), [(CHAT, CONTEXT - 3), (TEXT, 16)], ids=["chat", "text"])
async def test_an_answer_without_a_bound_is_continued_to_its_end(vllm, path, total):
    asked = {**ASKED[path], "max_tokens": None}
    vllm.script(Does(cut=1200), Does(cut=700), Does())
    _, _, body = await vllm.post(asked, path)
    check(body, asked, path)
    assert [seen.target for seen in vllm.engine.seen].count("/tokenize") == (path == CHAT)
    again = [seen.json for seen in vllm.engine.seen if isinstance(seen.json.get("prompt"), list)]
    assert [len(one["prompt"]) - 3 + one["max_tokens"] for one in again] == [total, total]


async def test_an_engine_process_that_dies_has_its_answers_continued(vllm):
    recorded = RECORDED["core killed"]["data"].encode()
    assert recorded.endswith(CORE_DIED)
    whole = events({**ASKED[CHAT], "return_token_ids": True}, CHAT, "x" * 32, CREATED, Does())
    cut = sum(map(len, whole[:5]))
    vllm.script(Does(cut=cut, error=CORE_DIED), Does())
    _, _, body = await vllm.post(ASKED[CHAT])
    check(body, ASKED[CHAT], CHAT)


async def test_a_request_that_the_server_aborts_goes_on_elsewhere(vllm):
    aborted = events(ASKED[CHAT], CHAT, "x", 0, Does())[-2].replace(b'"length"', b'"abort"')
    vllm.script(Does(cut=1300, error=aborted), Does())
    _, _, body = await vllm.post(ASKED[CHAT])
    check(body, ASKED[CHAT], CHAT)


NOT_CONTINUED = {
    "tools": {"tools": [{"type": "function", "function": {"name": "f"}}]},
    "no choice of tools": {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "none"},
    "format": {"response_format": {"type": "json_object"}},
    "grammar": {"structured_outputs": {"choice": ["a", "b"]}},
    "logprobs": {"logprobs": True},
    "penalty": {"frequency_penalty": 0.5},
    "stop": {"stop": ["x"]},
    "two": {"n": 2},
    "unknown": {"a_field_of_tomorrow": 1},
    "ids": {"return_token_ids": True},
    "counts": {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    "image": {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
}


@pytest.mark.parametrize("more", NOT_CONTINUED.values(), ids=NOT_CONTINUED)
async def test_other_requests_are_retried_before_their_first_byte_only(vllm, more):
    asked = {**ASKED[CHAT], **more}
    vllm.script(Does(cut=0), Does())
    status, _, body = await vllm.post(asked)
    assert (status, body.endswith(b"[DONE]\n\n")) == (200, True)
    assert len(vllm.engine.seen) == 2
    assert vllm.engine.seen[1].json == vllm.engine.seen[0].json
    vllm.script(Does(cut=500), Does())
    with pytest.raises(Exception, match=r"[Pp]ayload|[Tt]ransfer"):
        await vllm.post(asked)
    assert len(vllm.engine.seen) == 3
    assert (await vllm.report(1))["error"] == "engine_lost"


async def test_text_that_a_parser_took_out_is_not_continued(vllm):
    vllm.script(Does(cut=1300, reasoning=True), Does())
    _, _, body = await vllm.post(ASKED[CHAT])
    assert b'"engine_lost"' in body.split(b"\n\n")[-2]
    assert len(vllm.engine.seen) == 1


@pytest.mark.parametrize(("delta", "continues"), [({}, False), ({"content": ""}, True)])
def test_tokens_whose_text_a_parser_keeps_are_not_continued(delta, continues):
    stream = stream_of(json.dumps(ASKED[CHAT]).encode(), CHAT.encode())
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None, "token_ids": [7]}
    event = json.dumps({"id": "a", "choices": [choice]}, separators=(",", ":"))
    answer = Answer()
    (frame,) = stream.reader(answer).feed(f"data: {event}\n\n".encode())
    answer.take(frame.notes)
    assert (answer.num_tokens, answer.continues) == (1, continues)


async def test_an_old_server_without_ids_streams_and_is_not_continued(vllm):
    vllm.script(Does(old=True))
    _, _, body = await vllm.post(ASKED[CHAT])
    check(body, ASKED[CHAT], CHAT)
    vllm.script(Does(old=True, cut=1300), Does())
    _, _, body = await vllm.post(ASKED[CHAT])
    assert b'"engine_lost"' in body.split(b"\n\n")[-2]


async def test_a_comment_is_no_first_byte_of_a_stream_that_only_its_engine_can_continue(vllm):
    asked = {**ASKED[CHAT], "stop": ["never"]}
    vllm.script(Does(cut=len(b": keep-alive\n\n"), kept_alive=True), Does())
    status, _, body = await vllm.post(asked)
    assert status == 200
    check(body, asked, CHAT)
    assert len(vllm.engine.seen) == 2


async def test_comments_of_a_stream_that_waits_for_long_reach_the_client(make):
    """Else proxies would cut it."""

    class Waiting(FakeVllm):
        async def _answer(self, do, seen, number, reader, writer):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
            for comment in (b": one\n\n", b": two\n\n"):
                await asyncio.sleep(0.4)
                writer.write(comment)
            return False

    relay = await make(replace(QUICK, waiting_s=0.3), engine=Waiting(), of_engines=VLLM, max_attempts=1)
    assert (await relay.post({**ASKED[CHAT], "stop": ["never"]}))[2] == b": one\n\n: two\n\n"


async def test_a_request_that_an_engine_refuses_is_answered_with_its_error(vllm):
    bad = RECORDED["chat bad"]["data"].encode()
    vllm.script(Do(status=400, body=bad))
    status, _, body = await vllm.post(ASKED[CHAT])
    assert (status, body) == (400, bad)


@pytest.mark.parametrize("kept_alive", [False, True])
async def test_a_hung_engine_is_noticed_sooner_with_heartbeats(vllm, kept_alive):
    begun = time.monotonic()
    vllm.script(Does(hang=1300, kept_alive=kept_alive), Does())
    _, _, body = await vllm.post(ASKED[CHAT])
    check(body, ASKED[CHAT], CHAT)
    assert (time.monotonic() - begun > 2.0) is not kept_alive


async def test_an_answer_in_one_piece_may_take_its_time_and_is_retried(make):
    vllm = await _make(make, replace(QUICK, head_s=0.1), max_attempts=3)
    asked = {**ASKED[CHAT], "stream": False}
    vllm.script(Do(no_head=True), Do(status=500, body=b"{}"), Do(status=200, body=b'{"whole":1}', pause_s=0.5))
    assert (await vllm.post(asked))[::2] == (200, b'{"whole":1}')
    assert len({seen.address for seen in vllm.engine.seen}) == 3
    vllm.script(Do(status=500, body=b'{"error":1}'))
    assert (await vllm.post(asked))[::2] == (500, b'{"error":1}')


@pytest.mark.parametrize("earlier", [VLLM, EngineType("custom")], ids=["vllm", "custom"])
async def test_pods_of_an_earlier_type_still_take_their_time_for_a_whole_answer(make, earlier):
    """Until Inflight's engines have replaced them."""
    tuning = replace(QUICK, head_s=0.1)
    relay = await make(tuning, engines=1, engine=FakeVllm(), of_engines=earlier, max_attempts=1)
    asked = {**ASKED[CHAT], "stream": False}
    relay.script(Do(status=200, body=b'{"whole":1}'))
    assert (await relay.post(asked))[0] == 200
    await relay.configure(engine=EngineType())
    relay.script(Do(status=200, body=b'{"whole":2}', pause_s=0.5))
    assert (await relay.post(asked))[::2] == (200, b'{"whole":2}')


async def test_an_engine_that_once_sent_progress_frames_has_to_begin_in_time(make):
    relay = await make(replace(QUICK, head_s=0.1), engines=1, max_attempts=1)
    asked = {"model": "m", "messages": MESSAGES, "max_tokens": 3}
    relay.script(Do(status=200, body=b"{}"), Do(), Do(pause_s=0.5))
    assert [(await relay.post(asked))[0] for _ in range(3)] == [200, 200, 504]


async def test_another_engine_of_no_known_type_is_retried_before_its_first_byte(make):
    other = await make(replace(QUICK, head_s=0.1), engine=FakeVllm(), of_engines=EngineType("custom"))
    other.script(Does(cut=0), Does(pause_s=0.3))
    _, _, body = await other.post(ASKED[CHAT])
    check(body, ASKED[CHAT], CHAT)
    assert "return_token_ids" not in other.engine.seen[0].json


async def test_counts_are_made_where_only_they_are_missing(vllm):
    asked = {**ASKED[CHAT], "stream_options": {"include_usage": True}}
    whole = events({**asked, "return_token_ids": True}, CHAT, "x" * 32, CREATED, Does())
    vllm.script(Does(cut=sum(map(len, whole[:-2]))))
    _, _, body = await vllm.post(asked)
    check(body, asked, CHAT)
    assert len(vllm.engine.seen) == 1
    assert re.search(rb'"usage":\{"prompt_tokens":3,"total_tokens":15,"completion_tokens":12\}', body)


@pytest.mark.parametrize("asked", [FRAMED, {**FRAMED, "stream": False}], ids=["stream", "whole"])
async def test_a_pod_that_sends_frames_is_continued_by_them_while_its_service_becomes_vllm(make, asked):
    relay = await make(of_engines=VLLM, max_attempts=6)
    frames = frames_for(asked)
    for cut in (0, 40, len(frames) // 2, len(frames) - 20):
        relay.script(Do(cut=cut), Do())
        status, _, body = await relay.post(asked)
        assert status == 200
        assert same(body, asked), cut
    given = [seen.json.get("inflight_continuation") for seen in relay.engine.seen]
    assert any(given)
    assert {seen.target for seen in relay.engine.seen} == {CHAT}


@PATHS
async def test_a_pod_that_was_known_as_vllm_is_continued_after_its_service_becomes_another_type(vllm, path):
    assert (await vllm.post(ASKED[path], path))[0] == 200
    await vllm.configure(engine=EngineType())
    whole = b"".join(events(ASKED[path], path, "x", 0, Does()))
    vllm.script(Does(cut=len(whole) // 2), Does())
    status, _, body = await vllm.post(ASKED[path], path)
    assert status == 200
    check(body, ASKED[path], path)
