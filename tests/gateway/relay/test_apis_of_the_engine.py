"""Answers of OpenAI Responses and Anthropic Messages whose engine dies: this project's engine has the relay in front of
it."""

from __future__ import annotations

import json
import re
from contextlib import closing
from dataclasses import replace
from functools import partial

import httpx
import pytest

from tests.engine.server.real_server import RealServer
from tests.engine.server.sse import events, message_of, response_of
from tests.engine.server.test_real_continuation import BOUND
from tests.engine.server.test_real_continuation import TOOL as BOUND_TOOL
from tests.gateway.relay.conftest import QUICK, Setup
from tests.gateway.relay.fake_engine import Do, FakeEngine, Seen
from tests.gateway.relay.test_tool_calls import ENDS, SAID, TOOL, ApiServers, message

FUNCTION = TOOL["function"]
RESPONSES = (
    "/v1/responses",
    {"model": "fake", "input": "?", "tools": [{"type": "function", **FUNCTION}], "max_output_tokens": 93},
    response_of,
)
MESSAGES = (
    "/v1/messages",
    {
        "model": "fake",
        "messages": [{"role": "user", "content": "?"}],
        "tools": [{"name": FUNCTION["name"], "input_schema": FUNCTION["parameters"]}],
        "max_tokens": 93,
    },
    message_of,
)
PATIENT = replace(QUICK, silence_s=100.0, head_s=100.0, limits=replace(QUICK.limits, max_deaths=6))


def told(body: bytes, read, *, stream: bool) -> dict:
    """The answer without times and what the cache had."""
    text = body.decode()
    assert text.endswith("data: [DONE]\n\n") is (stream and read is response_of)
    answer = read(events(text)) if stream else json.loads(text)
    return {name: value for name, value in answer.items() if name not in ("created_at", "completed_at", "usage")}


@pytest.fixture
async def servers(make) -> Setup:
    return await make(PATIENT, engine=ApiServers(), max_attempts=6)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize(("path", "asked", "read"), [RESPONSES, MESSAGES], ids=["responses", "messages"])
async def test_answers_are_those_of_an_undisturbed_run_wherever_an_engine_dies(servers, path, asked, read, stream):
    asked, same_id = {**asked, "stream": stream}, {"x-request-id": "one"}
    _, _, body = await servers.post(asked, path, headers=same_id)
    undisturbed = told(body, read, stream=stream)
    for percent in range(1, 100, 9):
        servers.script(Do(cut=percent), Do(cut=percent // 2), Do())
        status, _, body = await servers.post(asked, path, headers=same_id)
        assert status == 200
        assert told(body, read, stream=stream) == undisturbed, percent
    assert any(each.output_token_ids for each in servers.engine.asked)


@pytest.mark.parametrize("marks", ENDS)
@pytest.mark.parametrize(("path", "asked", "read"), [RESPONSES, MESSAGES], ids=["responses", "messages"])
async def test_an_engine_that_dies_at_the_end_leaves_events_ids_and_counts_as_they_are(
    servers, path, asked, read, marks
):
    asked, same_id = {**asked, "stream": True}, {"x-request-id": "one"}
    _, _, undisturbed = await servers.post(asked, path, headers=same_id)
    servers.engine.marks = marks
    _, _, body = await servers.post(asked, path, headers=same_id)
    assert shown(body) == shown(undisturbed)
    reports = [await servers.report(number) for number in range(2)]
    assert [report["completion_tokens"] for report in reports] == [len(SAID)] * 2


def shown(body: bytes) -> bytes:
    """All of a stream but the times."""
    return re.sub(rb'("(?:created|completed)_at":)\d+', rb"\1", body)


class RealServers(FakeEngine):
    """Replicas of one real server, whose answers break off within the token that the script says, in percent."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._http = httpx.AsyncClient(base_url=url, timeout=120)

    async def _answer(self, do: Do, seen: Seen, number: int, reader, writer) -> bool:
        headers = {name: seen.headers[name] for name in ("x-request-id", "x-inflight-progress", "content-type")}
        answer = await self._http.post(seen.target, content=seen.body, headers=headers)
        assert answer.status_code == 200, answer.text
        frames = answer.content
        tokens = [found.end() for found in re.finditer(rb"^:t ", frames, re.MULTILINE)]
        cut = None if do.cut is None else tokens[do.cut * len(tokens) // 100]
        return await super()._answer(replace(do, frames=frames, cut=cut), seen, number, reader, writer)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    flags = ("--dtype", "float32", "--served-model-name", "fake", "--tool-call-parser", "hermes")
    with closing(RealServer(tmp_path_factory.mktemp("server"), *flags)) as running:
        yield running.wait_ready()


def chat(body: bytes):
    """The message, its reason to end and the ids of a streamed chat."""
    return message(body), {*re.findall(rb'"id":"([^"]+)"', body)}


response, said = (partial(told, read=read, stream=True) for read in (response_of, message_of))
PAINT = BOUND_TOOL["function"]
TURNS = {"messages": [{"role": "user", "content": "Paint the door."}]}
REAL = {
    "responses": ("/v1/responses", response, {"input": "?", "max_output_tokens": 24}),
    "messages": ("/v1/messages", said, {**TURNS, "max_tokens": 24}),
    **{
        f"chat, {name}": ("/v1/chat/completions", chat, {**TURNS, "max_tokens": 64, **fields})
        for name, fields in BOUND.items()
    },
    "responses, demanded calls": (
        "/v1/responses",
        response,
        {
            "input": "Paint the door.",
            "tools": [{"type": "function", **PAINT}],
            "tool_choice": "required",
            "parallel_tool_calls": False,
            "max_output_tokens": 64,
        },
    ),
    "messages, demanded calls": (
        "/v1/messages",
        said,
        {
            **TURNS,
            "tools": [{"name": PAINT["name"], "input_schema": PAINT["parameters"]}],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
            "max_tokens": 64,
        },
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("path", "read", "asked"), REAL.values(), ids=REAL)
async def test_greedy_answers_of_a_real_engine_in_float32_are_equal_where_they_are_continued(
    make, server, path, read, asked
):
    relay = await make(PATIENT, engine=RealServers(server.url), max_attempts=6)
    asked = {"model": "fake", "stream": True, "temperature": 0, **asked}
    answers = []
    for steps in ([Do()], [Do(cut=35), Do(cut=60), Do()], [Do(cut=90), Do()]):
        relay.script(*steps)
        status, _, body = await relay.post(asked, path, headers={"x-request-id": "one"})
        assert status == 200
        answers.append(read(body))
    assert answers[0] == answers[1] == answers[2]
    continued = [seen.json["inflight_continuation"] for seen in relay.engine.seen if b"inflight_" in seen.body]
    assert [bool(each["choices"][0]["token_ids"]) for each in continued] == [True] * 3
