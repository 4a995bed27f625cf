"""Answers with tool calls and reasoning, whose engine dies: this project's API server has the relay in front of it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import httpx
import pytest

from inflight_engine.formats.choose import ModelText
from inflight_engine.request import FinishReason
from tests.engine.server.fake_engine import ByteTokenizer, connected, server_config, until
from tests.gateway.relay.conftest import QUICK, Setup
from tests.gateway.relay.fake_engine import Do, FakeEngine, Seen

TOOL = {"type": "function", "function": {"name": "paint", "parameters": {"properties": {"coats": {"type": "integer"}}}}}
SAID = '<think>Two.</think>Now.<tool_call>{"name": "paint", "arguments": {"coats": 2}}</tool_call>'
ASKED = {
    "model": "fake",
    "messages": [{"role": "user", "content": "?"}],
    "tools": [TOOL],
    "max_tokens": 93,
    "chat_template_kwargs": {"enable_thinking": True},
    "reasoning_effort": "low",
}
REQUIRED = {**ASKED, "tool_choice": "required"}
MESSAGE = {
    "role": "assistant",
    "content": "Now.",
    "reasoning": "Two.",
    "reasoning_content": "Two.",
    "tool_calls": [{"type": "function", "function": {"name": "paint", "arguments": '{"coats": 2}'}}],
}


class ApiServers(FakeEngine):
    """API servers whose model says `SAID`. Attributes: asked: requests that reached an engine process. marks: the next
    answers break off before these."""

    marks: tuple[bytes, ...] = ()

    async def start(self, count: int) -> None:
        tokenizer = ByteTokenizer()
        tokenizer.model_text = ModelText(chat_template="<think>")
        config = server_config(tool_call_parser="hermes")
        self._service, self._engine, app = await connected(config, tokenizer=tokenizer)
        self._http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://engine")
        self.asked: list = []
        await super().start(count)

    async def _answer(self, do: Do, seen: Seen, number: int, reader, writer) -> bool:
        given = seen.json.get("inflight_continuation")
        before = bytes(given["choices"][0]["token_ids"]).decode() if given else ""
        assert SAID.startswith(before)
        headers = {name: seen.headers[name] for name in ("x-request-id", "x-inflight-progress", "content-type")}
        call = asyncio.create_task(self._http.post(seen.target, content=seen.body, headers=headers))
        requests = self._engine.requests
        known = len(self.asked)
        await until(lambda: len(requests) > known or call.done())
        self.asked += [*requests.values()][known:]
        if not call.done():
            await self._say([*requests][-1], SAID[len(before) :].encode())
        answer = await call
        assert answer.status_code == 200, answer.text
        frames = answer.text.encode()
        cut = None if do.cut is None else int(do.cut / 100 * len(frames))
        if self.marks:
            mark, *self.marks = self.marks
            cut = frames.index(mark)
        return await super()._answer(Do(frames=frames, cut=cut), seen, number, reader, writer)

    async def _say(self, request_id: int, text: bytes) -> None:
        """Sends steps of up to three tokens, each in a frame of its own."""
        self._engine.report(admitted=[(request_id, 0)])
        for begin in range(0, len(text), 3):
            self._engine.report(tokens=[(0, token) for token in text[begin : begin + 3]])
            await asyncio.sleep(0.001)
        self._engine.report(finished=[(request_id, FinishReason.STOP)])


def message(body: bytes) -> tuple[dict, str]:
    """The message of a stream or of a whole answer without the id of its call, and its reason to end. A delta that
    begins a call has its id, type and name, later ones only more of its arguments."""
    if not body.startswith(b"data: "):
        (choice,) = json.loads(body)["choices"]
        said = {name: value for name, value in choice["message"].items() if name != "refusal"}
        assert said["tool_calls"][0].pop("id").startswith("call_")
        return said, choice["finish_reason"]
    assert body.endswith(b"data: [DONE]\n\n")
    said, reasons = {}, []
    for event in body.split(b"\n\n")[:-2]:
        for choice in json.loads(event.removeprefix(b"data: "))["choices"]:
            reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
            for field, value in choice["delta"].items():
                if field != "tool_calls":
                    said[field] = said.get(field, "") + value
                    continue
                (part,) = value
                if "tool_calls" not in said:
                    assert {*part} == {"index", "id", "type", "function"}
                    assert part["id"].startswith("call_")
                    said["tool_calls"] = [{"type": part["type"], "function": dict(part["function"])}]
                else:
                    assert {*part} == {"index", "function"}
                    said["tool_calls"][0]["function"]["arguments"] += part["function"]["arguments"]
    (reason,) = reasons
    return said, reason


@pytest.fixture
async def servers(make) -> Setup:
    patient = replace(QUICK, limits=replace(QUICK.limits, max_deaths=6))
    return await make(patient, engine=ApiServers(), max_attempts=6)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("asked", [ASKED, REQUIRED], ids=["auto", "required"])
async def test_thinking_and_calls_are_those_of_an_undisturbed_run_wherever_an_engine_dies(servers, asked, stream):
    for percent in range(0, 100, 7):
        servers.script(Do(cut=percent), Do(cut=percent // 2), Do())
        status, _, body = await servers.post({**asked, "stream": stream})
        assert (status, message(body)) == (200, (MESSAGE, "tool_calls")), percent
    assert any(each.output_token_ids for each in servers.engine.asked)


ENDS = [(b":f ",), (b":u ",), (b"data: [DONE]",), (b":f ", b":u ", b"data: [DONE]"), (b":u ", b":u ", b":u ")]


@pytest.mark.parametrize("marks", ENDS)
@pytest.mark.parametrize("counted", [True, False])
async def test_an_engine_that_dies_at_the_end_leaves_calls_and_counts_as_they_are(servers, marks, counted):
    asked = {**ASKED, "stream": True, "stream_options": {"include_usage": counted}}
    servers.engine.marks = marks
    _, _, body = await servers.post(asked)
    usage = [data["usage"] for data in data_of(body) if data.get("usage")]
    assert message(body) == (MESSAGE, "tool_calls")
    assert [each["completion_tokens"] for each in usage] == [len(SAID)] * counted
    assert (await servers.report())["completion_tokens"] == len(SAID)


def data_of(body: bytes) -> list[dict]:
    return [json.loads(event.removeprefix(b"data: ")) for event in body.split(b"\n\n")[:-2]]


@pytest.mark.parametrize(
    "more", [{"tool_choice": "required"}, {"thinking_token_budget": 40}], ids=["grammar", "budget"]
)
@pytest.mark.parametrize("cut", [20, 40, 60, 80])
async def test_what_binds_an_answer_is_asked_for_again_with_the_tokens_so_far(servers, cut, more):
    servers.script(Do(cut=cut), Do())
    _, _, body = await servers.post({**ASKED, **more, "stream": True})
    first, second = servers.engine.asked
    assert (first.sampling.grammar is None, first.sampling.thinking is None) == ("tool_choice" not in more, False)
    assert (second.sampling.grammar, second.sampling.thinking) == (first.sampling.grammar, first.sampling.thinking)
    assert (len(first.output_token_ids), len(second.output_token_ids) > 0) == (0, True)
    assert message(body) == (MESSAGE, "tool_calls")
