"""/v1/messages: Anthropic's blocks in and out, whole and streamed."""

import asyncio
import json

import pytest

from inflight_engine.formats.choose import ModelText
from inflight_engine.request import FinishReason
from inflight_engine.server.messages.requests import MessagesRequest
from tests.base.virtual_time import in_virtual_time
from tests.engine.server.fake_engine import ByteTokenizer, until
from tests.engine.server.sse import events, message_of

pytestmark = pytest.mark.usefixtures("virtual_clock")

PATH = "/v1/messages"
BODY = {"model": "fake", "max_tokens": 80, "messages": [{"role": "user", "content": "?"}]}
TOOL = {"name": "f", "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}
CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
RESULT = {"type": "tool_result", "tool_use_id": "1"}
USE = {"type": "tool_use", "name": "f", "input": {"a": 1}, "caller": {"type": "direct"}}


async def make(make_fake, **changes):
    tokenizer = ByteTokenizer()
    tokenizer.model_text = ModelText(chat_template="<think>")
    return await make_fake(tokenizer=tokenizer, tool_call_parser="hermes", **changes)


async def ask(make_fake, said, reason=FinishReason.STOP, **body):
    """The answer to a request, which the engine answers with this text."""
    fake = await make(make_fake)
    call = asyncio.create_task(fake.http.post(PATH, json={**BODY, **body}))
    await until(lambda: fake.engine.requests or call.done())
    for request_id in fake.engine.requests:
        fake.engine.answer(request_id, said, reason=reason)
    return await call


def message(answer):
    """The message of a whole answer or of a stream."""
    assert answer.status_code == 200, answer.text
    if answer.headers["content-type"].startswith("application/json"):
        return answer.json()
    assert "[DONE]" not in answer.text
    told = message_of(events(answer.text))
    for block in told["content"]:
        if isinstance(block.get("input"), str):
            block["input"] = json.loads(block["input"]) if block["input"].endswith("}") else {}
    return told


def text(said):
    return {"type": "text", "text": said, "citations": None}


def without_ids(blocks):
    ids = [each.pop(name) for each in blocks for name in ("id", "signature") if name in each]
    assert all(ids)
    assert len({*ids}) == len(ids)
    return blocks


@pytest.mark.parametrize("stream", [False, True])
@in_virtual_time
async def test_text_is_a_block(make_fake, stream):
    answer = await ask(make_fake, "Hi", stream=stream)
    found = message(answer)
    assert (found["type"], found["role"], found["model"]) == ("message", "assistant", "fake")
    assert found["content"] == [text("Hi")]
    assert (found["stop_reason"], found["stop_sequence"]) == ("end_turn", None)
    assert (found["usage"]["input_tokens"], found["usage"]["output_tokens"]) == (7, 2)
    assert answer.headers["request-id"] == answer.headers["x-request-id"]


@pytest.mark.parametrize("stream", [False, True])
@in_virtual_time
async def test_thinking_text_and_calls_are_blocks_in_their_order(make_fake, stream):
    said = f"<think>Hm.</think>See: {CALL}{CALL}"
    found = message(await ask(make_fake, said, tools=[TOOL], stream=stream))
    assert without_ids(found["content"]) == [{"type": "thinking", "thinking": "Hm."}, text("See:"), USE, USE]
    assert found["stop_reason"] == "tool_use"


@pytest.mark.parametrize("stream", [False, True])
@in_virtual_time
async def test_thinking_may_be_left_out(make_fake, stream):
    thinking = {"type": "adaptive", "display": "omitted"}
    found = message(await ask(make_fake, "<think>Hm.</think>Yes", stream=stream, thinking=thinking))
    assert without_ids(found["content"]) == [{"type": "thinking", "thinking": ""}, text("Yes")]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "f"}])
@in_virtual_time
async def test_a_call_that_is_demanded_is_a_tool_use(make_fake, stream, choice):
    found = message(await ask(make_fake, CALL, tools=[TOOL], tool_choice=choice, stream=stream))
    assert (without_ids(found["content"]), found["stop_reason"]) == ([USE], "tool_use")


@pytest.mark.parametrize("stream", [False, True])
@in_virtual_time
async def test_calls_that_must_not_be_parallel_are_one(make_fake, stream):
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    found = message(await ask(make_fake, CALL + CALL, tools=[TOOL], tool_choice=choice, stream=stream))
    assert without_ids(found["content"]) == [USE]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("most", "why"), [(9, "max_tokens"), (1000, "model_context_window_exceeded")])
@in_virtual_time
async def test_an_answer_of_the_greatest_length_says_why(make_fake, stream, most, why):
    found = message(await ask(make_fake, "123456789", FinishReason.LENGTH, stream=stream, max_tokens=most))
    assert found["stop_reason"] == why


@pytest.mark.parametrize("stream", [False, True])
@in_virtual_time
async def test_a_call_that_is_cut_off_has_no_input(make_fake, stream):
    found = message(await ask(make_fake, CALL[:45], FinishReason.LENGTH, tools=[TOOL], stream=stream, max_tokens=45))
    assert without_ids(found["content"]) == [{**USE, "input": {}}]
    assert found["stop_reason"] == "max_tokens"


@pytest.mark.parametrize("stream", [False, True])
@in_virtual_time
async def test_a_stop_sequence_is_named(make_fake, stream):
    found = message(await ask(make_fake, "one two three", stop_sequences=["x", "two"], stream=stream))
    assert (found["stop_reason"], found["stop_sequence"], found["content"]) == ("stop_sequence", "two", [text("one ")])


def chat(**body):
    request = MessagesRequest.model_validate({**BODY, **body}).chat()
    return request.model_dump(exclude_none=True, by_alias=True)


def test_blocks_are_messages():
    cached = {"cache_control": {"type": "ephemeral"}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a", **cached}, {"type": "text", "text": "b"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                text("See:"),
                {**USE, "id": "1"},
                {**USE, "id": "2"},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "1", "content": [text("one")]},
                {"type": "tool_result", "tool_use_id": "2", "content": "two", "is_error": True, **cached},
                {"type": "text", "text": "And?"},
            ],
        },
    ]
    call = {"type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    assert chat(messages=messages, system=[{"type": "text", "text": "Be kind.", **cached}])["messages"] == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "a\nb"},
        {
            "role": "assistant",
            "content": "See:",
            "reasoning": "Hm.",
            "tool_calls": [{**call, "id": "1"}, {**call, "id": "2"}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "one"},
        {"role": "tool", "tool_call_id": "2", "content": "two"},
        {"role": "user", "content": "And?"},
    ]


@in_virtual_time
async def test_the_content_of_an_answer_is_that_of_the_next_request(make_fake):
    found = message(await ask(make_fake, f"<think>Hm.</think>See: {CALL}", tools=[TOOL]))
    result = {"type": "tool_result", "tool_use_id": found["content"][-1]["id"], "content": "1"}
    turns = [{"role": "assistant", "content": found["content"]}, {"role": "user", "content": [result]}]
    said, answered = chat(messages=[*BODY["messages"], *turns])["messages"][1:]
    assert (said["reasoning"], said["content"], len(said["tool_calls"])) == ("Hm.", "See:", 1)
    assert answered["tool_call_id"] == said["tool_calls"][0]["id"]


def test_a_last_message_of_the_assistant_is_continued():
    messages = [*BODY["messages"], {"role": "assistant", "content": "The best is ("}]
    assert chat(messages=messages)["continue_final_message"] is True


@pytest.mark.parametrize("content", ["", [], [{"type": "thinking", "thinking": "Hm."}]])
@in_virtual_time
async def test_a_last_message_without_text_is_followed_by_another(make_fake, content):
    last = {"role": "assistant", "content": content}
    assert message(await ask(make_fake, "Hi", messages=[*BODY["messages"], last]))["content"] == [text("Hi")]


@in_virtual_time
async def test_any_number_bounds_the_thinking(make_fake):
    thinking = {"type": "enabled", "budget_tokens": 10**30}
    assert message(await ask(make_fake, "Hi", thinking=thinking))["content"] == [text("Hi")]


@pytest.mark.parametrize(
    ("body", "meant"),
    [
        ({"thinking": {"type": "enabled", "budget_tokens": 2048}}, {"chat_template_kwargs": {"enable_thinking": True}}),
        ({"thinking": {"type": "enabled", "budget_tokens": 2048}}, {"thinking_token_budget": 2048}),
        ({"thinking": {"type": "disabled"}}, {"chat_template_kwargs": {"enable_thinking": False}}),
        ({"output_config": {"effort": "low"}}, {"reasoning_effort": "low"}),
        ({"stop_sequences": ["a"], "top_k": 3}, {"stop": ["a"], "top_k": 3}),
        ({"tools": [TOOL], "tool_choice": {"type": "any"}}, {"tool_choice": "required"}),
        ({"tools": [TOOL], "tool_choice": {"type": "none"}}, {"tool_choice": "none"}),
        ({"service_tier": "standard_only", "class": "batch"}, {"service_tier": "auto", "class": "batch"}),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "output", "schema": {"type": "object"}, "strict": True},
                }
            },
        ),
    ],
)
def test_fields_have_their_meaning_in_chat_requests(body, meant):
    assert meant.items() <= chat(**body).items()


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages.0.content.0"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"unknown": 1}, "unknown"),
        ({"n": 2}, "n"),
        ({"temperature": 3.0}, "temperature"),
        ({"stop_sequences": [""]}, "stop_sequences.0"),
        ({"stop_sequences": ["a"] * 17}, "stop_sequences"),
        ({"system": "s", "messages": [{"role": "user", "content": [{**USE, "id": "1"}]}]}, "messages.0"),
        ({"messages": [{"role": "system", "content": [{"type": "thinking", "thinking": ""}]}]}, "messages.0"),
        ({"messages": [{"role": "assistant", "content": [RESULT]}]}, "messages.0"),
        ({"tools": [{**TOOL, "name": "no name"}]}, "tools.0.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice.name"),
        ({"output_config": {"effort": "much"}}, "output_config.effort"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"type": "?"}}}}, "output_config.format"),
        ({"messages": [{"role": "user", "content": "x" * 200}]}, "messages"),
    ],
)
@in_virtual_time
async def test_errors_have_the_format_and_the_names_of_this_api(make_fake, body, param):
    answer = await (await make(make_fake)).post(PATH, **{**BODY, **body})
    assert answer.status_code == 400
    found = answer.json()
    assert (found["type"], found["error"]["type"]) == ("error", "invalid_request_error")
    assert found["error"]["message"].startswith(f"{param}: ")


@pytest.mark.parametrize("path", [PATH, f"{PATH}/count_tokens"])
@pytest.mark.parametrize(
    ("status", "kind", "body"),
    [(404, "not_found_error", {"model": "other"}), (400, "invalid_request_error", {"messages": []})],
)
@in_virtual_time
async def test_each_status_has_its_type(make_fake, path, status, kind, body):
    body = {**BODY, **body}
    if path != PATH:
        del body["max_tokens"]
    answer = await (await make(make_fake)).post(path, **body)
    assert (answer.status_code, answer.json()["error"]["type"]) == (status, kind)


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("POST", f"{PATH}/batches", 404, "not_found_error"),
        ("GET", PATH, 405, "invalid_request_error"),
        ("POST", PATH, 401, "authentication_error"),
        ("POST", PATH, 413, "request_too_large"),
    ],
)
@in_virtual_time
async def test_errors_beside_the_endpoint_have_the_format_of_this_api(make_fake, method, path, status, kind):
    fake = await make(make_fake, api_key=("key",))
    headers = {"x-api-key": "" if status == 401 else "key"}
    if status == 413:
        headers["content-length"] = str(2**40)
    answer = await fake.http.request(method, path, headers=headers)
    found = answer.json()
    assert (answer.status_code, found["type"], found["error"]["type"]) == (status, "error", kind)


@pytest.mark.parametrize("stream", [False, True])
@in_virtual_time
async def test_numbers_of_any_size_in_calls_stay_as_they_are(make_fake, stream):
    call = CALL.replace(": 1}", f": {10**30}}}")
    found = message(await ask(make_fake, call, tools=[TOOL], stream=stream, max_tokens=90))
    assert found["content"][0]["input"] == {"a": 10**30}
    turn = {"role": "assistant", "content": [{**USE, "id": "1", "input": {"a": 10**30}}]}
    said = chat(messages=[*BODY["messages"], turn])["messages"][1]
    assert said["tool_calls"][0]["function"]["arguments"] == f'{{"a":{10**30}}}'


@in_virtual_time
async def test_an_engine_that_loads_is_overloaded(make_fake):
    answer = await (await make_fake(load=False)).post(PATH, **BODY)
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "overloaded_error")


@in_virtual_time
async def test_a_stream_that_fails_ends_with_an_error(make_fake):
    fake = await make(make_fake, request_timeout=0.2)
    call = asyncio.create_task(fake.post(PATH, **BODY, stream=True))
    await until(lambda: fake.engine.requests)
    fake.engine.report(admitted=[(0, 0)])
    fake.engine.report(tokens={0: ord("a")})
    found = events((await call).text)
    assert [each["type"] for each in found] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "error",
    ]
    assert found[-1]["error"]["type"] == "timeout_error"


@in_virtual_time
async def test_tokens_are_counted_without_an_answer(make_fake):
    fake = await make(make_fake)
    answer = await fake.post(f"{PATH}/count_tokens", model="fake", messages=BODY["messages"], tools=[TOOL])
    assert answer.json() == {"input_tokens": len("user:?\n")}
    assert not fake.engine.requests


@in_virtual_time
async def test_edits_of_the_context_are_not_applied_and_the_message_says_so(make_fake):
    asked = {"edits": [{"type": "clear_tool_uses_20250919"}]}
    found = message(await ask(make_fake, "Hi", context_management=asked))
    assert found["context_management"] == {"applied_edits": []}
