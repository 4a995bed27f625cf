"""The storm's requests: each kind of response is counted as what it is."""

import asyncio
import json

import pytest

from tests.standin import served
from tools.load import storm

WHOLE = [
    {"choices": [{"delta": {"content": "one"}, "finish_reason": None}]},
    {"choices": [{"delta": {}, "finish_reason": "stop"}]},
]


def server(*answers):
    """Gives these answers in turn, the last one again and again: a status with headers, or the events of a stream."""
    left = list(answers)

    async def respond(request, to):
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, tuple):
            headers = "".join(f"{name}: {value}\r\n" for name, value in answer[1].items())
            to.whole(b"no", b"text/plain", b"%d X" % answer[0], headers.encode())
            return
        to.begin(progress=False)
        for event in answer:
            to.send(f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode())
        to.end()

    return served(respond)


async def outcome(*answers, patience=5.0):
    start = asyncio.Event()
    start.set()
    async with server(*answers) as url:
        return await storm.ask(7, storm.parse([f"--url={url}", f"--patience={patience}"]), start)


async def test_a_whole_stream_is_an_answer_with_the_time_of_its_first_token():
    record = await outcome([*WHOLE, "[DONE]"])
    assert (record["outcome"], record["refusals"], record["why"]) == ("answered", 0, "")
    assert record["begun"] <= record["first_token"] <= record["ended"]


async def test_retry_after_is_obeyed_and_counted():
    record = await outcome((503, {"Retry-After": "0"}), (503, {"Retry-After": "0"}), [*WHOLE, "[DONE]"])
    assert (record["outcome"], record["refusals"]) == ("answered", 2)


async def test_refusals_until_the_patience_is_over_are_clean():
    record = await outcome((503, {"Retry-After": "30"}), patience=5)
    assert (record["outcome"], record["refusals"]) == ("refused", 1)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ((503, {}), "HTTP 503"),
        ((502, {"Retry-After": "1"}), "HTTP 502"),
        (WHOLE, "the connection ended in the middle"),
        ([WHOLE[0], "[DONE]"], "the connection ended in the middle"),
        ([{"error": {"message": "engine died"}}], "the engine ended the answer: engine died"),
    ],
)
async def test_anything_else_is_lost_with_its_reason(answer, why):
    record = await outcome(answer)
    assert record["outcome"] == "lost"
    assert why in record["why"]


async def test_a_closed_port_is_lost():
    start = asyncio.Event()
    start.set()
    record = await storm.ask(0, storm.parse(["--url=http://127.0.0.1:9"]), start)
    assert record["outcome"] == "lost"
    assert "ClientConnectorError" in record["why"]
