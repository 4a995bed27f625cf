"""OpenAI's SDK: chat, responses, streams, tools, structured output, completions, embeddings, models and errors; the
example of the guide to tools, with Anthropic's SDK too."""

import asyncio
import json
import re
from pathlib import Path

import openai
import pytest
from pydantic import BaseModel

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds two numbers",
            "parameters": {
                "type": "object",
                "properties": {
                    "a": {"type": "integer", "minimum": 0, "maximum": 9},
                    "b": {"type": "integer", "minimum": 0, "maximum": 9},
                },
                "required": ["a", "b"],
                "additionalProperties": False,
            },
        },
    }
]
FUNCTION = {"type": "function", "strict": True, **TOOLS[0]["function"]}
QUESTION = [{"role": "user", "content": "What is 2 + 3?"}]
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "tools.md"


class Sum(BaseModel):
    result: bool


@pytest.fixture(scope="module")
def client(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_an_answer_and_its_stream_are_the_same(client, model):
    asked = {"model": model, "messages": QUESTION, "max_tokens": 16, "temperature": 0}
    whole = client.chat.completions.create(**asked)
    stream = client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


async def _async_text(url, asked):
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none")
    async with client, client.chat.completions.stream(**asked) as stream:
        final = await stream.get_final_completion()
    return final.choices[0].message.content


def test_the_helper_for_streams_puts_the_same_answer_together(client, url, model):
    asked = {"model": model, "messages": QUESTION, "max_tokens": 16, "temperature": 0}
    whole = client.chat.completions.create(**asked)
    assert asyncio.run(_async_text(url, asked)) == whole.choices[0].message.content


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "add"}}])
def test_a_demanded_call_comes_whole_and_in_deltas_and_its_result_goes_back(client, model, choice):
    asked = {"model": model, "messages": QUESTION, "tools": TOOLS, "tool_choice": choice, "temperature": 0}
    message = client.chat.completions.create(**asked).choices[0].message
    call = message.tool_calls[0]
    assert call.function.name == "add"
    assert set(json.loads(call.function.arguments)) == {"a", "b"}
    with client.chat.completions.stream(**asked) as stream:
        final = stream.get_final_completion().choices[0]
    assert final.message.tool_calls[0].function.arguments == call.function.arguments
    back = [*QUESTION, message, {"role": "tool", "tool_call_id": call.id, "content": "5"}]
    answer = client.chat.completions.create(model=model, messages=back, tools=TOOLS, max_tokens=8)
    assert answer.choices[0].message.role == "assistant"


def test_an_answer_is_parsed_into_a_model_of_pydantic(client, model):
    answer = client.chat.completions.parse(model=model, messages=QUESTION, response_format=Sum, temperature=0)
    assert isinstance(answer.choices[0].message.parsed, Sum)


def test_a_response_and_its_stream_are_the_same(client, model):
    asked = {"model": model, "input": "What is 2 + 3?", "max_output_tokens": 16, "temperature": 0}
    whole = client.responses.create(**asked)
    events = list(client.responses.create(**asked, stream=True))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    final = events[-1].response
    assert whole.output_text == text == final.output_text
    assert whole.status == final.status
    assert whole.usage.output_tokens == final.usage.output_tokens > 0


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "add"}])
def test_a_response_calls_a_demanded_function_whole_and_in_deltas_and_its_result_goes_back(client, model, choice):
    asked = {"model": model, "input": QUESTION, "tools": [FUNCTION], "tool_choice": choice, "temperature": 0}
    call = client.responses.create(**asked).output[0]
    assert (call.type, call.name) == ("function_call", "add")
    assert set(json.loads(call.arguments)) == {"a", "b"}
    with client.responses.stream(**asked) as stream:
        final = stream.get_final_response().output[0]
    assert final.arguments == call.arguments
    back = [*QUESTION, call, {"type": "function_call_output", "call_id": call.call_id, "output": "5"}]
    answer = client.responses.create(model=model, input=back, tools=[FUNCTION], max_output_tokens=8)
    assert answer.output[0].type == "message"


def test_a_response_is_parsed_into_a_model_of_pydantic(client, model):
    asked = {"model": model, "input": QUESTION, "text_format": Sum, "temperature": 0}
    parsed = client.responses.parse(**asked).output_parsed
    assert isinstance(parsed, Sum)
    with client.responses.stream(**asked) as stream:
        assert stream.get_final_response().output_parsed == parsed


def test_logprobs_and_several_choices(client, model):
    answer = client.chat.completions.create(
        model=model, messages=QUESTION, n=2, seed=1, logprobs=True, top_logprobs=3, max_tokens=4
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert all(len(token.top_logprobs) == 3 for choice in answer.choices for token in choice.logprobs.content)


def test_completions_of_several_prompts(client, model):
    answer = client.completions.create(model=model, prompt=["One, two,", "A, b,"], max_tokens=4, logprobs=1, echo=True)
    assert [choice.text[:3] for choice in answer.choices] == ["One", "A, "]


def test_embeddings_are_the_same_in_base64_which_is_the_default_and_as_numbers(client, model):
    asked = {"model": model, "input": ["One.", "Two."]}
    packed, plain = (client.embeddings.create(**asked, **form).data for form in ({}, {"encoding_format": "float"}))
    assert packed[0].embedding != packed[1].embedding
    for one, other in zip(packed, plain, strict=True):
        assert one.embedding == pytest.approx(other.embedding, abs=1e-6)


def test_the_example_of_the_guide_prints_answers(url, model, capsys):
    (example,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    exec(example.replace("http://127.0.0.1:8000", url).replace('"chat"', repr(model)))
    assert "TextBlock" in capsys.readouterr().out


def test_models(client, model):
    assert [each.id for each in client.models.list()] == [model]
    assert client.models.retrieve(model).id == model


def test_errors_are_those_of_the_sdk(client, model):
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="another", messages=QUESTION)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(model=model, messages=QUESTION, temperature=-1)
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as stored:
        client.responses.create(model=model, input=QUESTION, previous_response_id="resp_1")
    assert stored.value.param == "previous_response_id"
