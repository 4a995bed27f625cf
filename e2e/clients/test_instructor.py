"""instructor: results with a type by tool calls and by JSON schema, whole, streamed and asynchronous."""

import asyncio

import instructor
import openai
import pytest
from pydantic import BaseModel, Field

MODES = (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA)
QUESTION = [{"role": "user", "content": "Judge: bread is good."}]


class Verdict(BaseModel, extra="forbid"):
    good: bool
    stars: int = Field(ge=1, le=5)


@pytest.fixture
def asked(model):
    # The penalty keeps the small model from writing spaces without end.
    steady = {"temperature": 0, "frequency_penalty": 1, "max_tokens": 96}
    return {"model": model, "messages": QUESTION, "max_retries": 0, **steady}


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_a_result_has_the_type_that_was_asked_for(url, asked, mode):
    client = instructor.from_openai(openai.OpenAI(base_url=f"{url}/v1", api_key="none"), mode=mode)
    result = client.create(response_model=Verdict, **asked)
    assert isinstance(result, Verdict)
    *_, last = client.create_partial(response_model=Verdict, **asked)
    assert last.model_dump() == result.model_dump()


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_asynchronous_clients_get_the_same_type(url, asked, mode):
    async def result():
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
            return await instructor.from_openai(client, mode=mode).create(response_model=Verdict, **asked)

    assert isinstance(asyncio.run(result()), Verdict)
