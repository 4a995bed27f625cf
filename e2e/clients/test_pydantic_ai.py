"""pydantic-ai: an agent with tools, typed results in two ways, streams, over three APIs."""

import asyncio

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider


class Verdict(BaseModel):
    good: bool


@pytest.fixture(params=[OpenAIChatModel, OpenAIResponsesModel, AnthropicModel], ids=lambda kind: kind.__name__)
def served(request, url, model):
    if request.param is AnthropicModel:
        provider = AnthropicProvider(base_url=url, api_key="none")
    else:
        provider = OpenAIProvider(base_url=f"{url}/v1", api_key="none")
    profile = {"supports_json_schema_output": True}  # of Anthropic's models the client goes by the name
    return request.param(model, provider=provider, profile=profile, settings={"temperature": 0, "max_tokens": 64})


@pytest.mark.parametrize("output", [ToolOutput, NativeOutput], ids=lambda kind: kind.__name__)
def test_a_result_has_the_type_that_was_asked_for(served, output):
    assert isinstance(Agent(served, output_type=output(Verdict)).run_sync("Is bread good?").output, Verdict)


def test_a_tool_is_called_before_the_result(served):
    agent, cities = Agent(served, output_type=ToolOutput(Verdict)), []

    @agent.tool_plain
    def weather(city: str) -> str:
        """The weather of a city."""
        cities.append(city)
        return "sunny"

    assert isinstance(agent.run_sync("Is the weather in Paris good?").output, Verdict)


def test_a_stream_ends_with_the_answer_of_a_run(served):
    async def both():
        async with Agent(served).run_stream("Say hello.") as streamed:
            return await streamed.get_output(), (await Agent(served).run("Say hello.")).output

    first, second = asyncio.run(both())
    assert first == second
