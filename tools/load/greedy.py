"""Sends greedy requests to a service at the same time and prints their answers, for a comparison with another run.

    python -m tools.load.greedy --url http://chat.default.svc --model chat --requests 6

Even-numbered requests stream, odd ones do not.
Each has a prompt of its own, which depends on its number only, temperature 0, and exactly `TOKENS` tokens. Prints
`{"flowing": N}` once each stream has given N pieces (`--flowing`), and last a line with every answer: text, token ids,
the longest gap between two pieces. A 503 with Retry-After is obeyed. Exit code 0 when all
answers are whole, 1 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from dataclasses import asdict
from typing import Any

from inflight_kubectl.load.answers import Answer
from inflight_kubectl.load.client import Client
from tools.load.attempts import Outcome, answered

TOPICS = ("the sea", "an old clock", "bread", "a train at night", "the moon", "chess", "rain", "a lighthouse")

TOKENS = 150
"""Output tokens of each answer."""

PATIENCE_SECONDS = 180
"""Longest wait for one answer."""


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


async def run(options: argparse.Namespace) -> list[Outcome]:
    """Sends all requests at once, each on a connection of its own."""
    pieces = dict.fromkeys(range(0, options.requests, 2), 0)
    """Events so far of each stream."""

    async def ask(client: Client, number: int) -> Outcome:
        def flows(answer: Answer) -> None:
            flowed = min(pieces.values()) >= options.flowing
            pieces[number] = answer.pieces
            if not flowed and min(pieces.values()) >= options.flowing:
                print(json.dumps({"flowing": options.flowing}), flush=True)

        return await answered(client, body_of(number, options), PATIENCE_SECONDS, flows)

    async with Client(options.url, keep=False, read_seconds=PATIENCE_SECONDS) as client:
        found = await asyncio.gather(*(ask(client, number) for number in range(options.requests)))
    answers = [{"number": number, "failure": one.why, **asdict(one.answer)} for number, one in enumerate(found)]
    print(json.dumps({"done": True, "answers": answers}), flush=True)
    return found


def parser() -> argparse.ArgumentParser:
    """The command line."""
    line = argparse.ArgumentParser(
        prog="python -m tools.load.greedy",
        description="Send greedy requests at the same time and print their answers.",
        epilog="example: python -m tools.load.greedy --url http://127.0.0.1:8000 --model smollm2 --requests 4",
    )
    line.add_argument("--url", required=True, help="base address of the service")
    line.add_argument("--model", required=True, help="served model name")
    line.add_argument("--requests", type=int, default=6, help="requests, all at once (default 6)")
    line.add_argument("--flowing", type=int, default=10, help="pieces of each stream before the line (default 10)")
    return line


if __name__ == "__main__":
    sys.exit(1 if any(one.kind for one in asyncio.run(run(parser().parse_args()))) else 0)
