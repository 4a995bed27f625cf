"""Every parameter that is not supported is refused by its name, in OpenAI's shape; what asks for nothing is taken."""

import asyncio
from importlib.metadata import version

import pytest
from pydantic import ValidationError

from inflight_engine.request import FinishReason
from inflight_engine.server.bodies.chat_schema import ChatCompletionRequest
from inflight_engine.server.bodies.schema import CompletionRequest, GenerateRequest
from tests.engine.server.fake_engine import until
from tests.engine.server.test_requests import metrics

MESSAGES = [{"role": "user", "content": "hi"}]
BODIES = {"/v1/chat/completions": {"messages": MESSAGES}, "/v1/completions": {"prompt": "hi"}}

BOTH = [
    ("best_of", 2),
    ("guided_json", {}),
    ("guided_regex", "a"),
    ("service_class", "default"),
    ("no_such_parameter", None),
]
CHAT = [
    ("tools", [{"type": "function", "function": {"name": "f"}}]),
    ("functions", [{"name": "f"}]),
    ("function_call", {"name": "f"}),
    ("modalities", ["text", "audio"]),
    ("audio", {"voice": "alloy", "format": "wav"}),
    ("prediction", {"type": "content", "content": "x"}),
    ("verbosity", "low"),
    ("store", True),
    ("metadata", {"a": "b"}),
    ("web_search_options", {}),
    ("echo", True),
]
COMPLETION = [("top_logprobs", 1), ("suffix", "end"), ("tools", [])]
UNSUPPORTED = (
    [(path, *case) for path in BODIES for case in BOTH]
    + [("/v1/chat/completions", *case) for case in CHAT]
    + [("/v1/completions", *case) for case in COMPLETION]
)


async def test_the_openapi_page_describes_errors_as_they_are(make_fake):
    page = (await (await make_fake()).http.get("/openapi.json")).json()
    assert page["info"]["version"] == version("inflight")
    operations = {(path, method): each for path, methods in page["paths"].items() for method, each in methods.items()}
    for (path, _), operation in operations.items():
        assert "422" not in operation["responses"]
        schema = operation["responses"]["default"]["content"]["application/json"]["schema"]
        assert ("param" in schema["properties"]["error"]["properties"]) == (not path.startswith("/v1/messages"))
    assert ("/v1/messages", "post") in operations


@pytest.mark.parametrize(("path", "name", "value"), UNSUPPORTED)
async def test_unsupported_parameter_is_refused_by_name(make_fake, path, name, value):
    fake = await make_fake()
    answer = await fake.post(path, **BODIES[path], **{name: value})
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert (error["param"], error["code"]) == (name, "unsupported_parameter")
    assert name in error["message"]
    assert error["type"] == "invalid_request_error"
    assert not fake.engine.requests


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("best_of", 1, "best_of"),
        ("min_tokens", -1, "min_tokens"),
        ("echo", True, "echo"),
        ("top_logprobs", 1, "top_logprobs"),
        ("logprobs", 21, "logprobs"),
        ("prompt", ["a", "b"], "prompt.0"),
        ("stop", "", "stop"),
    ],
)
async def test_generate_refuses_what_it_has_not(make_fake, field, value, param):
    fake = await make_fake()
    answer = await fake.post("/v1/generate", **{"prompt": "hi", field: value})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


NEUTRAL = {
    "n": 1,
    "best_of": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0.0,
    "logit_bias": None,
    "user": "someone",
    "seed": None,
    "stop": None,
    "stream": False,
}


@pytest.mark.parametrize(
    ("path", "more"),
    [
        (
            "/v1/chat/completions",
            {
                "logprobs": False,
                "top_logprobs": None,
                "tools": [],
                "tool_choice": "none",
                "response_format": {"type": "text"},
                "modalities": ["text"],
                "service_tier": "auto",
                "store": False,
            },
        ),
        ("/v1/completions", {"logprobs": None, "echo": False, "suffix": None}),
    ],
)
async def test_values_that_ask_for_nothing_are_accepted(make_fake, path, more):
    fake = await make_fake()
    call = asyncio.create_task(fake.post(path, **BODIES[path], **NEUTRAL, **more))
    await until(lambda: fake.engine.requests)
    fake.engine.answer(0, "ok")
    assert (await call).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {}, "prompt"),
        ("/v1/completions", {"prompt": []}, "prompt"),
        ("/v1/completions", {"prompt": ["a", ""]}, "prompt"),
        ("/v1/completions", {"prompt": ["a", [1]]}, "prompt.1"),
        ("/v1/completions", {"prompt": [[1], [256]]}, "prompt"),
        ("/v1/completions", {"prompt": "a", "n": 0}, "n"),
        ("/v1/completions", {"prompt": "a", "n": True}, "n"),
        ("/v1/completions", {"prompt": "a", "n": 129}, "n"),
        ("/v1/completions", {"prompt": "a", "n": 9}, "n"),
        ("/v1/completions", {"prompt": ["a", "b", "c"], "n": 3}, "n"),
        ("/v1/completions", {"prompt": "a", "n": 2, "best_of": 3}, "best_of"),
        ("/v1/completions", {"prompt": "a", "best_of": True}, "best_of"),
        ("/v1/completions", {"prompt": "a", "logprobs": 6}, "logprobs"),
        ("/v1/completions", {"prompt": "a", "logprobs": True}, "logprobs"),
        ("/v1/completions", {"prompt": "a", "presence_penalty": 2.1}, "presence_penalty"),
        ("/v1/completions", {"prompt": "a", "frequency_penalty": -2.1}, "frequency_penalty"),
        ("/v1/completions", {"prompt": "a", "repetition_penalty": 0}, "repetition_penalty"),
        ("/v1/completions", {"prompt": "a", "repetition_penalty": 1e-40}, "repetition_penalty"),
        ("/v1/completions", {"prompt": "a", "min_p": 1.5}, "min_p"),
        ("/v1/completions", {"prompt": "a", "logit_bias": {"5": 101}}, "logit_bias.5"),
        ("/v1/completions", {"prompt": "a", "logit_bias": {"a": 1}}, "logit_bias.a"),
        ("/v1/completions", {"prompt": "a", "logit_bias": {"05": 1}}, "logit_bias.05"),
        ("/v1/completions", {"prompt": "a", "logit_bias": {"256": 1}}, "logit_bias"),
        ("/v1/completions", {"prompt": "a", "logit_bias": [1]}, "logit_bias"),
        ("/v1/completions", {"prompt": "a", "priority": 101}, "priority"),
        ("/v1/completions", {"prompt": "a", "priority": 0.5}, "priority"),
        ("/v1/completions", {"prompt": "a", "class": "batch"}, "class"),
        ("/v1/completions", {"prompt": "a", "class": 3}, "class"),
        ("/v1/completions", {"prompt": "a", "cache_salt": ""}, "cache_salt"),
        ("/v1/completions", {"prompt": "a", "cache_salt": "x" * 257}, "cache_salt"),
        ("/v1/completions", {"prompt": "a", "expected_output_tokens": 0}, "expected_output_tokens"),
        ("/v1/completions", {"prompt": 3}, "prompt"),
        ("/v1/completions", {"prompt": ""}, "prompt"),
        ("/v1/completions", {"prompt": [300]}, "prompt"),
        ("/v1/completions", {"prompt": [-1]}, "prompt.0"),
        ("/v1/completions", {"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ("/v1/completions", {"prompt": "a", "max_tokens": "5"}, "max_tokens"),
        ("/v1/completions", {"prompt": "a", "max_tokens": 100}, "max_tokens"),
        ("/v1/completions", {"prompt": "a" * 100}, "prompt"),
        ("/v1/completions", {"prompt": "a", "temperature": 2.5}, "temperature"),
        ("/v1/completions", {"prompt": "a", "temperature": True}, "temperature"),
        ("/v1/completions", {"prompt": "a", "top_p": 0}, "top_p"),
        ("/v1/completions", {"prompt": "a", "top_k": -2}, "top_k"),
        ("/v1/completions", {"prompt": "a", "seed": 2**63}, "seed"),
        ("/v1/completions", {"prompt": "a", "stop_token_ids": [256]}, "stop_token_ids"),
        ("/v1/completions", {"prompt": "a", "stop_token_ids": [2**70]}, "stop_token_ids"),
        ("/v1/completions", {"prompt": "a", "stop": ["x", ""]}, "stop"),
        ("/v1/completions", {"prompt": "a", "stop": ["x"] * 17}, "stop"),
        ("/v1/completions", {"prompt": "a", "stop": "x" * 1025}, "stop"),
        ("/v1/completions", {"prompt": "a", "stop": ["x" * 1025]}, "stop"),
        ("/v1/completions", {"prompt": "a", "stream_options": {"include_usage": True}}, "stream_options"),
        ("/v1/completions", {"prompt": "a", "stream": True, "stream_options": {"x": 1}}, "stream_options.x"),
        ("/v1/chat/completions", {"messages": MESSAGES, "top_logprobs": 1}, "top_logprobs"),
        ("/v1/chat/completions", {"messages": MESSAGES, "logprobs": 1}, "logprobs"),
        ("/v1/chat/completions", {"messages": MESSAGES, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ("/v1/chat/completions", {"messages": []}, "messages"),
        ("/v1/chat/completions", {"messages": [{"role": "function", "content": "a"}]}, "messages.0.role"),
        ("/v1/chat/completions", {"messages": [{"role": "user"}]}, "messages.0.content"),
        ("/v1/chat/completions", {"messages": [{"role": "tool", "content": None}]}, "messages.0.content"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a", "name": 1}]}, "messages.0.name"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "a", "tool_calls": [{"function": {"name": "f"}}]}]},
            "messages.0.tool_calls",
        ),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "["}}]}]},
            "messages.0.tool_calls.0.function.arguments",
        ),
        ("/v1/completions", {"prompt": "a", "min_tokens": 17}, "min_tokens"),
        (
            "/v1/completions",
            {"prompt": "a", "stream": True, "stream_options": {"continuous_usage_stats": True}},
            "stream_options.continuous_usage_stats",
        ),
        ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "no template"}]}, "messages"),
    ],
)
async def test_bad_value_is_refused_with_its_field(make_fake, path, body, param):
    fake = await make_fake()
    answer = await fake.post(path, **body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
    assert not fake.engine.requests


async def test_unknown_model_is_404_and_names_the_served_one(make_fake):
    fake = await make_fake()
    answer = await fake.post("/v1/completions", prompt="a", model="gpt-4")
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert "'fake'" in error["message"]


async def test_unknown_path_wrong_method_and_broken_json_have_the_same_shape(make_fake):
    fake = await make_fake()
    for answer, status in (
        (await fake.http.get("/v1/nope"), 404),
        (await fake.http.get("/v1/completions"), 405),
        (await fake.http.post("/v1/completions", content="{", headers={"content-type": "application/json"}), 400),
        (await fake.http.post("/v1/completions", json=[1]), 400),
    ):
        assert answer.status_code == status
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert (await fake.http.get("/v1/completions")).headers["allow"] == "POST"


@pytest.mark.parametrize("chunked", [False, True])
async def test_body_above_the_bound_is_413(make_fake, monkeypatch, chunked):
    monkeypatch.setattr("inflight_engine.server.http.middleware.MAX_BODY_BYTES", 1000)
    fake = await make_fake()

    async def parts():
        for _ in range(20):
            yield b" " * 100

    content = parts() if chunked else b" " * 2000
    answer = await fake.http.post("/v1/completions", content=content, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (413, "invalid_request_error")


@pytest.mark.parametrize(
    ("reason", "says"),
    [(FinishReason.ERROR, (500, "engine_error")), (FinishReason.OUT_OF_MEMORY, (503, "out_of_memory"))],
)
async def test_engine_error_is_500_and_no_memory_is_503_in_the_same_shape(make_fake, reason, says):
    fake = await make_fake()
    call = asyncio.create_task(fake.post("/v1/completions", prompt="a"))
    await until(lambda: fake.engine.requests)
    fake.engine.answer(0, "x", reason=reason)
    answer = await call
    assert (answer.status_code, answer.json()["error"]["code"]) == says


MANY = 1000


@pytest.mark.parametrize(
    ("model", "body", "param"),
    [
        (CompletionRequest, {"prompt": [-1] * MANY}, "prompt"),
        (CompletionRequest, {"prompt": [[1, -1]] * MANY}, "prompt"),
        (CompletionRequest, {"prompt": [[-1] * MANY]}, "prompt"),
        (GenerateRequest, {"prompt": [0.5] * MANY}, "prompt"),
        (GenerateRequest, {"prompt": "a", "logit_bias": {f"x{i}": 1 for i in range(MANY)}}, "logit_bias"),
        (GenerateRequest, {"prompt": "a", "stop": [1] * MANY}, "stop"),
        (GenerateRequest, {"prompt": "a", "stop_token_ids": ["1"] * MANY}, "stop_token_ids"),
        (GenerateRequest, {"prompt": "a", **{f"x{i}": 1 for i in range(MANY)}}, "x0"),
        (ChatCompletionRequest, {"messages": [{}] * MANY}, "messages"),
        (ChatCompletionRequest, {"messages": [{"role": "user", "content": [{}] * MANY}]}, "messages"),
        (ChatCompletionRequest, {"messages": [MESSAGES[0] | {f"x{i}": 1 for i in range(MANY)}]}, "messages"),
    ],
)
def test_body_with_a_great_many_errors_is_told_a_few(model, body, param):
    """Each finding takes a kilobyte and a few microseconds of the event loop, and a body has room for millions."""
    with pytest.raises(ValidationError) as refused:
        model.model_validate(body)
    findings = refused.value.errors()
    assert 1 <= len(findings) <= 6
    assert findings[0]["loc"][0] == param


@pytest.mark.parametrize("body", [{"prompt": "a" * 100}, {"prompt": ["a", "b"], "max_tokens": 100}])
async def test_request_that_can_never_fit_is_counted_among_those_not_taken(make_fake, body):
    fake = await make_fake()
    answer = await fake.post("/v1/completions", **body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert (await fake.post("/v1/completions", prompt="a", temperature=3)).status_code == 400
    seen = await metrics(fake)
    assert seen['inflight_admission_rejections_total{reason="never_fits"}'] == 1
    assert not fake.engine.requests


@pytest.mark.parametrize(
    ("path", "body", "param", "says"),
    [
        ("/v1/completions", {"prompt": [5, -1]}, "prompt.1", "greater than or equal to 0"),
        ("/v1/completions", {"prompt": [5, "a"]}, "prompt.1", "a valid integer"),
        ("/v1/completions", {"prompt": ["a", 5]}, "prompt.1", "a valid string"),
        ("/v1/completions", {"prompt": [[5], ["a"]]}, "prompt.1.0", "a valid integer"),
        ("/v1/generate", {"prompt": [-1]}, "prompt.0", "greater than or equal to 0"),
        ("/v1/embeddings", {"input": [-1]}, "input.0", "greater than or equal to 0"),
        ("/v1/embeddings", {"input": ["a", 5]}, "input.1", "a valid string"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": ["a"]}]},
            "messages.0.content.0",
            "an object",
        ),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]},
            "messages.0.content.0",
            "parts of type image_url are not supported by this server, only: text",
        ),
        ("/v1/chat/completions", {"messages": ["a"]}, "messages.0", "must be an object"),
    ],
)
async def test_an_error_in_a_field_of_several_forms_is_that_of_the_form(make_fake, path, body, param, says):
    fake = await make_fake()
    answer = await fake.post(path, **body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert error["message"].startswith(f"{param}: ")
    assert says in error["message"]
