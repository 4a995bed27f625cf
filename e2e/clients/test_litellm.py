"""LiteLLM's proxy in front of the server, as a server of OpenAI's API and as one of vLLM's: chat, streams, tools,
structured output, embeddings and errors, with OpenAI's SDK as the proxy's client."""

import json
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import openai
import pytest

PROVIDERS = ("openai", "hosted_vllm")
READY_SECONDS = 180
KEY = f"sk-{secrets.token_hex(16)}"
QUESTION = [{"role": "user", "content": "What is 2 + 3?"}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}},
                "required": ["a"],
                "additionalProperties": False,
            },
        },
    }
    for name in ("double", "halve")
]


@pytest.fixture(scope="module")
def proxy(url, model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("proxy")
    served = {name: {"model": f"{name}/{model}", "api_base": f"{url}/v1", "api_key": "none"} for name in PROVIDERS}
    models = [{"model_name": name, "litellm_params": params} for name, params in served.items()]
    config = folder / "config.yaml"
    config.write_text(json.dumps({"model_list": models, "litellm_settings": {"num_retries": 0}}))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = [str(Path(sys.executable).with_name("litellm")), "--config", str(config)]
    with (folder / "log").open("wb") as log:
        running = subprocess.Popen(
            [*program, "--host", "127.0.0.1", "--port", str(port)],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "LITELLM_MASTER_KEY": KEY},
        )
    try:
        address = f"http://127.0.0.1:{port}"
        wait_ready(f"{address}/health/liveliness", running, folder / "log")
        yield address
    finally:
        running.kill()
        running.wait()


def wait_ready(url, running, log):
    deadline = time.monotonic() + READY_SECONDS
    while running.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(f"the proxy is not ready: {log.read_text()[-2000:]}")


@pytest.fixture(scope="module")
def client(proxy):
    with openai.OpenAI(base_url=f"{proxy}/v1", api_key=KEY, max_retries=0) as client:
        yield client


def demanded(name):
    """Arguments of a request that demands one call; the small model makes several where it may."""
    asked = {"model": name, "messages": QUESTION, "tools": TOOLS, "tool_choice": "required"}
    return {**asked, "parallel_tool_calls": False, "temperature": 0, "frequency_penalty": 1, "max_tokens": 64}


@pytest.mark.parametrize("name", PROVIDERS)
def test_an_answer_and_its_stream_are_the_same(client, name):
    asked = {"model": name, "messages": QUESTION, "max_tokens": 16, "temperature": 0}
    whole = client.chat.completions.create(**asked)
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


@pytest.mark.parametrize("name", PROVIDERS)
def test_a_demanded_call_comes_whole_and_in_deltas(client, name):
    asked = demanded(name)
    (call,) = client.chat.completions.create(**asked).choices[0].message.tool_calls
    assert call.function.name in ("double", "halve")
    # For vLLM the proxy leaves out that there are no other arguments.
    assert "a" in json.loads(call.function.arguments)
    with client.chat.completions.stream(**asked) as stream:
        final = stream.get_final_completion().choices[0].message
    assert final.tool_calls[0].function.arguments == call.function.arguments


@pytest.mark.parametrize("name", PROVIDERS)
def test_the_message_with_a_call_and_its_result_go_back(client, name):
    message = client.chat.completions.create(**demanded(name)).choices[0].message
    back = [*QUESTION, message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "5"}]
    answer = client.chat.completions.create(model=name, messages=back, tools=TOOLS, max_tokens=8)
    assert answer.choices[0].message.role == "assistant"


@pytest.mark.parametrize("name", PROVIDERS)
def test_an_answer_has_the_schema_that_was_asked_for(client, name):
    schema = {"type": "object", "properties": {"good": {"type": "boolean"}}, "required": ["good"]}
    form = {"type": "json_schema", "json_schema": {"name": "verdict", "schema": schema, "strict": True}}
    answer = client.chat.completions.create(
        model=name, messages=[{"role": "user", "content": "Is bread good?"}], response_format=form, max_tokens=64
    )
    assert isinstance(json.loads(answer.choices[0].message.content)["good"], bool)


@pytest.mark.parametrize("name", PROVIDERS)
def test_embeddings(client, name):
    answer = client.embeddings.create(model=name, input=["One.", "Two."], encoding_format="float")
    first, second = (each.embedding for each in answer.data)
    assert len(first) == len(second) > 1
    assert first != second


@pytest.mark.parametrize("name", PROVIDERS)
def test_a_wrong_request_is_one_for_clients_of_the_proxy(client, name):
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model=name, messages=QUESTION, temperature=-1)
