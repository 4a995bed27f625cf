"""Log-probabilities in OpenAI's shapes: they go with the text, token by token, and end where it ends."""

import asyncio
import gc
import json
import threading

import pytest

from inflight_engine.output import TokenLogprobs
from inflight_engine.request import FinishReason
from tests.engine.server.fake_engine import EOS, ByteTokenizer, until
from tests.engine.server.test_requests import events

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def start(fake, path, **body):
    return asyncio.create_task(fake.post(path, **(CHAT if "chat" in path else {"prompt": "hi"}), **body))


async def sampled(fake, token_ids, reason=FinishReason.LENGTH, top=(90, 91)):
    """Each token with the log-probability -1, -2, ... and `top` as the likeliest. `reason` None: it goes on."""
    await until(lambda: fake.engine.requests)
    fake.engine.report(admitted=[(0, 2)])
    for number, token_id in enumerate(token_ids, 1):
        scores = TokenLogprobs(2, -float(number), list(top), [-0.25, float("-inf")][: len(top)])
        fake.engine.report(tokens={2: token_id}, logprobs=[scores])
        await asyncio.sleep(0.01)
    if reason is not None:
        fake.engine.report(finished=[(0, reason)])


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("/v1/chat/completions", {}, None),
        ("/v1/chat/completions", {"logprobs": False}, None),
        ("/v1/chat/completions", {"logprobs": True}, 0),
        ("/v1/chat/completions", {"logprobs": True, "top_logprobs": 20}, 20),
        ("/v1/completions", {}, None),
        ("/v1/completions", {"logprobs": 0}, 0),
        ("/v1/completions", {"logprobs": 5}, 5),
        ("/v1/generate", {"logprobs": 3}, 3),
    ],
)
async def test_engine_is_asked_for_as_many_as_the_client_wants(make_fake, path, body, expected):
    fake = await make_fake()
    call = start(fake, path, **body)
    await sampled(fake, b"x")
    assert fake.engine.requests[0].sampling.logprobs == expected
    answer = (await call).json()
    if path != "/v1/generate":
        assert (answer["choices"][0]["logprobs"] is None) == (expected is None)


async def test_chat_shape(make_fake):
    fake = await make_fake()
    call = start(fake, "/v1/chat/completions", logprobs=True, top_logprobs=2)
    await sampled(fake, b"ab")
    choice = (await call).json()["choices"][0]
    top = [
        {"token": "Z", "logprob": -0.25, "bytes": [90]},
        {"token": "[", "logprob": -9999.0, "bytes": [91]},
    ]
    assert choice["message"]["content"] == "ab"
    assert choice["logprobs"] == {
        "content": [
            {"token": "a", "logprob": -1.0, "bytes": [97], "top_logprobs": top},
            {"token": "b", "logprob": -2.0, "bytes": [98], "top_logprobs": top},
        ],
        "refusal": None,
    }


async def test_completion_shape_has_offsets_and_the_sampled_token_among_the_top(make_fake):
    fake = await make_fake()
    call = start(fake, "/v1/completions", logprobs=2)
    await sampled(fake, b"aZ")
    choice = (await call).json()["choices"][0]
    assert choice["logprobs"] == {
        "tokens": ["a", "Z"],
        "token_logprobs": [-1.0, -2.0],
        "top_logprobs": [{"Z": -0.25, "[": -9999.0, "a": -1.0}, {"Z": -0.25, "[": -9999.0}],
        "text_offset": [0, 1],
    }


async def test_parts_of_a_character_are_spelled_as_bytes_and_stand_at_the_character(make_fake):
    fake = await make_fake()
    call = start(fake, "/v1/completions", logprobs=0)
    await sampled(fake, "é!".encode(), top=())
    choice = (await call).json()["choices"][0]
    assert choice["text"] == "é!"
    assert choice["logprobs"]["tokens"] == [r"\xc3", r"\xa9", "!"]
    assert choice["logprobs"]["text_offset"] == [0, 0, 1]


async def test_chat_stream_says_the_same_as_the_whole_answer(make_fake):
    text = "né en END"
    entries = []
    for stream in (False, True):
        fake = await make_fake()
        call = start(fake, "/v1/chat/completions", logprobs=True, top_logprobs=1, stop=" END!", stream=stream)
        await sampled(fake, text.encode(), top=(90,))
        answer = await call
        if stream:
            choices = [json.loads(chunk)["choices"][0] for chunk in events(answer.text)[:-1]]
            assert len(choices) > 6
            assert "".join(choice["delta"].get("content", "") for choice in choices) == text
            for choice in choices:
                # What is in a chunk's entries is where its text begins.
                scored = bytes(
                    b for entry in (choice["logprobs"] or {"content": []})["content"] for b in entry["bytes"]
                )
                assert scored.decode().startswith(choice["delta"].get("content", ""))
            entries.append(
                [entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"]["content"]]
            )
        else:
            entries.append(answer.json()["choices"][0]["logprobs"]["content"])
    assert entries[0] == entries[1]
    assert bytes(b for entry in entries[0] for b in entry["bytes"]).decode() == text


@pytest.mark.parametrize("stream", [False, True])
async def test_tokens_of_and_after_a_stop_string_are_not_sent(make_fake, stream):
    fake = await make_fake()
    call = start(fake, "/v1/completions", logprobs=0, stop="END", stream=stream)
    await sampled(fake, b"so ENEND more", top=())
    answer = await call
    choices = (
        [json.loads(chunk)["choices"][0] for chunk in events(answer.text)[:-1]] if stream else answer.json()["choices"]
    )
    assert "".join(choice["text"] for choice in choices) == "so EN"
    assert [token for c in choices if c["logprobs"] for token in c["logprobs"]["tokens"]] == list("so EN")
    assert [at for c in choices if c["logprobs"] for at in c["logprobs"]["text_offset"]] == [0, 1, 2, 3, 4]


async def test_stop_token_is_no_part_of_the_text_nor_of_its_logprobs_but_generate_shows_it(make_fake):
    for path in ("/v1/completions", "/v1/generate"):
        fake = await make_fake()
        call = start(fake, path, logprobs=1)
        await sampled(fake, [97, EOS], FinishReason.STOP, top=(EOS,))
        answer = (await call).json()
        if path == "/v1/generate":
            assert answer["tokens"] == [97, EOS]
            assert answer["logprobs"] == [
                {"logprob": -1.0, "top": [[EOS, -0.25]]},
                {"logprob": -2.0, "top": [[EOS, -0.25]]},
            ]
        else:
            assert answer["choices"][0]["logprobs"]["tokens"] == ["a"]
            assert answer["choices"][0]["logprobs"]["top_logprobs"] == [{"<end>": -0.25, "a": -1.0}]


def scores_in_memory():
    gc.collect()
    return sum(type(each) is TokenLogprobs for each in gc.get_objects())


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"logprobs": True, "top_logprobs": 2}),
        ("/v1/completions", {"logprobs": 2}),
        ("/v1/generate", {"logprobs": 2}),
    ],
)
async def test_stream_keeps_none_of_those_it_has_sent(make_fake, path, body):
    fake = await make_fake()
    call = start(fake, path, stream=True, **body)
    before = scores_in_memory()
    await sampled(fake, b"0123456789", reason=None)
    # The text of the last one, a part of a character, is not there yet.
    await sampled(fake, "é".encode()[:1], reason=None)
    assert scores_in_memory() - before == 1
    await sampled(fake, "é".encode()[1:])
    assert len(events((await call).text)) > 10


async def test_generate_stream_says_the_same_as_the_whole_answer(make_fake):
    """This includes tokens without text: a part of a character, or of what may become a stop string; and the stop
    token."""
    answers = []
    for stream in (False, True):
        fake = await make_fake()
        call = start(fake, "/v1/generate", logprobs=1, stop="END!", stream=stream)
        await sampled(fake, [*"né en END".encode(), EOS], FinishReason.STOP, top=(90,))
        answer = await call
        parts = [json.loads(chunk) for chunk in events(answer.text)[:-1]] if stream else [answer.json()]
        assert all(len(part["tokens"]) == len(part["logprobs"]) for part in parts)
        answers.append(
            (
                "".join(part["text"] for part in parts),
                [token for part in parts for token in part["tokens"]],
                [scores for part in parts for scores in part["logprobs"]],
            )
        )
    assert answers[0] == answers[1]
    assert [scores["logprob"] for scores in answers[0][2]] == [-float(number) for number in range(1, 12)]


@pytest.mark.parametrize(("length", "in_loop"), [(3, True), (270, False)])
async def test_writing_many_of_them_does_not_hold_up_other_streams(make_fake, monkeypatch, length, in_loop):
    threads, token_bytes = set(), ByteTokenizer.token_bytes

    def noted(tokenizer, token_id):
        threads.add(threading.current_thread())
        return token_bytes(tokenizer, token_id)

    monkeypatch.setattr(ByteTokenizer, "token_bytes", noted)
    fake = await make_fake()
    call = start(fake, "/v1/completions", logprobs=1, n=3, max_tokens=98)
    await until(lambda: len(fake.engine.requests) == 3)
    fake.engine.report(admitted=[(i, i) for i in range(3)])
    for _ in range(length // 3):
        scores = [TokenLogprobs(i, -1.0, [90], [-0.25]) for i in range(3)]
        fake.engine.report(tokens=dict.fromkeys(range(3), 97), logprobs=scores)
    fake.engine.report(finished=[(i, FinishReason.LENGTH) for i in range(3)])
    choices = (await call).json()["choices"]
    assert [choice["logprobs"]["tokens"] for choice in choices] == [["a"] * (length // 3)] * 3
    assert (threads == {threading.main_thread()}) == in_loop
