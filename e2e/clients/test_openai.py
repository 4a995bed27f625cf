"""OpenAI's SDK: chat, streams, tools, structured output, completions, models and errors."""

import asyncio
import json

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
QUESTION = [{"role": "user", "content": "What is 2 + 3?"}]


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


def test_logprobs_and_several_choices(client, model):
    answer = client.chat.completions.create(
        model=model, messages=QUESTION, n=2, seed=1, logprobs=True, top_logprobs=3, max_tokens=4
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert all(len(token.top_logprobs) == 3 for choice in answer.choices for token in choice.logprobs.content)


def test_completions_of_several_prompts(client, model):
    answer = client.completions.create(model=model, prompt=["One, two,", "A, b,"], max_tokens=4, logprobs=1, echo=True)
    assert [choice.text[:3] for choice in answer.choices] == ["One", "A, "]


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
