"""LiteLLM's proxy in front of the server, asked with OpenAI's SDK."""

import json
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import openai
import pytest

MESSAGES = [{"role": "user", "content": "What is 2 + 3?"}]
SCHEMA = {"type": "object", "properties": {"good": {"type": "boolean"}}, "required": ["good"]}


@pytest.fixture(scope="module", params=["openai", "hosted_vllm"])
def client(request, url, model, tmp_path_factory):
    """By LiteLLM's providers for any server of OpenAI's API, and for vLLM."""
    folder = tmp_path_factory.mktemp("litellm")
    parameters = {"model": f"{request.param}/{model}", "api_base": f"{url}/v1", "api_key": "none"}
    config = {"model_list": [{"model_name": "chat", "litellm_params": parameters}]}
    (folder / "config.yaml").write_text(json.dumps(config))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = Path(sys.executable).with_name("litellm")
    flags = ["--config", str(folder / "config.yaml"), "--host", "127.0.0.1", "--port", str(port)]
    with (folder / "log").open("wb") as log, subprocess.Popen([program, *flags], stdout=log, stderr=log) as proxy:
        try:
            for _ in range(600):
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/health/liveliness", timeout=2).close()
                    break
                except OSError:
                    assert proxy.poll() is None, (folder / "log").read_text()
                    time.sleep(0.2)
            with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0) as client:
                yield client
        finally:
            proxy.terminate()


def test_an_answer_and_its_stream_are_the_same(client):
    asked = {"model": "chat", "messages": MESSAGES, "max_tokens": 16, "temperature": 0}
    whole = client.chat.completions.create(**asked).choices[0].message.content
    stream = client.chat.completions.create(**asked, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices) == whole


def test_a_demanded_tool_is_called(client):
    tool = {"type": "function", "function": {"name": "judge", "parameters": SCHEMA}}
    answer = client.chat.completions.create(model="chat", messages=MESSAGES, tools=[tool], tool_choice="required")
    (call,) = answer.choices[0].message.tool_calls
    assert set(json.loads(call.function.arguments)) == {"good"}


def test_a_schema_binds_the_answer(client):
    form = {"type": "json_schema", "json_schema": {"name": "verdict", "schema": SCHEMA, "strict": True}}
    answer = client.chat.completions.create(model="chat", messages=MESSAGES, response_format=form)
    assert set(json.loads(answer.choices[0].message.content)) == {"good"}


def test_errors_pass_through(client):
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model="chat", messages=MESSAGES, temperature=-1)
