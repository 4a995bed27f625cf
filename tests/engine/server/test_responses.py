"""/v1/responses: items in and out, whole and streamed."""

import asyncio
from itertools import accumulate
from types import SimpleNamespace

import pytest

from inflight_contract.errors import ApiError
from inflight_engine.formats.choose import ModelText
from inflight_engine.formats.events import TextEvent
from inflight_engine.output import TokenLogprobs
from inflight_engine.request import FinishReason
from inflight_engine.server.requests.choice_text import Piece, ScoredToken
from inflight_engine.server.responses.requests import ResponsesRequest
from inflight_engine.server.responses.scores import TextScores
from inflight_settings.engine import EngineConfig
from inflight_settings.scheduling import ServiceClass
from tests.base.virtual_time import in_virtual_time
from tests.engine.server.fake_engine import ByteTokenizer, until
from tests.engine.server.sse import events, response_of

pytestmark = pytest.mark.usefixtures("virtual_clock")

PATH = "/v1/responses"
BODY = {"model": "fake", "input": "?"}
TOOL = {"type": "function", "name": "f", "parameters": {"properties": {"a": {"type": "integer"}}}}
CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
THINK_MODEL = ModelText(chat_template="<think>")


async def ask(make_fake, text, reason=FinishReason.STOP, headers=None, **body):
    """The answer to a request, which the engine answers with this text."""
    tokenizer = ByteTokenizer()
    tokenizer.model_text = THINK_MODEL
    fake = await make_fake(tokenizer=tokenizer, tool_call_parser="hermes")
    call = asyncio.create_task(fake.http.post(PATH, json={**BODY, **body}, headers=headers))
    await until(lambda: fake.engine.requests or call.done())
    for request_id in fake.engine.requests:
        fake.engine.answer(request_id, text, reason=reason)
    return await call


def response(answer):
    """The response of a whole answer, or of the last event of a stream."""
    assert answer.status_code == 200, answer.text
    if answer.headers["content-type"].startswith("application/json"):
        return answer.json()
    assert answer.text.endswith("data: [DONE]\n\n")
    return response_of(events(answer.text))


def without_ids(items):
    ids = [each.pop("id") for each in items] + [each.pop("call_id") for each in items if "call_id" in each]
    assert len({*ids}) == len(ids)
    return items


def message(text, status="completed"):
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "message", "role": "assistant", "status": status, "content": [part]}


def reasoning(text):
    content = [{"type": "reasoning_text", "text": text}]
    return {"type": "reasoning", "status": "completed", "summary": [], "content": content}


def function_call(arguments, status="completed"):
    return {"type": "function_call", "name": "f", "arguments": arguments, "status": status}


@pytest.mark.parametrize("stream", [False, True])
@in_virtual_time
async def test_text_is_a_message(make_fake, stream):
    found = response(await ask(make_fake, "Hi", stream=stream))
    assert without_ids(found["output"]) == [message("Hi")]
    assert (found["status"], found["error"], found["incomplete_details"]) == ("completed", None, None)
    usage = found["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (7, 2, 9)


@pytest.mark.parametrize("stream", [False, True])
@in_virtual_time
async def test_thinking_text_and_calls_are_items_in_their_order(make_fake, stream):
    text = f"<think>Hm.</think>See: {CALL}{CALL}"
    found = response(await ask(make_fake, text, tools=[TOOL], stream=stream))
    items = [reasoning("Hm."), message("See:"), function_call('{"a": 1}'), function_call('{"a": 1}')]
    assert without_ids(found["output"]) == items


@pytest.mark.parametrize("stream", [False, True])
@in_virtual_time
async def test_an_answer_of_the_greatest_length_is_incomplete(make_fake, stream):
    text, bound = "<think>Hm.</think>" + CALL[:45], FinishReason.LENGTH
    found = response(await ask(make_fake, text, bound, tools=[TOOL], stream=stream, max_output_tokens=80))
    assert (found["status"], found["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert without_ids(found["output"]) == [reasoning("Hm."), function_call('{"a": 1', "incomplete")]
    assert found["max_output_tokens"] == 80


@pytest.mark.parametrize("stream", [False, True])
@in_virtual_time
async def test_an_answer_without_text_is_an_empty_message(make_fake, stream):
    assert without_ids(response(await ask(make_fake, "", stream=stream))["output"]) == [message("")]


@in_virtual_time
async def test_a_stream_begins_items_before_their_deltas_and_ends_them_in_order(make_fake):
    answer = await ask(make_fake, "<think>ab</think>cd", stream=True)
    part = "response.content_part"
    assert list(dict.fromkeys(each["type"] for each in events(answer.text))) == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        f"{part}.added",
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        f"{part}.done",
        "response.output_item.done",
        "response.output_text.delta",
        "response.output_text.done",
        "response.completed",
    ]


def allowed(mode, *names):
    return {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": name} for name in names]}


@in_virtual_time
async def test_the_response_names_the_class_that_is_asked_for_as_a_tier(make_fake):
    config = EngineConfig("fake", classes=(ServiceClass("interactive"), ServiceClass("batch")))
    found = {}
    for tier in (None, "auto", "batch"):
        answer = await ask(lambda **changes: make_fake(engine=config, **changes), "Hi", service_tier=tier)
        found[tier] = response(answer)["service_tier"]
    assert found == {None: "default", "auto": "interactive", "batch": "batch"}


@in_virtual_time
async def test_nothing_is_stored_and_the_response_says_so(make_fake):
    assert response(await ask(make_fake, "Hi", store=True))["store"] is False


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"tools": [{"type": "web_search"}]}, "tools.0"),
        ({"tools": [TOOL, {"type": "custom", "name": "g"}]}, "tools.1"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "u"}]}]}, "input.0.content.0"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input.0"),
        ({"include": ["file_search_call.results"]}, "include.0"),
        ({"unknown": 1}, "unknown"),
    ],
)
@in_virtual_time
async def test_what_is_not_supported_is_named(make_fake, body, param):
    error = (await (await make_fake()).post(PATH, **{**BODY, **body})).json()["error"]
    assert error["param"] == param
    assert error["message"].startswith(f"{param}: ")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": 3.0}, "temperature"),
        ({"tools": [{**TOOL, "name": "no name"}]}, "tools.0.name"),
        ({"tool_choice": {}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": allowed("auto", "g")}, "tool_choice.tools"),
        ({"tools": [TOOL], "tool_choice": allowed("required", "f", "g")}, "tool_choice.tools"),
        ({"reasoning": {"effort": "much"}}, "reasoning.effort"),
        ({"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "what"}}}}, "text.format"),
        ({"input": {}}, "input"),
        ({"input": [{"type": "function_call", "call_id": "1", "name": "f", "arguments": "1"}]}, "input.0.arguments"),
        ({"input": "x" * 200}, "input"),
    ],
)
@in_virtual_time
async def test_errors_have_the_names_of_this_api(make_fake, body, param):
    fake = await make_fake(tool_call_parser="hermes")
    answer = await fake.post(PATH, **{**BODY, **body})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param
    assert error["message"].startswith(f"{param}: ")
    assert "response_format" not in error["message"]


@pytest.mark.parametrize("stream", [False, True])
@in_virtual_time
async def test_numbers_of_any_size_in_schemas_are_repeated_as_they_are(make_fake, stream):
    tool = {**TOOL, "parameters": {"properties": {"a": {"maximum": 10**30, "minimum": -(10**40)}}}}
    form = {"type": "json_schema", "name": "a", "schema": {"type": "integer", "maximum": 2**64}}
    found = response(await ask(make_fake, "Hi", tools=[tool], stream=stream))
    assert found["tools"][0]["parameters"] == tool["parameters"]
    fake = await make_fake()
    call = asyncio.create_task(fake.post(PATH, **BODY, text={"format": form}, stream=stream))
    await until(lambda: fake.engine.requests or call.done())
    fake.engine.answer(0, "1")
    assert response(await call)["text"]["format"]["schema"] == form["schema"]


@in_virtual_time
async def test_ids_of_calls_differ_between_answers_of_a_conversation_with_one_request_id(make_fake):
    found = [
        response(await ask(make_fake, CALL, headers={"x-request-id": "same"}, tools=[TOOL], input=text))
        for text in ("?", "? more", "? most", "?")
    ]
    ids = [each["output"][0]["call_id"] for each in found]
    assert len({*ids[:3]}) == 3
    assert ids[3] == ids[0]


@in_virtual_time
async def test_a_limit_above_the_context_is_cut_to_it(make_fake):
    assert response(await ask(make_fake, "Hi", max_output_tokens=100_000))["max_output_tokens"] == 100_000


def chat(**body):
    request = ResponsesRequest.model_validate({**BODY, **body}).chat()
    return request.model_dump(exclude_none=True, by_alias=True)


def test_items_of_a_turn_are_one_message():
    items = [
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"type": "reasoning", "id": "rs_1", **{k: v for k, v in reasoning("Hm.").items() if k != "type"}},
        {**message("See:"), "id": "msg_1"},
        {**function_call("{}"), "call_id": "1"},
        {**function_call("{}"), "call_id": "2"},
        {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "one"}]},
        {"type": "function_call_output", "call_id": "2", "output": "two"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "So."}]},
        {"role": "assistant", "content": "Yes", "phase": "commentary"},
        {"role": "assistant", "content": "No", "phase": "final_answer"},
    ]
    call = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert chat(input=items)["messages"][0] == {"role": "system", "content": "Be kind."}
    assert chat(input=items, instructions="Be brief.")["messages"] == [
        {"role": "system", "content": "Be brief.\n\nBe kind."},
        {"role": "user", "content": "a\nb"},
        {
            "role": "assistant",
            "content": "See:",
            "reasoning": "Hm.",
            "tool_calls": [{**call, "id": "1"}, {**call, "id": "2"}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "one"},
        {"role": "tool", "tool_call_id": "2", "content": "two"},
        {"role": "assistant", "content": "Yes", "reasoning": "So."},
        {"role": "assistant", "content": "No"},
    ]


@in_virtual_time
async def test_the_output_of_an_answer_is_the_input_of_the_next(make_fake):
    found = response(await ask(make_fake, f"<think>Hm.</think>See: {CALL}", tools=[TOOL]))
    messages = chat(input=[{"role": "user", "content": "?"}, *found["output"]])["messages"]
    call_id = found["output"][-1]["call_id"]
    call = {"id": call_id, "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    assert messages[1:] == [{"role": "assistant", "reasoning": "Hm.", "content": "See:", "tool_calls": [call]}]


@pytest.mark.parametrize(
    ("choice", "meant", "tools"),
    [
        ("required", "required", ["f", "g"]),
        ({"type": "function", "name": "g"}, {"type": "function", "function": {"name": "g"}}, ["f", "g"]),
        (allowed("required", "g"), "required", ["g"]),
    ],
)
@in_virtual_time
async def test_choices_of_tools(make_fake, choice, meant, tools):
    asked = {"tools": [TOOL, {**TOOL, "name": "g"}], "tool_choice": choice}
    request = chat(**asked)
    assert request["tool_choice"] == meant
    assert [each["function"]["name"] for each in request["tools"]] == tools
    assert response(await ask(make_fake, CALL, **asked))["tool_choice"] == choice


def test_formats_of_the_text():
    form = {"type": "json_schema", "name": "a", "schema": {"type": "object"}, "strict": True}
    described = {"name": "a", "schema": {"type": "object"}, "strict": True}
    assert chat(text={"format": form})["response_format"] == {"type": "json_schema", "json_schema": described}
    assert chat(text={"format": {"type": "json_object"}})["response_format"] == {"type": "json_object"}


@in_virtual_time
async def test_an_answer_that_fails_in_its_stream_ends_with_a_failed_response(make_fake):
    fake = await make_fake(request_timeout=0.2)
    call = asyncio.create_task(fake.post(PATH, **BODY, stream=True))
    await until(lambda: fake.engine.requests)
    fake.engine.report(admitted=[(0, 0)])
    fake.engine.report(tokens={0: ord("a")})
    found = events((await call).text)
    assert [each["type"] for each in found[-2:]] == ["error", "response.failed"]
    assert [each["sequence_number"] for each in found] == list(range(len(found)))
    assert found[-1]["response"]["status"] == "failed"
    assert found[-1]["response"]["error"]["message"] == found[-2]["message"]


@pytest.mark.parametrize("field", ["messages", "max_tokens", "n"])
@in_virtual_time
async def test_fields_of_chat_requests_are_unknown(make_fake, field):
    error = (await (await make_fake()).post(PATH, **BODY, **{field: 1})).json()["error"]
    assert (error["param"], error["code"]) == (field, "unsupported_parameter")


@pytest.mark.parametrize("stream", [False, True])
@in_virtual_time
async def test_log_probabilities_are_those_of_the_tokens_of_the_text(make_fake, stream):
    tokenizer = ByteTokenizer()
    tokenizer.model_text = THINK_MODEL
    fake = await make_fake(tokenizer=tokenizer, tool_call_parser="hermes")
    asked = {"include": ["message.output_text.logprobs"], "top_logprobs": 1, "tools": [TOOL], "stream": stream}
    call = asyncio.create_task(fake.post(PATH, **BODY, **asked, max_output_tokens=90))
    await until(lambda: fake.engine.requests or call.done())
    assert fake.engine.requests[0].sampling.logprobs == 1
    fake.engine.report(admitted=[(0, 0)])
    text = f"<think>é a</think>é <a {CALL}"
    for token in text.encode():
        fake.engine.report(tokens={0: token}, logprobs=[TokenLogprobs(0, -float(token), [token], [-float(token)])])
    fake.engine.report(finished=[(0, FinishReason.STOP)])
    answer = await call
    found = response(answer)
    assert found["top_logprobs"] == 1
    if stream:
        deltas = [each for each in events(answer.text) if each["type"] == "response.output_text.delta"]
        entries = [entry for each in deltas for entry in each["logprobs"]]
        assert all(entry["logprob"] for each in deltas for entry in each["logprobs"])
        assert found["output"][1]["content"][0]["logprobs"] == []
    else:
        entries = found["output"][1]["content"][0]["logprobs"]
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == "é <a"
    assert [entry["logprob"] for entry in entries] == [-float(byte) for byte in "é <a".encode()]
    assert all(entry["top_logprobs"][0]["logprob"] == entry["logprob"] for entry in entries)


@pytest.mark.parametrize("tools", [[], [TOOL]])
@pytest.mark.parametrize("chunk", [1, 2, 3, 5])
@pytest.mark.parametrize("text", ["a\n\n b  \n c", "x << b <<<c", "é<é<<é", "a  a a a <tool a"])
@in_virtual_time
async def test_deltas_have_the_log_probabilities_of_their_tokens_however_they_are_cut(make_fake, text, chunk, tools):
    fake = await make_fake(tool_call_parser="hermes")
    asked = {"include": ["message.output_text.logprobs"], "tools": tools, "stream": True}
    call = asyncio.create_task(fake.post(PATH, **BODY, **asked))
    await until(lambda: fake.engine.requests or call.done())
    fake.engine.report(admitted=[(0, 0)])
    for number, token in enumerate(text.encode()):
        fake.engine.report(tokens={0: token}, logprobs=[TokenLogprobs(0, -1.0, [], [])])
        if number % chunk == 0:
            await asyncio.sleep(0.001)  # what is there is written
    fake.engine.report(finished=[(0, FinishReason.STOP)])
    deltas = [each for each in events((await call).text) if each["type"] == "response.output_text.delta"]
    assert "".join(each["delta"] for each in deltas) == text
    told = [bytes(byte for entry in each["logprobs"] for byte in entry["bytes"]) for each in deltas]
    assert [each["delta"].encode() for each in deltas] == told


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("before", "content", "after"),
    [
        (CALL, "1", CALL),  # also in the call before it
        (f"<think>1</think>{CALL} ", "1", f"{CALL}{CALL}"),
        ("<think>é</think>", "é", CALL),
        ("<think>\udcc3\udcff</think>", "\udcff\udcc3\udca9", CALL),  # parts of characters
    ],
)
@in_virtual_time
async def test_tokens_that_are_spelled_alike_are_told_apart(make_fake, before, content, after, stream):
    tokenizer = ByteTokenizer()
    tokenizer.model_text = THINK_MODEL
    fake = await make_fake(tokenizer=tokenizer, tool_call_parser="hermes")
    asked = {"include": ["message.output_text.logprobs"], "tools": [TOOL], "stream": stream}
    call = asyncio.create_task(fake.post(PATH, **BODY, **asked))
    await until(lambda: fake.engine.requests or call.done())
    fake.engine.report(admitted=[(0, 0)])
    written = [part.encode(errors="surrogateescape") for part in (before, content, after)]
    for number, token in enumerate(b"".join(written)):
        fake.engine.report(tokens={0: token}, logprobs=[TokenLogprobs(0, -float(number), [], [])])
    fake.engine.report(finished=[(0, FinishReason.STOP)])
    answer = await call
    if stream:
        found = [each for each in events(answer.text) if each["type"] == "response.output_text.delta"]
    else:
        found = [part for item in response(answer)["output"] if item["type"] == "message" for part in item["content"]]
    entries = [(-entry["logprob"], bytes(entry["bytes"])) for each in found for entry in each["logprobs"]]
    assert entries == [(number, bytes([byte])) for number, byte in enumerate(written[1], len(written[0]))]


def test_a_token_of_two_parts_is_told_with_the_first():
    spelled = ["<think>\n", "a", "</think>\n\n", "f(", ");\n", "\n  re", "turn", " <", "b"]
    offsets = accumulate(map(len, spelled), initial=0)
    tokens = [
        ScoredToken(number, offset, TokenLogprobs(0, -1.0, [], [])) for number, offset in enumerate([*offsets][:-1])
    ]
    scores = TextScores(SimpleNamespace(parsing=True), lambda number: spelled[number].encode())
    parts = [TextEvent("reasoning", "a", 8), TextEvent("content", "f();", 19)]
    told = [*scores.of(Piece("", tokens[:5], events=parts)), *scores.of(Piece("", tokens[5:6]))]
    parts = [TextEvent("content", "\n\n  return", 23), TextEvent("content", " <b", 33)]
    told += scores.of(Piece("", tokens[6:], events=parts))
    assert [[entry["token"] for entry in each] for each in told] == [spelled[3:5], spelled[5:7], spelled[7:]]


@in_virtual_time
async def test_log_probabilities_of_plain_text_are_complete(make_fake):
    fake = await make_fake()
    call = asyncio.create_task(fake.post(PATH, **BODY, include=["message.output_text.logprobs"]))
    await until(lambda: fake.engine.requests or call.done())
    fake.engine.report(admitted=[(0, 0)])
    for token in b"aba":
        fake.engine.report(tokens={0: token}, logprobs=[TokenLogprobs(0, -1.0, [], [])])
    fake.engine.report(finished=[(0, FinishReason.STOP)])
    (part,) = response(await call)["output"][0]["content"]
    assert [(each["token"], each["top_logprobs"]) for each in part["logprobs"]] == [("a", []), ("b", []), ("a", [])]


def test_ranks_need_log_probabilities():
    with pytest.raises(ApiError, match=r"^top_logprobs: .*include"):
        chat(top_logprobs=1)
    assert chat(top_logprobs=0).get("logprobs") is None
