"""The real model: answers follow their grammar, in whatever company, and through the SDK."""

import json
import random
import re
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest
from pydantic import BaseModel

pytestmark = pytest.mark.slow

QUESTION = [{"role": "user", "content": "Describe a person, in JSON."}]
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture
def sdk(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0, timeout=120)


class Person(BaseModel):
    name: str
    age: int


@pytest.mark.parametrize("temperature", [0, 1])
def test_the_sdk_parses_an_answer_into_a_model(sdk, temperature):
    answer = sdk.chat.completions.parse(
        model="smollm2", messages=QUESTION, response_format=Person, temperature=temperature, seed=1, max_tokens=200
    )
    (choice,) = answer.choices
    assert choice.finish_reason == "stop"
    assert isinstance(choice.message.parsed, Person)


@pytest.mark.parametrize("more", [{}, {"ignore_eos": True}, {"min_tokens": 40}, {"logit_bias": {"2": 100}}])
def test_an_answer_ends_where_its_text_is_complete(server, more):
    body = {"prompt": "Yes or no?", "max_tokens": 60, "temperature": 0, **more}
    answer = httpx.post(f"{server.url}/v1/completions", json=body | {"structured_outputs": {"choice": ["yes", "no"]}})
    (choice,) = answer.json()["choices"]
    assert (choice["text"] in ("yes", "no"), choice["finish_reason"]) == (True, "stop")


def test_requests_with_and_without_grammars_have_the_answers_that_they_have_alone(server):
    forms = [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON, "strict": True}}},
        {},
        {"structured_outputs": {"regex": "[0-9]{3}-[0-9]{4}"}},
        {"structured_outputs": {"choice": ["red", "green", "blue"]}, "logprobs": True, "top_logprobs": 2},
        {"structured_outputs": {"grammar": 'start: word (", " word){2}\nword: /[a-z]{2,8}/'}, "n": 2},
        {"structured_outputs": {"json_object": True}, "frequency_penalty": 0.5},
    ]
    bodies = [
        {"messages": QUESTION, "max_tokens": 40, "temperature": i % 2, "seed": i, **form}
        for i, form in enumerate(forms * 2)
    ]

    def ask(body):
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=120)
        assert answer.status_code == 200, answer.text
        return [(each["message"]["content"], each["finish_reason"]) for each in answer.json()["choices"]]

    alone = [ask(body) for body in bodies]
    with ThreadPoolExecutor(len(bodies)) as pool:
        assert list(pool.map(ask, bodies)) == alone
    assert re.fullmatch("[0-9]{3}-[0-9]{4}", alone[2][0][0])
    assert set(json.loads(alone[0][0][0])) == {"name", "age"}


def random_schema(rng, depth=2):
    """A schema of keywords that are supported."""
    kind = rng.choice(["string", "integer", "number", "boolean", "null", "enum", "const"] + ["object", "array"] * depth)
    match kind:
        case "string":
            return {"type": "string"} | rng.choice(
                [{"maxLength": 6}, {"pattern": "^[a-z]{2,5}$"}, {"format": "date"}, {"format": "uuid"}]
            )
        case "integer":
            return {"type": "integer", "minimum": rng.randrange(5), "maximum": rng.randrange(5, 1000)}
        case "number":
            return {"type": "number", "minimum": 0, "exclusiveMaximum": 10}
        case "enum":
            return {"enum": ["a", 1, None, True, "b c"]}
        case "const":
            return {"const": rng.choice(["x", 3, {"k": [1]}])}
        case "object":
            names = [f"p{i}" for i in range(rng.randrange(1, 4))]
            return {
                "type": "object",
                "properties": {name: random_schema(rng, depth - 1) for name in names},
                "required": [name for name in names if rng.random() < 0.7],
                "additionalProperties": False,
            }
        case "array":
            return {"type": "array", "items": random_schema(rng, depth - 1), "minItems": 1, "maxItems": 3}
    if rng.random() < 0.3:
        return {"anyOf": [{"type": kind}, {"const": "other"}]}
    return {"type": kind}


def test_answers_of_random_schemas_are_valid_whenever_they_end_with_stop(server):
    rng = random.Random(1)
    schemas = [random_schema(rng) for _ in range(24)]

    def ask(schema):
        body = {
            "messages": QUESTION,
            "max_tokens": 120,
            "temperature": 1,
            "seed": 5,
            "structured_outputs": {"json": schema},
        }
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=120)
        assert answer.status_code == 200, answer.text
        (choice,) = answer.json()["choices"]
        return choice["finish_reason"], choice["message"]["content"]

    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(ask, schemas))
    complete = [(schema, text) for schema, (reason, text) in zip(schemas, answers, strict=True) if reason == "stop"]
    assert len(complete) > 12
    for schema, text in complete:
        assert valid(schema, json.loads(text)), (schema, text)


def valid(schema, value):
    """JSON schema's meaning of the keywords of `random_schema`."""
    if "anyOf" in schema:
        return any(valid(each, value) for each in schema["anyOf"])
    if "enum" in schema:
        return value in schema["enum"]
    if "const" in schema:
        return value == schema["const"]
    match schema["type"]:
        case "string":
            if not isinstance(value, str) or len(value) > schema.get("maxLength", len(value)):
                return False
            forms = {"date": r"\d{4}-\d{2}-\d{2}", "uuid": r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"}
            pattern = forms.get(schema.get("format"), schema.get("pattern", r"[\s\S]*"))
            return re.search(f"^(?:{pattern})$", value) is not None
        case "integer":
            return type(value) is int and schema["minimum"] <= value <= schema["maximum"]
        case "number":
            return type(value) in (int, float) and 0 <= value < 10
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
        case "object":
            return set(schema["required"]) <= set(value) <= set(schema["properties"]) and all(
                valid(schema["properties"][name], part) for name, part in value.items()
            )
    return 1 <= len(value) <= 3 and all(valid(schema["items"], part) for part in value)
