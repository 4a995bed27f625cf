"""Asks one question and prints the answer as it streams: `python -m tools.load.ask URL MODEL QUESTION`."""

from __future__ import annotations

import asyncio
import sys
import time

from inflight_kubectl.load.answers import Answer, AnswerError
from inflight_kubectl.load.client import CHAT, Client


async def ask(url: str, model: str, question: str) -> None:
    """Print the streamed answer.

    Raises:
        AnswerError: the service cannot be reached or refuses, or the answer is not whole.
    """
    messages = [{"role": "user", "content": question}]
    body = {"model": model, "messages": messages, "stream": True, "max_tokens": 128, "temperature": 0}
    async with Client(url, read_seconds=60) as client:
        answer = Answer(time.monotonic())
        await client.ask(body, answer, path=CHAT, show=lambda piece: print(piece, end="", flush=True))
    print()


if __name__ == "__main__":
    try:
        asyncio.run(ask(*sys.argv[1:4]))
    except AnswerError as error:
        sys.exit(error.what)
