"""Sends greedy requests to a service at the same time and prints their answers, for a comparison with another run.

    python greedy.py --url http://chat.default.svc --model chat --requests 6

One file that needs httpx alone, so that it runs in any pod that has it. Even-numbered requests stream, odd ones do not.
Each has a prompt of its own, which depends on its number only, temperature 0, and exactly `TOKENS` tokens. Prints
`{"flowing": N}` once each stream has given N pieces (`--flowing`), and last a line with every answer: text, token ids,
seconds to the first piece, the longest gap between two pieces. A 503 with Retry-After is obeyed. Exit code 0 when all
answers are whole, 1 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx

TOPICS = ("the sea", "an old clock", "bread", "a train at night", "the moon", "chess", "rain", "a lighthouse")

TOKENS = 150
"""Of each answer."""

PATIENCE_SECONDS = 180
"""Longest wait for one answer."""


@dataclass
class Answer:
    """One request's answer.

    Attributes:
        token_ids: as `return_token_ids` gives them.
        first: seconds to the first piece. longest_gap: seconds between two pieces; both 0 for an answer in one piece.
        failure: what went wrong; empty for a whole answer.
    """

    number: int
    stream: bool
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    completion_tokens: int = 0
    pieces: int = 0
    first: float = 0.0
    longest_gap: float = 0.0
    failure: str = ""


def body_of(number: int, options: argparse.Namespace) -> dict[str, Any]:
    """The request with this number."""
    stream = number % 2 == 0
    return {
        "model": options.model,
        "messages": [{"role": "user", "content": f"Story {number}: write about {TOPICS[number % len(TOPICS)]}."}],
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "temperature": 0,
        "return_token_ids": True,
        "stream": stream,
        **({"stream_options": {"include_usage": True}} if stream else {}),
    }


async def streamed(response: httpx.Response, answer: Answer, started: float, pieces: asyncio.Condition) -> None:
    """Reads a stream to its end. Raises ValueError: it has an error, or ends before it is whole."""
    last, done = started, False
    async for line in response.aiter_lines():
        if line == "data: [DONE]":
            done = True
            break
        if not line.startswith("data: "):
            continue
        event = json.loads(line.removeprefix("data: "))
        if "error" in event:
            raise ValueError(f"error event: {event['error'].get('message')}")
        if usage := event.get("usage"):
            answer.completion_tokens = usage["completion_tokens"]
        for choice in event["choices"]:
            now = time.monotonic()
            if answer.pieces:
                answer.longest_gap = max(answer.longest_gap, now - last)
            else:
                answer.first = now - started
            last = now
            answer.text += choice["delta"].get("content") or ""
            answer.token_ids += choice.get("token_ids") or []
            answer.finish_reason = choice["finish_reason"] or answer.finish_reason
            async with pieces:
                answer.pieces += 1
                pieces.notify_all()
    if not done or answer.finish_reason is None:
        raise ValueError("the stream was cut")


async def ask(
    client: httpx.AsyncClient,
    number: int,
    options: argparse.Namespace,
    answers: list[Answer],
    pieces: asyncio.Condition,
) -> None:
    """Sends one request until it is answered."""
    body, answer, started = body_of(number, options), answers[number], time.monotonic()
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                async with client.stream("POST", "/v1/chat/completions", json=body) as response:
                    if response.status_code == httpx.codes.OK and body["stream"]:
                        await streamed(response, answer, started, pieces)
                        return
                    content = await response.aread()
                if response.status_code == httpx.codes.OK:
                    whole = json.loads(content)
                    choice = whole["choices"][0]
                    answer.text, answer.token_ids = choice["message"]["content"], choice.get("token_ids") or []
                    answer.finish_reason = choice["finish_reason"]
                    answer.completion_tokens = whole["usage"]["completion_tokens"]
                    return
                wait = response.headers.get("Retry-After", "")
                if response.status_code != httpx.codes.SERVICE_UNAVAILABLE or not wait.isdecimal():
                    raise ValueError(f"HTTP {response.status_code}: {content[:200]!r}")
                await asyncio.sleep(float(wait))
    except TimeoutError:
        answer.failure = f"no whole answer within {PATIENCE_SECONDS:g} s"
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        answer.failure = f"{type(error).__name__}: {error}"[:200]


async def report_flowing(answers: list[Answer], pieces: asyncio.Condition, count: int) -> None:
    """Prints a line once every stream has given `count` pieces."""
    async with pieces:
        await pieces.wait_for(lambda: all(one.pieces >= count for one in answers if one.stream))
    print(json.dumps({"flowing": count}), flush=True)


async def run(options: argparse.Namespace) -> list[Answer]:
    """All requests at once, each on a connection of its own."""
    answers = [Answer(number, number % 2 == 0) for number in range(options.requests)]
    pieces = asyncio.Condition()
    flowing = asyncio.create_task(report_flowing(answers, pieces, options.flowing))
    limits, timeout = httpx.Limits(max_keepalive_connections=0), httpx.Timeout(PATIENCE_SECONDS, connect=10)
    async with httpx.AsyncClient(base_url=options.url, limits=limits, timeout=timeout) as client:
        await asyncio.gather(*(ask(client, number, options, answers, pieces) for number in range(options.requests)))
    flowing.cancel()
    print(json.dumps({"done": True, "answers": [asdict(one) for one in answers]}), flush=True)
    return answers


def parser() -> argparse.ArgumentParser:
    """The command line."""
    line = argparse.ArgumentParser(
        description="Send greedy requests at the same time and print their answers.",
        epilog="example: greedy.py --url http://127.0.0.1:8000 --model smollm2 --requests 4",
    )
    line.add_argument("--url", required=True, help="base address of the service")
    line.add_argument("--model", required=True, help="served model name")
    line.add_argument("--requests", type=int, default=6, help="requests, all at once (default 6)")
    line.add_argument("--flowing", type=int, default=10, help="pieces of each stream before the line (default 10)")
    return line


if __name__ == "__main__":
    sys.exit(1 if any(one.failure for one in asyncio.run(run(parser().parse_args()))) else 0)
