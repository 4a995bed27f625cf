"""Asks one question and prints the answer as it streams: `python ask.py URL MODEL QUESTION`. Needs httpx alone."""

from __future__ import annotations

import json
import sys

import httpx


def ask(url: str, model: str, question: str) -> None:
    """Print the streamed answer.

    Raises:
        httpx.HTTPError: the service cannot be reached or refuses.
    """
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "stream": True,
        "max_tokens": 128,
        "temperature": 0,
    }
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60) as response:
        if response.is_error:
            response.read()
            sys.exit(f"HTTP {response.status_code}: {response.text}")
        for line in response.iter_lines():
            if line.startswith("data: {"):
                delta = json.loads(line.removeprefix("data: "))["choices"][0]["delta"]
                print(delta.get("content") or "", end="", flush=True)
    print()


if __name__ == "__main__":
    ask(*sys.argv[1:4])
