"""Requests of tests to a gateway, and services for its file."""

from __future__ import annotations

import json
from typing import Any

CHAT = "/v1/chat/completions"


def service(name, *engines, refusing=0, **fields):
    """An entry of the static file. Args: refusing: endpoints more, which refuse connections."""
    nobody = [f"127.0.0.{2 + number}:1" for number in range(refusing)]
    return {"name": name, "endpoints": [*(engine.address for engine in engines), *nobody], **fields}


async def ask(http, stack, model: Any = "m", *, host="a.default", path=CHAT, headers=None, data=None, **fields):
    """Status, body (decoded where it is a JSON object) and headers of one request.

    Args: host: None: the gateway's address.
    """
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "hello"}], **fields}).encode()
    all_headers = {"content-type": "application/json", **({"Host": host} if host else {}), **(headers or {})}
    async with http.post(stack.url + path, data=body if data is None else data, headers=all_headers) as answer:
        text = await answer.text()
        return answer.status, json.loads(text) if text.startswith("{") else text, answer.headers
