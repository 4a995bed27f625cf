"""Answers of OpenAI Responses and Anthropic Messages whose engine dies: this project's engine has the relay in front of
it."""

from __future__ import annotations

import json
import re
from contextlib import closing
from dataclasses import replace

import httpx
import pytest

from tests.engine.server.real_server import RealServer
from tests.engine.server.sse import events, message_of, response_of
from tests.gateway.relay.conftest import QUICK, Setup
from tests.gateway.relay.fake_engine import Do, FakeEngine, Seen
from tests.gateway.relay.test_tool_calls import ENDS, SAID, TOOL, ApiServers

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
    """Replicas of one real server, whose answers break off where the script says."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._http = httpx.AsyncClient(base_url=url, timeout=120)

    async def _answer(self, do: Do, seen: Seen, number: int, reader, writer) -> bool:
        headers = {name: seen.headers[name] for name in ("x-request-id", "x-inflight-progress", "content-type")}
        answer = await self._http.post(seen.target, content=seen.body, headers=headers)
        assert answer.status_code == 200, answer.text
        frames = answer.content
        cut = None if do.cut is None else do.cut * len(frames) // 100
        return await super()._answer(replace(do, frames=frames, cut=cut), seen, number, reader, writer)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    flags = ("--dtype", "float32", "--served-model-name", "fake")
    with closing(RealServer(tmp_path_factory.mktemp("server"), *flags)) as running:
        yield running.wait_ready()


@pytest.mark.slow
@pytest.mark.parametrize(("path", "asked", "read"), [RESPONSES, MESSAGES], ids=["responses", "messages"])
async def test_greedy_answers_of_a_real_engine_in_float32_are_equal_where_they_are_continued(
    make, server, path, asked, read
):
    relay = await make(PATIENT, engine=RealServers(server.url), max_attempts=6)
    length = "max_output_tokens" if read is response_of else "max_tokens"
    asked = {name: value for name, value in asked.items() if name != "tools"}
    asked |= {"stream": True, "temperature": 0, length: 24}
    bodies = []
    for steps in ([Do()], [Do(cut=35), Do(cut=60), Do()], [Do(cut=90), Do()]):
        relay.script(*steps)
        status, _, body = await relay.post(asked, path, headers={"x-request-id": "one"})
        assert status == 200
        bodies.append(told(body, read, stream=True))
    assert bodies[0] == bodies[1] == bodies[2]
    continued = [seen.json["inflight_continuation"] for seen in relay.engine.seen if b"inflight_" in seen.body]
    assert [bool(each["choices"][0]["token_ids"]) for each in continued] == [True] * 3
