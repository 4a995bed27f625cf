"""The same question through each API of a real server."""

import json

import httpx
import pytest

from tests.engine.server.relay_model import HEADERS, Choice, Kept, frames
from tests.engine.server.sse import events, message_of, response_of

QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
SAME = {"model": "smollm2", "temperature": 0}
RESPONSES = ("/v1/responses", {"input": QUESTION, "max_output_tokens": 24}, response_of)
MESSAGES = ("/v1/messages", {"messages": QUESTION, "max_tokens": 24}, message_of)
APIS = [RESPONSES, MESSAGES]


def text_of(told):
    (block,) = told["content"] if "content" in told else told["output"][0]["content"]
    return block["text"]


def post(server, path, body, **headers):
    answer = httpx.post(server.url + path, json={**SAME, **body}, headers=headers, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer


@pytest.fixture(scope="module")
def answered(server):
    """The answer of a chat."""
    body = {"messages": QUESTION, "max_tokens": 24}
    return post(server, "/v1/chat/completions", body).json()["choices"][0]["message"]["content"]


@pytest.mark.parametrize(("path", "body", "read"), APIS)
def test_each_api_gives_the_answer_of_a_chat(server, answered, path, body, read):
    assert text_of(post(server, path, body).json()) == answered
    assert text_of(read(events(post(server, path, {**body, "stream": True}).text))) == answered


@pytest.mark.parametrize(("path", "body", "read"), APIS)
def test_a_stream_goes_on_where_it_was_cut(server, answered, path, body, read):
    body = {**body, "stream": True}
    found = frames(post(server, path, body, **HEADERS).text)
    kept = Kept([Choice()])
    kept.read(found[: len(found) // 2])
    sent = sum(len(events(each)) for each in kept.data)
    more = kept.cut()
    if path == "/v1/responses":
        more["inflight_continuation"]["sequence_number"] = sent
    kept.read(frames(post(server, path, {**body, **more}, **HEADERS).text))
    told = "".join(each for each in kept.data if each != "[DONE]")
    assert text_of(read(events(told))) == answered


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": QUESTION, "max_output_tokens": 40, "text": {"format": {"type": "json_object"}}}),
        (
            "/v1/messages",
            {
                "messages": QUESTION,
                "max_tokens": 40,
                "output_config": {
                    "format": {
                        "type": "json_schema",
                        "schema": {
                            "type": "object",
                            "properties": {"city": {"enum": ["Paris", "Rome"]}},
                            "required": ["city"],
                            "additionalProperties": False,
                        },
                    }
                },
            },
        ),
    ],
)
def test_formats_bind_the_text(server, path, body):
    said = text_of(post(server, path, body).json())
    assert said.startswith("{")
    if path == "/v1/messages":
        assert json.loads(said)["city"] in ("Paris", "Rome")
