"""Asks every service of a namespace at the same moment, and accounts for each request.

    python ask.py --url http://sleeper-{}.storm.svc --services 50 --requests 1 --patience 600

One file that needs httpx alone, so that it runs in any pod that has it. `{}` in the URL is the number of the service,
00 to 49. Each request streams, on a connection of its own. A 503 with Retry-After is a clean refusal: the request is
sent again after that time, until the patience is over. Prints a JSON line when the requests begin, one for each request
when it has ended, and a last one with `"done": true`. Times are seconds since the epoch.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from typing import Any

import httpx

MAX_TOKENS = 8
"""Of each answer."""

LATE = "the patience was over before a response"


async def ask(number: int, options: argparse.Namespace, start: asyncio.Event) -> dict[str, Any]:
    """One request until it is answered, lost, or out of patience.

    Returns:
        `outcome`: answered, refused (the last response was a clean refusal) or lost (`why` says what came instead).
    """
    url = options.url.replace("{}", f"{number:02}")
    name = httpx.URL(url).host.partition(".")[0]
    body = {
        "model": name,
        "messages": [{"role": "user", "content": f"Say which number this is: {number}."}],
        "max_tokens": MAX_TOKENS,
        "stream": True,
    }
    record: dict[str, Any] = {"service": name, "outcome": "lost", "refusals": 0, "first_token": None, "why": LATE}
    await start.wait()
    record["begun"] = time.time()
    timeout = httpx.Timeout(options.patience, connect=30)
    try:
        async with asyncio.timeout(options.patience), httpx.AsyncClient(base_url=url, timeout=timeout) as client:
            while (wait := await once(client, body, record)) is not None:
                record |= {"outcome": "refused", "why": LATE, "refusals": record["refusals"] + 1}
                await asyncio.sleep(wait)
                record["outcome"] = "lost"  # until the next response
    except TimeoutError:
        pass  # refused while it waits for its next attempt, lost within an attempt
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        record |= {"outcome": "lost", "why": f"{type(error).__name__}: {error}"[:200]}
    record["ended"] = time.time()
    return record


async def once(client: httpx.AsyncClient, body: dict[str, Any], record: dict[str, Any]) -> float | None:
    """One attempt; returns the seconds of a clean refusal's Retry-After, or None: `record` has the outcome."""
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        wait = response.headers.get("Retry-After", "")
        if response.status_code == httpx.codes.SERVICE_UNAVAILABLE and wait.isdecimal():
            await response.aread()
            return float(wait)
        if response.status_code != httpx.codes.OK:
            text = (await response.aread()).decode(errors="replace")
            record |= {"outcome": "lost", "why": f"HTTP {response.status_code}: {text}"[:200]}
            return None
        reason = None
        async for line in response.aiter_lines():
            if line == "data: [DONE]":
                whole = reason in ("stop", "length")
                record |= {"outcome": "answered" if whole else "lost", "why": "" if whole else f"ended with {reason}"}
                return None
            if not line.startswith("data: "):
                continue
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                record |= {"outcome": "lost", "why": f"error event: {event['error'].get('message')}"[:200]}
                return None
            if event["choices"]:
                record["first_token"] = record["first_token"] or time.time()
                reason = event["choices"][0]["finish_reason"] or reason
    record |= {"outcome": "lost", "why": "the stream was cut"}
    return None


async def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """All requests; each is printed when it has ended."""
    start = asyncio.Event()
    numbers = [number for number in range(options.services) for _ in range(options.requests)]
    asking = [asyncio.create_task(ask(number, options, start)) for number in numbers]
    await asyncio.sleep(1)  # all tasks wait for the start
    print(json.dumps({"begun": time.time(), "requests": len(asking)}), flush=True)
    start.set()
    records = []
    for task in asyncio.as_completed(asking):
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
