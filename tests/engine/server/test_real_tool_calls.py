"""The built-in model calls tools where the request demands it."""

import json

import httpx
import pytest

TOOL = {
    "type": "function",
    "function": {
        "name": "paint",
        "parameters": {
            "type": "object",
            "properties": {"color": {"enum": ["red", "blue"]}, "coats": {"type": "integer", "maximum": 9}},
            "required": ["color", "coats"],
        },
    },
}
NAMED = {"type": "function", "function": {"name": "paint"}}


@pytest.mark.parametrize("parser", ["hermes", "qwen3_coder", "pythonic"])
def test_demanded_calls_follow_the_schema(own_server, parser):
    server = own_server("--tool-call-parser", parser)
    for choice, reason in (("required", "tool_calls"), (NAMED, "stop")):
        body = {
            "messages": [{"role": "user", "content": "Paint the door."}],
            "tools": [TOOL],
            "tool_choice": choice,
            "parallel_tool_calls": False,
            "max_tokens": 100,
        }
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=120)
        assert answer.status_code == 200, answer.text
        (made,) = answer.json()["choices"]
        assert (made["finish_reason"], made["message"]["content"]) == (reason, None)
        (call,) = made["message"]["tool_calls"]
        arguments = json.loads(call["function"]["arguments"])
        assert (call["function"]["name"], {*arguments}) == ("paint", {"color", "coats"})
        assert arguments["color"] in ("red", "blue")
