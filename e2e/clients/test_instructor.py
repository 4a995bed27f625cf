"""instructor: a model of pydantic, by tools, by JSON schema and in JSON mode."""

import instructor
import openai
import pytest
from pydantic import BaseModel

MODES = [instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA]


class Verdict(BaseModel):
    good: bool
    certain: bool


@pytest.mark.parametrize("mode", MODES, ids=[mode.name for mode in MODES])
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_an_answer_has_the_type_that_was_asked_for(url, model, mode, streamed):
    client = instructor.from_openai(openai.OpenAI(base_url=f"{url}/v1", api_key="none"), mode=mode)
    asked = {"model": model, "messages": [{"role": "user", "content": "Is bread good?"}], "temperature": 0}
    if streamed:
        last = [*client.chat.completions.create_partial(response_model=Verdict, **asked)][-1]
    else:
        last = client.chat.completions.create(response_model=Verdict, max_retries=0, **asked)
    assert isinstance(last.good, bool)
    assert isinstance(last.certain, bool)
