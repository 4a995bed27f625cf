"""Sends chat requests to a service, half of them streaming, and accounts for each one.

    python driver.py --url http://chat.default.svc --model chat --clients 16 --requests 200

One file that needs httpx alone, so that it runs in any pod that has it. Prints a JSON line each second and, last, one
with `"done": true`, which lists each lost request. Each client sends its next request when the last one is answered;
with `--rate` not before the time has come for it, so that as many come in a second however long answers take.
Even-numbered clients keep their connection, odd ones open a new one for each request; with `--new-connections` all do.
SIGTERM ends it in order: no new request, a closing line.

A 503 with Retry-After is obeyed and counted as a retry; anything else that is not a whole answer is a lost request.
Exit code 0 when none was lost, 1 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import signal
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx

WORDS = (
    "please explain why the sky looks blue at noon and red at dusk then compare it with the colour of the sea near "
    "a coast in winter and tell me how long light takes to reach us from the sun the moon and the nearest star"
).split()


@dataclass(frozen=True)
class Loss:
    """One request without a whole answer.

    Attributes:
        kind: what went wrong.
        begun, ended: seconds since the epoch; a request that was sent again began with its first attempt.
        port: the client's TCP port of the last attempt; None when no connection was made.
    """

    kind: str
    begun: float
    ended: float
    port: int | None
    stream: bool


@dataclass(frozen=True)
class Streamed:
    """Timing of a streamed answer at its client, in seconds; `ended` on the monotonic clock.

    Attributes:
        tpot: mean time per token after the first; None for a single one.
        longest_gap: between two pieces of the answer; 0 for a single one.
    """

    ended: float
    ttft: float
    tpot: float | None
    longest_gap: float = 0.0


@dataclass
class Tally:
    """The counts so far. `lost` maps what went wrong to how often; `longest_wait` is in seconds, retries included."""

    sent: int = 0
    answered: int = 0
    retries: int = 0
    tokens: int = 0
    longest_wait: float = 0.0
    lost: Counter[str] = field(default_factory=Counter)
    losses: list[Loss] = field(default_factory=list)
    streams: list[Streamed] = field(default_factory=list)

    def lose(self, loss: Loss) -> None:
        self.lost[loss.kind] += 1
        self.losses.append(loss)

    def as_json(self, started: float, *, done: bool) -> str:
        line: dict[str, Any] = {
            "seconds": round(time.monotonic() - started, 1),
            "sent": self.sent,
            "answered": self.answered,
            "retries": self.retries,
            "lost": dict(self.lost),
            "output_tokens": self.tokens,
            "longest_wait": round(self.longest_wait, 2),
            "longest_gap": round(max((one.longest_gap for one in self.streams), default=0.0), 2),
        }
        if done:
            line |= {"losses": [asdict(loss) for loss in self.losses]}
            line |= {"done": True, **latencies(self.streams)}
        else:
            line |= latencies([one for one in self.streams if one.ended > time.monotonic() - RECENT_SECONDS])
        return json.dumps(line)


def latencies(streams: list[Streamed]) -> dict[str, float | None]:
    """Their median and 95th percentile; None without any."""
    ttft, tpot = [one.ttft for one in streams], [one.tpot for one in streams if one.tpot is not None]
    return {
        "ttft_p50": percentile(ttft, 0.5),
        "ttft_p95": percentile(ttft, 0.95),
        "tpot_p50": percentile(tpot, 0.5),
        "tpot_p95": percentile(tpot, 0.95),
    }


def percentile(values: list[float], share: float) -> float | None:
    """The value below which `share` of the values lie (nearest rank); None without values."""
    if not values:
        return None
    ordered = sorted(values)
    return round(ordered[max(0, math.ceil(share * len(ordered)) - 1)], 3)


RECENT_SECONDS = 10.0
"""Of the latencies in the line of each second; those of the last line are of all."""


class IncompleteAnswerError(Exception):
    """An answer that began and was not whole."""


class Attempt:
    """One attempt at a request; learns the client's port when the connection is made."""

    def __init__(self) -> None:
        self.port: int | None = None

    @property
    def extensions(self) -> dict[str, Any]:
        """For httpx, which reports the steps of a connection to `trace`."""
        return {"trace": self._trace}

    async def _trace(self, event: str, info: dict[str, Any]) -> None:
        if event == "connection.connect_tcp.complete":
            self.port = info["return_value"].get_extra_info("client_addr")[1]


async def plain(client: httpx.AsyncClient, body: dict[str, Any], attempt: Attempt, tally: Tally) -> httpx.Response:
    """One request without streaming; counts its tokens when it is answered."""
    response = await client.post("/v1/chat/completions", json=body, extensions=attempt.extensions)
    if response.status_code == httpx.codes.OK:
        answer = response.json()
        if answer["choices"][0]["finish_reason"] not in ("stop", "length"):
            raise IncompleteAnswerError(f"finish reason {answer['choices'][0]['finish_reason']}")
        tally.tokens += answer["usage"]["completion_tokens"]
    return response


async def streaming(client: httpx.AsyncClient, body: dict[str, Any], attempt: Attempt, tally: Tally) -> httpx.Response:
    """One streamed request; whole only with a finish reason and the closing `[DONE]` (OpenAI's protocol)."""
    started = time.monotonic()
    finish_reason, done, tokens = None, False, 0
    first = last = None
    longest_gap = 0.0
    body = {**body, "stream": True, "stream_options": {"include_usage": True}}
    sent = client.stream("POST", "/v1/chat/completions", json=body, extensions=attempt.extensions)
    async with sent as response:
        if response.status_code != httpx.codes.OK:
            await response.aread()
            return response
        async for line in response.aiter_lines():
            if not line.startswith("data: "):
                continue
            if line == "data: [DONE]":
                done = True
                break
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                raise IncompleteAnswerError(f"error event: {event['error'].get('message')}")
            if event["choices"]:
                now = time.monotonic()
                longest_gap = max(longest_gap, now - last if last is not None else 0.0)
                last = now
                first = last if first is None else first
                finish_reason = event["choices"][0]["finish_reason"] or finish_reason
            elif event.get("usage"):  # the last event before [DONE] has the usage and no choices
                tokens = event["usage"]["completion_tokens"]
    if not done or finish_reason not in ("stop", "length"):
        raise IncompleteAnswerError("stream cut")
    tally.tokens += tokens
    if first is not None and last is not None:
        tpot = (last - first) / (tokens - 1) if tokens > 1 else None
        tally.streams.append(Streamed(time.monotonic(), first - started, tpot, longest_gap))
    return response


async def one_request(
    client: httpx.AsyncClient, body: dict[str, Any], stream: bool, tally: Tally, patience: float
) -> None:
    """Send until answered, obeying Retry-After, for at most `patience` seconds in all."""
    tally.sent += 1
    begun, started, attempt = time.time(), time.monotonic(), Attempt()
    lost = ""
    try:
        async with asyncio.timeout(patience):
            while True:
                attempt = Attempt()
                response = await (streaming if stream else plain)(client, body, attempt, tally)
                wait = response.headers.get("Retry-After", "")
                if response.status_code != httpx.codes.SERVICE_UNAVAILABLE or not wait.isdecimal():
                    break
                tally.retries += 1
                await asyncio.sleep(float(wait))
        if response.status_code != httpx.codes.OK:
            lost = f"HTTP {response.status_code}"
    except TimeoutError:
        lost = f"no whole answer within {patience:g} s"
    except (httpx.HTTPError, IncompleteAnswerError, ValueError, LookupError, TypeError) as error:
        # The last three: an answer that is no JSON, or has not the fields of one.
        lost = f"{type(error).__name__}: {error}"[:120]
    tally.longest_wait = max(tally.longest_wait, time.monotonic() - started)
    if lost:
        tally.lose(Loss(lost, begun, time.time(), attempt.port, stream))
    else:
        tally.answered += 1


def make_body(options: argparse.Namespace, rng: random.Random) -> dict[str, Any]:
    """A chat request with a prompt and an output length of its own, around the asked-for means."""
    words = [rng.choice(WORDS) for _ in range(max(1, int(options.prompt_words * rng.uniform(0.5, 1.5))))]
    return {
        "model": options.model,
        "messages": [{"role": "user", "content": " ".join(words)}],
        "max_tokens": max(1, int(options.max_tokens * rng.uniform(0.5, 1.5))),
        "temperature": 0.7,
        "seed": rng.randrange(1 << 31),
    }


class Pace:
    """When requests are due: at random, independent times (a Poisson process), or at once without a rate."""

    def __init__(self, rate: float | None, seed: int) -> None:
        self._rate = rate
        self._rng = random.Random(seed)
        self._due = time.monotonic()

    async def wait(self) -> None:
        """Until the next request is due; each call is for another one."""
        if self._rate is None:
            return
        self._due += self._rng.expovariate(self._rate)
        await asyncio.sleep(self._due - time.monotonic())


async def client_loop(
    number: int, options: argparse.Namespace, tally: Tally, pace: Pace, ends: float, stop: asyncio.Event
) -> None:
    """One client: a request after the other until its share is sent, the time is over, or it is told to stop."""
    rng = random.Random(options.seed * 1_000_003 + number)
    keeps = number % 2 == 0 and not options.new_connections
    limits = httpx.Limits(max_keepalive_connections=1 if keeps else 0)
    timeout = httpx.Timeout(options.patience, connect=10)
    async with httpx.AsyncClient(base_url=options.url, limits=limits, timeout=timeout) as client:
        while True:
            await pace.wait()
            if time.monotonic() >= ends or tally.sent >= options.requests or stop.is_set():
                break
            body = make_body(options, rng)
            await one_request(client, body, rng.random() < 0.5, tally, options.patience)


async def report(tally: Tally, started: float) -> None:
    """Print a line each second until cancelled."""
    while True:
        await asyncio.sleep(1)
        print(tally.as_json(started, done=False), flush=True)


async def run(options: argparse.Namespace) -> Tally:
    """All clients, until the requests are sent and answered, the time is over, or SIGTERM comes."""
    tally, started, stop = Tally(), time.monotonic(), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    reporter = asyncio.create_task(report(tally, started))
    ends, pace = started + options.seconds, Pace(options.rate, options.seed)
    await asyncio.gather(*(client_loop(number, options, tally, pace, ends, stop) for number in range(options.clients)))
    reporter.cancel()
    print(tally.as_json(started, done=True), flush=True)
    return tally


def parser() -> argparse.ArgumentParser:
    """The command line."""
    line = argparse.ArgumentParser(
        description="Send chat requests and account for every one.",
        epilog="example: driver.py --url http://127.0.0.1:8000 --model smollm2 --clients 8 --requests 40",
    )
    line.add_argument("--url", required=True, help="base address of the service")
    line.add_argument("--model", required=True, help="served model name")
    line.add_argument("--clients", type=int, default=8, help="clients at once (default 8)")
    line.add_argument("--requests", type=int, default=100, help="most requests in all (default 100)")
    line.add_argument("--rate", type=float, help="most requests that come in a second, in all (default: no limit)")
    line.add_argument("--seconds", type=float, default=60, help="no new request after this long (default 60)")
    line.add_argument("--prompt-words", type=int, default=40, help="mean prompt length in words (default 40)")
    line.add_argument("--max-tokens", type=int, default=32, help="mean output limit in tokens (default 32)")
    line.add_argument("--patience", type=float, default=120, help="longest wait for one answer, seconds (default 120)")
    line.add_argument("--new-connections", action="store_true", help="open a new connection for each request")
    line.add_argument("--seed", type=int, default=0, help="makes the same requests again")
    return line


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Options from `arguments`, else from the command line."""
    return parser().parse_args(arguments)


if __name__ == "__main__":
    sys.exit(1 if (asyncio.run(run(parse()))).lost else 0)
