"""Transcripts of agents: messages with tool calls and their results reach the chat template as it expects them."""

import asyncio

import pytest

from inflight_engine.models.tokens.conversation import Conversation
from tests.engine.server.fake_engine import ByteTokenizer, until

CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
TRANSCRIPT = [
    {"role": "user", "content": "1 + 1?", "name": "kim"},
    {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None},
    {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "2"}]},
]


async def chat(make_fake, **body):
    """The answer, and the messages and tools that the template was given."""
    tokenizer = ByteTokenizer()
    fake = await make_fake(tokenizer=tokenizer)
    call = asyncio.create_task(fake.post("/v1/chat/completions", **{"messages": TRANSCRIPT, **body}))
    await until(lambda: fake.engine.requests or call.done())
    if fake.engine.requests:
        fake.engine.answer(0, "2")
    given = tokenizer.chats[0] if tokenizer.chats else Conversation([])
    return await call, given.messages, given.tools


async def test_tool_calls_results_and_names_reach_the_template(make_fake):
    answer, messages, tools = await chat(make_fake)
    assert answer.status_code == 200
    assert tools is None
    assert messages == [
        {"role": "user", "content": "1 + 1?", "name": "kim"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}],
        },
        {"role": "tool", "content": "2", "tool_call_id": "c1"},
    ]


@pytest.mark.parametrize("fields", [None, {"refusal": None}])
async def test_fields_that_a_proxy_adds_change_nothing(make_fake, fields):
    more = {"provider_specific_fields": fields}
    call = {**CALL, **more, "function": {**CALL["function"], **more}}
    said = [TRANSCRIPT[0], {**TRANSCRIPT[1], **more, "tool_calls": [call]}, TRANSCRIPT[2]]
    answer, messages, _ = await chat(make_fake, messages=said)
    assert answer.status_code == 200
    assert messages == (await chat(make_fake))[1]


async def test_tools_that_must_not_be_called_are_shown_to_the_model(make_fake):
    answer, _, tools = await chat(make_fake, tools=[TOOL], tool_choice="none")
    assert answer.status_code == 200
    assert tools == [TOOL]


@pytest.mark.parametrize("choice", [None, "auto", "required", {"type": "function", "function": {"name": "add"}}])
async def test_tools_that_may_be_called_are_refused_where_the_format_is_unknown(make_fake, choice):
    answer, *_ = await chat(make_fake, tools=[TOOL], tool_choice=choice)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools")
    assert answer.json()["error"]["code"] == "unsupported_parameter"


async def test_a_call_without_arguments_has_an_empty_object(make_fake):
    call = {"function": {"name": "now"}}
    _, messages, _ = await chat(make_fake, messages=[{"role": "assistant", "tool_calls": [call]}])
    assert messages[0]["tool_calls"][0]["function"] == {"name": "now", "arguments": {}}


DEEP = '{"a": ' * 3000 + "1" + "}" * 3000


@pytest.mark.parametrize("arguments", ["[1]", "{", '{"a": "\\ud800"}', '{"\\udfff": 1}', DEEP])
async def test_arguments_that_no_template_can_show_are_refused(make_fake, arguments):
    call = {"function": {"name": "f", "arguments": arguments}}
    answer, *_ = await chat(make_fake, messages=[{"role": "assistant", "tool_calls": [call]}])
    param = "messages.0.tool_calls.0.function.arguments"
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
