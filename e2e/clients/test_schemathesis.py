"""schemathesis over OpenAI's own specification, which llm-comply bundles, and over the engine's: no error of a server,
whatever is sent."""

import json
import os
from importlib.resources import files

import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error

URL = os.environ["INFLIGHT_URL"]
EXAMPLES = int(os.environ.get("INFLIGHT_EXAMPLES", "100"))
SHORT = {"max_tokens": 4, "max_completion_tokens": 4, "max_output_tokens": 16}

openai = json.loads(files("llm_comply").joinpath("specs", "openai_chat.json").read_text())
OPENAI = schemathesis.openapi.from_dict(openai).include(
    path=["/chat/completions", "/completions", "/models", "/models/{model}"]
)
OURS = schemathesis.openapi.from_url(f"{os.environ['INFLIGHT_ENGINE']}/openapi.json")
PROFILE = settings(
    max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


def send(case, base):
    """Asks for short answers, which is all that the examples need of a model."""
    if isinstance(case.body, dict):
        for name, most in SHORT.items():
            value = case.body.get(name)
            if isinstance(value, int) and not isinstance(value, bool):
                case.body[name] = min(value, most)
    case.call_and_validate(base_url=base, checks=[not_a_server_error])


@OPENAI.parametrize()
@PROFILE
def test_openai(case):
    send(case, f"{URL}/v1")


@OURS.parametrize()
@PROFILE
def test_ours(case):
    send(case, URL)
