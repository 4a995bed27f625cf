"""Tool calls and reasoning in answers: whole, streamed, and continued by another replica."""

import asyncio
import json
from typing import get_args

import pytest
from llguidance import LLMatcher

from inflight_engine.formats.choose import REASONING_PARSERS, TOOL_CALL_PARSERS, ModelText
from inflight_engine.formats.parser import AnswerParser, Parsing
from inflight_engine.request import FinishReason, Thinking
from inflight_engine.server.answers.events import CallIds, delta
from inflight_settings.server import ReasoningParser, ToolCallParser
from tests.engine.server.fake_engine import ByteTokenizer, until
from tests.engine.server.relay_model import HEADERS, frames

CHAT = {"messages": [{"role": "user", "content": "?"}]}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "integer"}}}}}
CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
THINK_MODEL = ModelText(chat_template="<think>")


async def ask(make_fake, text, reason=FinishReason.STOP, headers=None, model=None, slots=1, **body):
    """The response to a chat, which the engine answers with this text."""
    tokenizer = ByteTokenizer()
    tokenizer.model_text = model or ModelText()
    fake = await make_fake(tokenizer=tokenizer, tool_call_parser="hermes")
    call = asyncio.create_task(fake.http.post("/v1/chat/completions", json={**CHAT, **body}, headers=headers))
    await until(lambda: len(fake.engine.requests) == slots or call.done())
    for request_id in fake.engine.requests:
        fake.engine.answer(request_id, text, slot=request_id, reason=reason)
    return await call


def choices(answer):
    """Messages and reasons of the choices of a stream or of a whole answer. The ids of calls are left out."""
    if answer.headers["content-type"].startswith("application/json"):
        found = {each["index"]: [each["message"], each["finish_reason"]] for each in answer.json()["choices"]}
        for said, _ in found.values():
            assert said.pop("refusal") is None
    else:
        found = {}
        for line in answer.text.split("\n\n"):
            if line.removeprefix("data: ").startswith("{"):
                add(found, json.loads(line.removeprefix("data: ")))
    for said, _ in found.values():
        ids = [call.pop("id") for call in said.get("tool_calls", ())]
        assert len({*ids}) == len(ids)
        assert all(each.startswith("call_") for each in ids)
    return [found[index] for index in sorted(found)]


def add(found, chunk):
    for each in chunk["choices"]:
        said, _ = found.setdefault(each["index"], [{}, None])
        found[each["index"]][1] = each["finish_reason"]
        for field, value in each["delta"].items():
            if field != "tool_calls":
                said[field] = said.get(field, "") + value
                continue
            for part in value:
                calls = said.setdefault("tool_calls", [])
                if part["index"] == len(calls):
                    assert {*part} == {"index", "id", "type", "function"}
                    calls.append({"id": part["id"], "type": part["type"], "function": dict(part["function"])})
                else:
                    assert {*part} == {"index", "function"}
                    calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]


def called(*arguments):
    return [{"type": "function", "function": {"name": "f", "arguments": each}} for each in arguments]


@pytest.mark.parametrize("n", [1, 2])
async def test_a_call_in_a_whole_answer(make_fake, n):
    answer = await ask(make_fake, CALL, tools=[TOOL], n=n, slots=n)
    said = {"role": "assistant", "content": None, "tool_calls": called('{"a": 1}')}
    assert choices(answer) == [[said, "tool_calls"]] * n


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("logprobs", [None, False])
async def test_a_call_in_a_stream(make_fake, n, logprobs):
    answer = await ask(make_fake, "See: " + CALL, tools=[TOOL], stream=True, n=n, slots=n, logprobs=logprobs)
    said = {"role": "assistant", "content": "See:", "tool_calls": called('{"a": 1}')}
    assert choices(answer) == [[said, "tool_calls"]] * n


@pytest.mark.parametrize("stream", [False, True])
async def test_of_calls_that_must_not_be_parallel_the_first_counts(make_fake, stream):
    text = '<tool_call>{"name": "f"}</tool_call><tool_call>{"name": "g"}</tool_call>'
    answer = await ask(make_fake, text, tools=[TOOL], parallel_tool_calls=False, stream=stream)
    ((said, reason),) = choices(answer)
    assert (said["tool_calls"], reason) == (called("{}"), "tool_calls")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("body", [{"tools": [TOOL], "tool_choice": "none"}, {"tools": []}, {}])
async def test_without_tools_calls_are_text(make_fake, stream, body):
    answer = await ask(make_fake, CALL, stream=stream, **body)
    assert choices(answer) == [[{"role": "assistant", "content": CALL}, "stop"]]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_is_cut_off_has_what_there_is_of_the_call(make_fake, stream):
    answer = await ask(make_fake, CALL[:45], FinishReason.LENGTH, tools=[TOOL], stream=stream)
    ((said, reason),) = choices(answer)
    assert (said["tool_calls"], reason) == (called('{"a": 1'), "length")


@pytest.mark.parametrize("stream", [False, True])
async def test_reasoning_has_both_of_its_names(make_fake, stream):
    answer = await ask(make_fake, "<think>\nHm.\n</think>\n\nYes", model=THINK_MODEL, stream=stream)
    said = {"role": "assistant", "content": "Yes", "reasoning": "Hm.", "reasoning_content": "Hm."}
    assert choices(answer) == [[said, "stop"]]


@pytest.mark.parametrize("more", [{}, {"stream_options": {"include_usage": True}}])
async def test_chunks_of_content_are_the_same_with_and_without_a_parser(make_fake, more):
    def found(answer):
        data = [json.loads(each.removeprefix("data: ")) for each in answer.text.split("\n\n") if "{" in each]
        return [{name: value for name, value in each.items() if name not in ("id", "created")} for each in data]

    plain = await ask(make_fake, "Hi <b> you", stream=True, **more)
    assert "Hi" in plain.text
    assert found(await ask(make_fake, "Hi <b> you", stream=True, model=THINK_MODEL, **more)) == found(plain)


async def test_a_prompt_may_end_inside_of_the_reasoning(make_fake):
    messages = [{"role": "assistant", "content": "<think>"}]
    answer = await ask(make_fake, "Hm.</think>Yes", model=THINK_MODEL, messages=messages)
    ((said, _),) = choices(answer)
    assert (said["reasoning"], said["content"]) == ("Hm.", "Yes")


@pytest.mark.parametrize("stream", [False, True])
async def test_stop_strings_end_calls_too(make_fake, stream):
    answer = await ask(make_fake, CALL, tools=[TOOL], stop="1", stream=stream)
    ((said, _),) = choices(answer)
    assert said["tool_calls"] == called('{"a": ')


async def test_a_model_whose_format_is_unknown_refuses_tools(make_fake):
    fake = await make_fake()
    error = (await fake.post("/v1/chat/completions", **CHAT, tools=[TOOL])).json()["error"]
    assert (error["param"], error["code"]) == ("tools", "unsupported_parameter")
    assert "--tool-call-parser" in error["message"]


@pytest.mark.parametrize("text", ["See: " + CALL + " done", "<think>Hm.</think>" + CALL])
async def test_an_answer_continued_after_any_token_is_the_same(make_fake, text):
    """The part that one replica streamed, and the part that the next one streams, are the answer."""
    tokenizer = ByteTokenizer()
    tokenizer.model_text = THINK_MODEL
    fake = await make_fake(tokenizer=tokenizer, tool_call_parser="hermes")
    body = {**CHAT, "tools": [TOOL], "stream": True, "max_tokens": 80}
    how = Parsing(fake.service.formats.format, fake.service.formats.reasoning)
    whole = merged(chunks(AnswerParser(how), text, done=True))
    for end in range(1, len(text)):
        continuation = {"choices": [{"token_ids": [*text[:end].encode()]}], "created": 1}
        call = asyncio.create_task(
            fake.http.post(
                "/v1/chat/completions", json={**body, "inflight_continuation": continuation}, headers=HEADERS
            )
        )
        await until(lambda end=end: len(fake.engine.requests) == end)
        fake.engine.answer([*fake.engine.requests][-1], text[end:])
        rest = [json.loads(data) for _, data in frames((await call).text) if data and data != "[DONE]"]
        assert merged([*chunks(AnswerParser(how), text[:end]), *rest]) == whole


def chunks(parser, text, *, done=False):
    """The chunk of a replica that streams this text, and the end of the answer."""
    events = parser.feed(text) + (parser.finish() if done else [])
    said = {"role": "assistant", "content": "", **delta(events, CallIds("x", short=False))}
    return [{"choices": [{"index": 0, "delta": said, "finish_reason": "tool_calls" if done else None}]}]


def merged(data):
    """The choice of some chunks, without the ids of its calls. A continued answer does not repeat the role."""
    found = {}
    for each in data:
        add(found, each)
    ((said, reason),) = found.values()
    for each in said.get("tool_calls", ()):
        del each["id"]
    return said, reason


def test_the_settings_name_every_format():
    assert get_args(ToolCallParser) == TOOL_CALL_PARSERS
    assert get_args(ReasoningParser) == REASONING_PARSERS


@pytest.mark.parametrize(("content", "begun"), [("<think>", True), ("hi", False)])
@pytest.mark.parametrize(
    "body", [{"response_format": {"type": "json_object"}}, {"thinking_token_budget": 5}, {"thinking_token_budget": -1}]
)
async def test_the_engine_knows_the_marks_of_reasoning_where_it_needs_them(make_fake, content, begun, body):
    tokenizer = ByteTokenizer()
    tokenizer.model_text = THINK_MODEL
    fake = await make_fake(tokenizer=tokenizer)
    messages = [{"role": "assistant", "content": content}]
    call = asyncio.create_task(fake.post("/v1/chat/completions", messages=messages, **body))
    await until(lambda: fake.engine.requests or call.done())
    (request,) = fake.engine.requests.values()
    budget = body.get("thinking_token_budget")
    marks = Thinking(tuple(b"<think>"), tuple(b"</think>"), begun, budget)
    assert request.sampling.thinking == (None if budget == -1 else marks)
    fake.engine.answer(0, "{}")
    await call


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("text", "model", "count"), [("<think>Hm.</think>Yes", THINK_MODEL, 3), ("Yes", None, 0)])
async def test_usage_counts_tokens_of_reasoning(make_fake, stream, text, model, count):
    more = {"stream_options": {"include_usage": True}} if stream else {}
    answer = await ask(make_fake, text, model=model, stream=stream, **more)
    last = answer.text.split("\n\n")[-3].removeprefix("data: ") if stream else answer.text
    usage = json.loads(last)["usage"]
    assert (usage["completion_tokens"], usage["completion_tokens_details"]) == (len(text), {"reasoning_tokens": count})


@pytest.mark.parametrize(
    ("strict", "body", "bound"),
    [
        (True, {}, True),
        (True, {"tool_choice": "auto"}, True),
        (True, {"response_format": {"type": "text"}}, True),
        (True, {"tool_choice": "none"}, False),
        (False, {}, False),
        (None, {}, False),
    ],
)
async def test_a_strict_function_binds_calls_that_the_model_chooses(make_fake, strict, body, bound):
    fake = await make_fake(tool_call_parser="hermes")
    tools = [TOOL, {**TOOL, "function": {**TOOL["function"], "name": "g", "strict": strict}}]
    call = asyncio.create_task(fake.post("/v1/chat/completions", **CHAT, tools=tools, **body))
    await until(lambda: fake.engine.requests or call.done())
    (request,) = fake.engine.requests.values()
    assert (request.sampling.grammar is not None) is bound
    fake.engine.answer(0, "hi")
    await call


async def test_the_answer_of_harmony_has_its_header_before_its_grammar(make_fake):
    tokenizer = ByteTokenizer()
    tokenizer.model_text = ModelText(chat_template="<|channel|>analysis")
    fake = await make_fake(tokenizer=tokenizer)
    call = asyncio.create_task(fake.post("/v1/chat/completions", **CHAT, response_format={"type": "json_object"}))
    await until(lambda: fake.engine.requests or call.done())
    (request,) = fake.engine.requests.values()
    grammar = json.loads(request.sampling.grammar)["grammars"]
    assert grammar[0] == {"lark_grammar": 'start: "<|channel|>final<|message|>" @body'}
    assert request.sampling.thinking.then == tuple(b"<|start|>assistant")
    assert LLMatcher.validate_grammar(request.sampling.grammar) == ""
    fake.engine.answer(0, "{}")
    await call


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
            "tool_choice.function.name",
        ),
    ],
)
async def test_a_choice_of_tools_that_are_not_there_is_refused(make_fake, body, param):
    fake = await make_fake(tool_call_parser="hermes")
    answer = await fake.post("/v1/chat/completions", **CHAT, **body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("name", ["", "get weather", 'a"b', "x" * 257])
async def test_a_function_whose_calls_cannot_be_read_is_refused_where_it_may_be_called(make_fake, name):
    tools = [TOOL, {"type": "function", "function": {"name": name}}]
    fake = await make_fake(tool_call_parser="hermes")
    answer = await fake.post("/v1/chat/completions", **CHAT, tools=tools)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools.1.function.name")
    answer = await ask(make_fake, "Hi", tools=tools, tool_choice="none")
    assert choices(answer) == [[{"role": "assistant", "content": "Hi"}, "stop"]]


@pytest.mark.parametrize(
    "parameters",
    [
        {"properties": {f"property {number}": {} for number in range(20_000)}},
        {"allOf": [{"$ref": "#/allOf/" + "1" * 5000}]},
    ],
)
async def test_a_function_whose_calls_have_no_grammar_is_refused_where_it_must_be_called(make_fake, parameters):
    fake = await make_fake(tool_call_parser="hermes")
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    answer = await fake.post("/v1/chat/completions", **CHAT, tools=[tool], tool_choice="required")
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, "tools", "invalid_grammar")
    assert error["message"].startswith(("tools: ", "tools.0.function.parameters: "))


WRONG = [
    ({"parameters": {"properties": {"a": {"pattern": "("}}}}, "1.function.parameters.properties.a", "unclosed"),
    ({"parameters": {"properties": {"a": {"not": {}}}}, "strict": True}, "1.function.parameters.properties.a", "not"),
]
NO_DEFINITION = ({"parameters": {"$ref": "#/$defs/no"}}, "1.function.parameters", "'/$defs/no' does not exist")


@pytest.mark.parametrize(
    ("parser", "function", "place", "said"),
    [
        ("hermes", *NO_DEFINITION),
        *((parser, *each) for parser in ("hermes", "qwen3_coder", "gemma4", "pythonic") for each in WRONG),
    ],
)
async def test_a_function_whose_schema_is_refused_is_named(make_fake, parser, function, place, said):
    fake = await make_fake(tool_call_parser=parser)
    tools = [TOOL, {"type": "function", "function": {"name": "wrong", **function}}]
    choices = ["required", {"type": "function", "function": {"name": "wrong"}}]
    for choice in choices:
        answer = await fake.post("/v1/chat/completions", **CHAT, tools=tools, tool_choice=choice)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"], error["code"]) == (400, "tools", "invalid_grammar")
        assert error["message"].startswith(f"tools.{place}: ")
        assert said in error["message"]


async def test_demanded_calls_have_a_grammar(make_fake):
    answer_of = {"required": "tool_calls", "named": "stop"}
    for kind, reason in answer_of.items():
        choice = kind if kind == "required" else {"type": "function", "function": {"name": "f"}}
        fake = await make_fake(tool_call_parser="hermes")
        call = asyncio.create_task(fake.post("/v1/chat/completions", **CHAT, tools=[TOOL], tool_choice=choice))
        await until(lambda fake=fake, call=call: fake.engine.requests or call.done())
        (request,) = fake.engine.requests.values()
        assert "<tool_call>" in request.sampling.grammar
        fake.engine.answer(0, CALL)
        assert [each for _, each in choices(await call)] == [reason]
