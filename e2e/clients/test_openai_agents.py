"""openai-agents: a run with a tool, and one with a typed result, over chat completions and responses."""

import asyncio

import pytest
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
)
from openai import AsyncOpenAI
from pydantic import BaseModel

called = []


@function_tool
def weather(city: str) -> str:
    """The weather of a city."""
    called.append(city)
    return "sunny"


class Verdict(BaseModel):
    good: bool


@pytest.fixture(params=[OpenAIChatCompletionsModel, OpenAIResponsesModel], ids=lambda kind: kind.__name__)
def served(request, url, model):
    return request.param(model, AsyncOpenAI(base_url=f"{url}/v1", api_key="none"))


def test_a_demanded_tool_is_called_and_the_run_goes_on_to_an_answer(served):
    called.clear()
    agent = Agent(
        name="forecaster",
        instructions="Answer with the weather.",
        model=served,
        tools=[weather],
        model_settings=ModelSettings(tool_choice="required", temperature=0, max_tokens=64),
    )
    result = Runner.run_sync(agent, "How is the weather in Paris?", max_turns=3)
    assert called
    assert isinstance(result.final_output, str)


def test_a_result_has_the_type_that_was_asked_for(served):
    agent = Agent(name="judge", model=served, output_type=Verdict, model_settings=ModelSettings(temperature=0))
    assert isinstance(Runner.run_sync(agent, "Is bread good?").final_output, Verdict)


def test_a_streamed_run_ends_with_the_answer_of_a_run(served):
    # No bound: a response that reaches one is an error to the client.
    agent = Agent(name="writer", model=served, model_settings=ModelSettings(temperature=0))

    async def both():
        streamed = Runner.run_streamed(agent, "Say hello.")
        assert [event async for event in streamed.stream_events()]
        return streamed.final_output, (await Runner.run(agent, "Say hello.")).final_output

    first, second = asyncio.run(both())
    assert first == second
