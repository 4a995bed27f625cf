"""pydantic-ai: an agent with tools, typed results in three ways, streams."""

import asyncio

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


class Verdict(BaseModel):
    good: bool


@pytest.fixture
def chat(url, model):
    provider = OpenAIProvider(base_url=f"{url}/v1", api_key="none")
    return OpenAIChatModel(model, provider=provider, settings={"temperature": 0, "max_tokens": 64})


@pytest.mark.parametrize("output", [ToolOutput, NativeOutput], ids=lambda kind: kind.__name__)
def test_a_result_has_the_type_that_was_asked_for(chat, output):
    assert isinstance(Agent(chat, output_type=output(Verdict)).run_sync("Is bread good?").output, Verdict)


def test_a_tool_is_called_before_the_result(chat):
    agent, cities = Agent(chat, output_type=ToolOutput(Verdict)), []

    @agent.tool_plain
    def weather(city: str) -> str:
        """The weather of a city."""
        cities.append(city)
        return "sunny"

    assert isinstance(agent.run_sync("Is the weather in Paris good?").output, Verdict)


def test_a_stream_ends_with_the_answer_of_a_run(chat):
    async def both():
        async with Agent(chat).run_stream("Say hello.") as streamed:
            return await streamed.get_output(), (await Agent(chat).run("Say hello.")).output

    first, second = asyncio.run(both())
    assert first == second
