"""schemathesis: requests generated from specifications of the APIs get no server error (status 5xx).

The specifications are OpenAI's, Open Responses' and Anthropic's, which llm-comply brings along, of the paths that are
served here, and the server's own. Most of what they permit is refused here by name: a refused request is sent again
without the field, until it is taken or refused for another reason. So that requests reach the model, they name it; so
that they end, their answers are short.
"""

import json
import os
import re
import urllib.request
from collections import Counter
from importlib.resources import files

import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.config import SchemathesisConfig

URL, MODEL = os.environ["INFLIGHT_URL"], os.environ["INFLIGHT_MODEL"]
MAX_EXAMPLES = 10
FIRST = 4
MAX_TOKENS = 4
ATTEMPTS = 16
SECONDS = 120
OPENAI = "^/(chat/completions|completions|embeddings|responses|models|models/{model})$"
ANTHROPIC = "^/v1/(messages|messages/count_tokens)$"
# The calls of administrators stop the server, or change it for all tests.
OWN = "^/(?!admin/|v1/runtime_config)"

BOUNDS = {
    "/chat/completions": "max_completion_tokens",
    "/completions": "max_tokens",
    "/responses": "max_output_tokens",
    "/messages": "max_tokens",
    "/generate": "max_tokens",
}
"""Field that bounds the answer, by the end of the path."""

CONFIG = {
    "seed": 1,
    "generation": {"max-examples": MAX_EXAMPLES, "deterministic": True, "database": "none"},
    "phases": {"coverage": {"unexpected-methods": ["DELETE"]}},
}

seen = Counter()


def bundled(name):
    return json.loads(files("llm_comply").joinpath("specs", f"{name}.json").read_text())


def own():
    with urllib.request.urlopen(f"{os.environ['INFLIGHT_ENGINE']}/openapi.json") as response:
        return json.load(response)


def schema(specification, paths, base=""):
    config = SchemathesisConfig.from_dict({**CONFIG, "base-url": f"{URL}{base}"})
    # OpenAI's has a hundred paths, and takes long to read.
    served = {path: each for path, each in specification["paths"].items() if re.match(paths, path)}
    return schemathesis.openapi.from_dict({**specification, "paths": served}, config=config)


def prepared(case):
    """The body, with the name of the model and a bound on the length of the answer."""
    bound = next((name for end, name in BOUNDS.items() if case.path.endswith(end)), None)
    asked = case.body.get(bound)
    most = min(asked, MAX_TOKENS) if type(asked) is int else asked
    bounds = {} if bound is None else {bound: MAX_TOKENS if asked is None else most}
    return {**case.body, **({"model": MODEL} if "model" in case.body else {}), **bounds}


def refused(response):
    """The field that a request was refused for: its name is in front of the message."""
    return re.match(r"\w*", response.json()["error"]["message"])[0]


def is_sent(case):
    """Thins out the thousands of cases at the bounds of a specification: of each twice as many, half are sent."""
    if case.meta.phase.name != "coverage":
        return True
    number = seen[case.operation.label]
    seen[case.operation.label] += 1
    return number % (1 << max(0, (number // FIRST).bit_length() - 1)) == 0


@schemathesis.pytest.parametrize(
    openai=schema(bundled("openai_chat"), OPENAI, "/v1"),
    openresponses=schema(bundled("openresponses"), OPENAI, "/v1"),
    anthropic=schema(bundled("anthropic"), ANTHROPIC),
    own=schema(own(), OWN),
)
def test_no_request_gets_a_server_error(case):
    if not is_sent(case):
        return
    for _ in range(ATTEMPTS):
        if isinstance(case.body, dict):
            case.body = prepared(case)
        response = case.call_and_validate(checks=[not_a_server_error], timeout=SECONDS)
        if (
            response.status_code != 400
            or not isinstance(case.body, dict)
            or (field := refused(response)) not in case.body
        ):
            return
        case.body = {name: value for name, value in case.body.items() if name != field}
