"""Asks every service of a namespace at the same moment, and accounts for each request.

    python -m tools.load.storm --url http://sleeper-{}.storm.svc --services 50 --requests 1 --patience 600

`{}` in the URL is the number of the service, 00 to 49. Each request streams, on a connection of its own. A 503 with
Retry-After is a clean refusal: the request is sent again after that time, until the patience is over. Prints a JSON
line when the requests begin, one for each request when it has ended, and a last one with `"done": true`. Times are
seconds since the epoch.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from typing import Any
from urllib.parse import urlsplit

from inflight_kubectl.load.client import Client
from tools.load.attempts import answered

MAX_TOKENS = 8
"""Most output tokens of each answer."""


async def ask(number: int, options: argparse.Namespace, start: asyncio.Event) -> dict[str, Any]:
    """Sends a request until it is answered, lost, or out of patience.

    Returns:
        `outcome`: answered, refused (the last response was a clean refusal) or lost (`why` says what came instead).
    """
    url = options.url.replace("{}", f"{number:02}")
    name = (urlsplit(url).hostname or "").partition(".")[0]
    body = {
        "model": name,
        "messages": [{"role": "user", "content": f"Say which number this is: {number}."}],
        "max_tokens": MAX_TOKENS,
        "stream": True,
    }
    await start.wait()
    async with Client(url, keep=False, read_seconds=options.patience, connect_seconds=30) as client:
        begun = time.monotonic()
        one = await answered(client, body, options.patience)
    first = one.answer.first
    return {
        "service": name,
        "outcome": "refused" if one.refused else "lost" if one.kind else "answered",
        "refusals": one.refusals,
        "first_token": None if first is None else one.begun + first - begun,
        "why": one.why,
        "begun": one.begun,
        "ended": one.ended,
    }


async def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Sends all requests; prints each when it has ended."""
    start = asyncio.Event()
    numbers = [number for number in range(options.services) for _ in range(options.requests)]
    requests = [asyncio.create_task(ask(number, options, start)) for number in numbers]
    await asyncio.sleep(1)  # all tasks wait for the start
    print(json.dumps({"begun": time.time(), "requests": len(requests)}), flush=True)
    start.set()
    records = []
    for task in asyncio.as_completed(requests):
        records.append(await task)
        print(json.dumps(records[-1]), flush=True)
    print(json.dumps({"done": True}), flush=True)
    return records


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Options from `arguments`, else from the command line."""
    line = argparse.ArgumentParser(description="Ask many services at the same moment.")
    line.add_argument("--url", required=True, help="base address of a service, with {} for its number")
    line.add_argument("--services", type=int, default=50, help="how many there are (default 50)")
    line.add_argument("--requests", type=int, default=1, help="to each service (default 1)")
    line.add_argument("--patience", type=float, default=600, help="longest wait for an answer, seconds (default 600)")
    return line.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(any(record["outcome"] == "lost" for record in asyncio.run(run(parse()))))
