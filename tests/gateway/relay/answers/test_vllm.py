"""Recorded streams of a real vLLM 0.32, read and continued."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from inflight_gateway.relay.answers.answer import Answer, Ended, Ending
from inflight_gateway.relay.answers.vllm import CHAT, TEXT, ends_within_character, stream_of

RECORDED = json.loads((Path(__file__).parents[1] / "vllm_0_32.json").read_text())
ASKED = {"model": "smollm2", **RECORDED["chat ids"]["body"]}


def asked(**fields) -> bytes:
    return json.dumps({"stream": True, "messages": [{"role": "user", "content": "hi"}], **fields}).encode()


def text(data: bytes) -> str:
    chunks = [json.loads(event[6:]) for event in data.split(b"\n\n") if event.startswith(b"data: {")]
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


def read(reader, answer: Answer, data: bytes) -> bytes:
    """Takes the frames; returns what a client gets."""
    frames = reader.feed(data)
    for frame in frames:
        answer.take(frame.notes)
    return b"".join(frame.data for frame in frames)


def test_a_real_continuation_completes_the_real_answer():
    whole = RECORDED["chat ids"]["data"].encode()
    fields = {name: value for name, value in ASKED.items() if name != "return_token_ids"}
    stream = stream_of(json.dumps(fields).encode(), CHAT)
    answer = Answer(max_tokens=24)
    events = whole.split(b"\n\n")
    got = read(stream.reader(answer), answer, b"\n\n".join(events[:6]) + b"\n\n")
    assert (answer.num_tokens, text(got)) == (5, text(b"\n\n".join(events[:6])))
    recorded = RECORDED["chat continued 5"]
    assert json.loads(stream.continued(answer)) == {"model": "smollm2", **recorded["body"]}
    got += read(stream.reader(answer), answer, recorded["data"].encode())
    assert text(got) == text(whole)
    assert b'ids":[' not in got
    assert answer.all_finished
    assert msgspec.to_builtins(answer.usage) == {"prompt_tokens": 38, "cached_tokens": 0, "completion_tokens": 24}
    assert got.count(b'"chatcmpl-') == got.count(b"data: {")


def test_the_error_of_a_dead_engine_process_lets_another_engine_go_on():
    answer = Answer()
    stream = stream_of(asked(), CHAT)
    reader = stream.reader(answer)
    read(reader, answer, RECORDED["core killed"]["data"].encode().split(b'data: {"error"')[0])
    (frame, _) = reader.feed(b'data: {"error"' + RECORDED["core killed"]["data"].encode().split(b'data: {"error"')[1])
    assert answer.take(frame.notes) == Ended(Ending.RETRY, 500)


def test_a_real_server_repeats_the_prompt_where_it_ends_within_a_character():
    """The reason for the question about the end of an answer; without it, clients would see the prompt again."""
    first = json.loads(RECORDED["seam 3"]["data"].split("\n\n")[0][6:])
    assert first["choices"][0]["text"] == "abcé😀"
    assert ends_within_character('{"prompt":"abcé\ufffd"}'.encode())
    assert not ends_within_character('{"prompt":"abcé😀"}'.encode())


@pytest.mark.parametrize(
    "more",
    [
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]},
        {"stop": None, "tools": None, "response_format": None, "presence_penalty": 0.0, "top_logprobs": 0},
        {"temperature": 0.7, "top_k": 5, "seed": 3, "logit_bias": {"5": 1.0}},
    ],
)
def test_text_and_fields_that_change_nothing_are_continued(more):
    assert stream_of(asked(**more), CHAT) is not None


@pytest.mark.parametrize(
    "more",
    [
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        {"messages": [{"role": "user", "content": [{"image_url": "x"}]}]},
        {"stop": ["a"]},
        {"repetition_penalty": 1.1},
        {"max_tokens": "many"},
    ],
)
def test_what_another_engine_could_not_know_is_not_continued(more):
    assert stream_of(asked(**more), CHAT) is None


def test_a_text_without_a_bound_has_that_of_the_api():
    stream = stream_of(b'{"prompt":"a","stream":true}', TEXT)
    answer = Answer()
    recorded = RECORDED["text ids"]["data"].encode().split(b"\n\n")
    read(stream.reader(answer), answer, b"\n\n".join(recorded[:3]) + b"\n\n")
    assert json.loads(stream.continued(answer))["max_tokens"] == 16 - 3
