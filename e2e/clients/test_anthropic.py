"""Anthropic's SDK: messages, streams, tools, structured output, counts of tokens and errors."""

import anthropic
import pytest
from pydantic import BaseModel

TOOLS = [
    {
        "name": "add",
        "description": "Adds two numbers",
        "input_schema": {
            "type": "object",
            "properties": {
                "a": {"type": "integer", "minimum": 0, "maximum": 9},
                "b": {"type": "integer", "minimum": 0, "maximum": 9},
            },
            "required": ["a", "b"],
            "additionalProperties": False,
        },
    }
]
QUESTION = [{"role": "user", "content": "What is 2 + 3?"}]


class Verdict(BaseModel):
    good: bool


@pytest.fixture(scope="module")
def client(url):
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def test_a_message_and_its_stream_are_the_same(client, model):
    asked = {"model": model, "messages": QUESTION, "system": "Be brief.", "max_tokens": 16}
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert whole.content[0].text == text == final.content[0].text
    assert whole.stop_reason == final.stop_reason
    assert whole.usage.output_tokens == final.usage.output_tokens > 0


def test_the_prefilled_message_of_an_assistant_is_continued(client, model):
    asked = {"model": model, "max_tokens": 8, "stop_sequences": ["three"]}
    begun = [{"role": "user", "content": "Count to five."}, {"role": "assistant", "content": "one, two,"}]
    answer = client.messages.create(**asked, messages=begun)
    assert answer.stop_reason in ("max_tokens", "stop_sequence", "end_turn")
    if answer.stop_reason == "stop_sequence":
        assert answer.stop_sequence == "three"


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "add"}], ids=lambda each: each["type"])
def test_a_demanded_call_comes_whole_and_in_deltas_and_its_result_goes_back(client, model, choice):
    one = {**choice, "disable_parallel_tool_use": True}
    asked = {"model": model, "messages": QUESTION, "tools": TOOLS, "tool_choice": one, "max_tokens": 64}
    message = client.messages.create(**asked)
    assert message.stop_reason == "tool_use"
    call = message.content[-1]
    assert (call.type, call.name) == ("tool_use", "add")
    assert set(call.input) == {"a", "b"}
    with client.messages.stream(**asked) as stream:
        final = stream.get_final_message()
    assert final.content[-1].input == call.input
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "5"}
    back = [*QUESTION, {"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
    answer = client.messages.create(model=model, messages=back, tools=TOOLS, max_tokens=8)
    assert answer.role == "assistant"


def test_an_answer_is_parsed_into_a_model_of_pydantic(client, model):
    asked = [{"role": "user", "content": "Is bread good?"}]
    answer = client.messages.parse(model=model, messages=asked, max_tokens=64, output_format=Verdict)
    assert isinstance(answer.parsed_output, Verdict)


def test_tokens_are_counted_as_a_message_uses_them(client, model):
    for asked in ({"messages": QUESTION}, {"messages": QUESTION, "tools": TOOLS, "system": "Be brief."}):
        counted = client.messages.count_tokens(model=model, **asked).input_tokens
        used = client.messages.create(model=model, max_tokens=1, **asked).usage
        assert counted == used.input_tokens + (used.cache_read_input_tokens or 0)


def test_models(client, model):
    assert [each.id for each in client.models.list()] == [model]


def test_errors_are_those_of_the_sdk(client, model):
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.messages.create(model="another", messages=QUESTION, max_tokens=1)
    assert missing.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        client.messages.create(model=model, messages=QUESTION, max_tokens=1, extra_body={"temperature": -1})
