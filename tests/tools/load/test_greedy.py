"""The greedy client takes answers apart exactly, and says of each one that is not whole what was wrong."""

import asyncio
import json

import pytest

from tests.tools.load.test_driver import http, server
from tools.load import greedy


def chunk(text, ids, finish=None):
    return {"choices": [{"delta": {"content": text}, "token_ids": ids, "finish_reason": finish}]}


CHUNKS = [chunk("", None), chunk("a", [1]), chunk("bc", [2, 3]), chunk("", [4], "length")]
USAGE = {"choices": [], "usage": {"completion_tokens": 4}}
WHOLE = {
    "choices": [{"message": {"content": "abc"}, "token_ids": [1, 2, 3, 4], "finish_reason": "length"}],
    "usage": {"completion_tokens": 4},
}


def stream_of(events, end="data: [DONE]\n\n"):
    return http(200, "".join(f"data: {json.dumps(event)}\n\n" for event in events) + end)


def whole(body):
    return stream_of([*CHUNKS, USAGE]) if body["stream"] else http(200, json.dumps(WHOLE))


async def answers(answer, *flags):
    async with server(answer) as url:
        return await greedy.run(greedy.parser().parse_args(["--url", url, "--model", "m", "--requests", "2", *flags]))


async def test_a_stream_and_an_answer_in_one_piece_read_the_same():
    stream, plain = await answers(whole)
    for one in (stream, plain):
        assert (one.why, one.answer.text, one.answer.token_ids) == ("", "abc", [1, 2, 3, 4])
        assert (one.answer.finish_reason, one.answer.completion_tokens) == ("length", 4)
    assert stream.answer.pieces == len(CHUNKS)


@pytest.mark.parametrize(
    ("events", "end", "failure"),
    [
        ([*CHUNKS, USAGE], "", "the connection ended in the middle"),
        (CHUNKS[:2], "data: [DONE]\n\n", "the connection ended in the middle"),
        ([*CHUNKS[:2], {"error": {"message": "engine died"}}], "", "the engine ended the answer: engine died"),
    ],
)
async def test_a_stream_that_is_not_whole_has_failed(events, end, failure):
    stream, plain = await answers(lambda body: stream_of(events, end) if body["stream"] else whole(body))
    assert failure in stream.why
    assert plain.why == ""


async def test_a_503_with_retry_after_is_obeyed_and_any_other_refusal_has_failed():
    refused = iter([True, True] + [False] * 10)
    taken = await answers(lambda body: http(503, "{}", "Retry-After: 0\r\n") if next(refused) else whole(body))
    assert [one.why for one in taken] == ["", ""]
    assert all("HTTP 429" in one.why for one in await answers(lambda body: http(429, "{}", "Retry-After: 0\r\n")))


async def test_the_line_that_says_streams_flow_comes_before_the_answers(capsys):
    await asyncio.wait_for(answers(whole, "--flowing", "2"), 60)
    first, last = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first == {"flowing": 2}
    assert last["done"]
    assert [one["number"] for one in last["answers"]] == [0, 1]


def test_requests_differ_by_their_number_only_and_are_the_same_in_every_run():
    options = greedy.parser().parse_args(["--url", "x", "--model", "m"])
    assert greedy.body_of(0, options) == greedy.body_of(0, options)
    prompts = [greedy.body_of(number, options)["messages"][0]["content"] for number in range(16)]
    assert len(set(prompts)) == 16
