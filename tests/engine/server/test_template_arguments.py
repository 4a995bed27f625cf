"""Fields of requests that reach the chat template: its arguments, the reasoning of messages, and the prompt's end."""

import asyncio

import pytest

from inflight_engine.models.tokens.conversation import Conversation
from tests.engine.server.fake_engine import ByteTokenizer, until

USER = {"role": "user", "content": "1 + 1?"}
DRAFT = {"role": "assistant", "content": "It is"}


async def chat(make_fake, path="/v1/chat/completions", **body):
    """The answer, and what the template was given."""
    tokenizer = ByteTokenizer()
    fake = await make_fake(tokenizer=tokenizer)
    call = asyncio.create_task(fake.post(path, **{"messages": [USER], **body}))
    await until(lambda: fake.engine.requests or call.done())
    if fake.engine.requests:
        fake.engine.answer(0, "2")
    return await call, tokenizer.chats[0] if tokenizer.chats else None


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ({}, {}),
        ({"chat_template_kwargs": {"enable_thinking": False}}, {"enable_thinking": False}),
        ({"reasoning_effort": "high"}, {"reasoning_effort": "high", "enable_thinking": True}),
        ({"reasoning_effort": "none"}, {"reasoning_effort": "none", "enable_thinking": False}),
        (
            {"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False, "x": [1]}},
            {"reasoning_effort": "low", "enable_thinking": False, "x": [1]},
        ),
    ],
)
async def test_arguments_of_the_template(make_fake, body, arguments):
    answer, given = await chat(make_fake, **body)
    assert answer.status_code == 200
    assert given == Conversation([USER], arguments=arguments)


@pytest.mark.parametrize(
    ("body", "continues", "open_ended"),
    [
        ({}, True, False),
        ({"add_generation_prompt": False}, False, False),
        ({"continue_final_message": True}, False, True),
        ({"continue_final_message": True, "add_generation_prompt": False}, False, True),
        ({"continue_final_message": False, "add_generation_prompt": True}, True, False),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
async def test_the_end_of_the_prompt(make_fake, path, body, continues, open_ended):
    answer, given = await chat(make_fake, path, messages=[USER, DRAFT], **body)
    assert answer.status_code == 200
    assert given == Conversation([USER, DRAFT], continues=continues, open_ended=open_ended)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"add_generation_prompt": False}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"bos_token": "x"}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": [1]}, "chat_template_kwargs"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"continue_final_message": True, "messages": [{"role": "assistant"}]}, "messages.0.content"),
        ({"messages": [{**USER, "reasoning": "x"}]}, "messages.0.reasoning"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
async def test_wrong_fields_are_refused_by_name(make_fake, path, body, param):
    answer, _ = await chat(make_fake, path, **body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_an_unknown_effort_is_refused_by_name(make_fake):
    answer, _ = await chat(make_fake, reasoning_effort="some")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "reasoning_effort")


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
async def test_the_reasoning_of_messages_has_all_of_its_names_in_the_template(make_fake, field):
    _, given = await chat(make_fake, messages=[USER, {**DRAFT, field: "2, I think"}, USER])
    names = dict.fromkeys(("reasoning", "reasoning_content", "thinking"), "2, I think")
    assert given.messages[1] == {**DRAFT, **names}
