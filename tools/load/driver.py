"""Sends chat requests to a service, half of them streaming, and accounts for each one.

    python -m tools.load.driver --url http://chat.default.svc --model chat --clients 16 --requests 200

Prints a JSON line each second and, last, one with `"done": true`, which lists each lost request. Each client sends its
next request when the last one is answered; with `--rate` not before the time has come for it, so that as many come in a
second however long answers take. Even-numbered clients keep their connection, odd ones open a new one for each
request; with `--new-connections` all do. SIGTERM ends it in order: no new request, a closing line.

A 503 with Retry-After is obeyed and counted as a retry; anything else that is not a whole answer is a lost request.
Exit code 0 when none was lost, 1 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from inflight_kubectl.load.answers import Answer
from inflight_kubectl.load.client import Client
from tools.load.attempts import Outcome, answered
from tools.measure.report import rounded_percentile

WORDS = (
    "please explain why the sky looks blue at noon and red at dusk then compare it with the colour of the sea near "
    "a coast in winter and tell me how long light takes to reach us from the sun the moon and the nearest star"
).split()


@dataclass(frozen=True)
class Loss:
    """A request without a whole answer.

    Attributes:
        kind: the failure.
        begun, ended: seconds since the epoch; a request that was sent again began with its first attempt.
        port: the client's TCP port of the last attempt; None when no connection was made.
    """

    kind: str
    begun: float
    ended: float
    port: int | None
    stream: bool


@dataclass
class Tally:
    """The counts so far. `lost` maps what went wrong to how often; `longest_wait` is in seconds, retries included;
    `streams` are the whole answers that were streamed."""

    sent: int = 0
    answered: int = 0
    retries: int = 0
    tokens: int = 0
    longest_wait: float = 0.0
    lost: Counter[str] = field(default_factory=Counter)
    losses: list[Loss] = field(default_factory=list)
    streams: list[Answer] = field(default_factory=list)

    def take(self, outcome: Outcome, stream: bool) -> None:
        """Counts a request that has ended."""
        self.retries += outcome.refusals
        self.longest_wait = max(self.longest_wait, outcome.seconds)
        if outcome.kind:
            self.lost[outcome.kind] += 1
            self.losses.append(Loss(outcome.kind, outcome.begun, outcome.ended, outcome.port, stream))
            return
        self.answered += 1
        self.tokens += outcome.answer.completion_tokens
        if stream:
            self.streams.append(outcome.answer)

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
            recent = time.monotonic() - RECENT_SECONDS
            line |= latencies([one for one in self.streams if one.ended is not None and one.ended > recent])
        return json.dumps(line)


def latencies(streams: list[Answer]) -> dict[str, float | None]:
    """Median and 95th percentile of TTFT and of TPOT in seconds; None without any."""
    ttft = [one.ttft for one in streams if one.ttft is not None]
    tpot = [one.tpot for one in streams if one.tpot is not None]
    return {
        "ttft_p50": rounded_percentile(ttft, 0.5),
        "ttft_p95": rounded_percentile(ttft, 0.95),
        "tpot_p50": rounded_percentile(tpot, 0.5),
        "tpot_p95": rounded_percentile(tpot, 0.95),
    }


RECENT_SECONDS = 10.0
"""Seconds of the latencies in the line of each second; the last line is about all."""


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
    """The times of requests: random, independent times (a Poisson process), or at once without a rate."""

    def __init__(self, rate: float | None, seed: int) -> None:
        self._rate = rate
        self._rng = random.Random(seed)
        self._due = time.monotonic()

    async def wait(self, ends: float) -> None:
        """Waits until the next request is due, or until `ends`; each call is for another request."""
        if self._rate is None:
            return
        self._due += self._rng.expovariate(self._rate)
        await asyncio.sleep(min(self._due, ends) - time.monotonic())


async def client_loop(
    number: int, options: argparse.Namespace, tally: Tally, pace: Pace, ends: float, stop: asyncio.Event
) -> None:
    """Runs a client: a request after the other until its share is sent, the time is over, or `stop` is set."""
    rng = random.Random(options.seed * 1_000_003 + number)
    keeps = number % 2 == 0 and not options.new_connections
    async with Client(options.url, keep=keeps, read_seconds=options.patience) as client:
        while True:
            await pace.wait(ends)
            if time.monotonic() >= ends or tally.sent >= options.requests or stop.is_set():
                break
            body = make_body(options, rng)
            stream = rng.random() < 0.5
            if stream:
                body |= {"stream": True, "stream_options": {"include_usage": True}}
            tally.sent += 1
            tally.take(await answered(client, body, options.patience), stream)


async def report(tally: Tally, started: float) -> None:
    """Print a line each second until cancelled."""
    while True:
        await asyncio.sleep(1)
        print(tally.as_json(started, done=False), flush=True)


async def run(options: argparse.Namespace) -> Tally:
    """Runs all clients, until the requests are sent and answered, the time is over, or SIGTERM comes."""
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
        prog="python -m tools.load.driver",
        description="Send chat requests and account for every one.",
        epilog="example: python -m tools.load.driver --url http://127.0.0.1:8000 --model smollm2 --requests 40",
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
