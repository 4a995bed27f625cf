"""Limits of tenants over all pods of a whole gateway, and rotation of API keys under load.

Each tenant sends steadily `FACTOR` times its limit, to the pods in turn, in front of a stand-in engine. The burst rule
(docs/guides/tenants.md): a tenant can use its whole limit at once, and what it used becomes available again after 60 s.
So the first minute admits the limit, each further minute too, and no interval of 60 s more than that.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

import aiohttp

from tools.bench.gateway.stack import SECRET, Gateways, bearer, gateways, new_key, secret
from tools.measure.served import free_port, process

SERVICE = "bench"
FACTOR = 3
REQUESTS = 600
"""Requests a minute of tenant `requests`."""
ANSWER_TOKENS = 6
"""Tokens of each answer of the stand-in, prompt and output."""
TOKENS = 600 * ANSWER_TOKENS
"""Tokens a minute of tenant `tokens`."""
CONCURRENT = 50
"""Concurrent requests of tenant `concurrent`, which keeps trying to have `FACTOR` times as many streams open."""
ROTATING_PER_S = 20.0
ROTATION_SECONDS = 4.0
_CLOCK_SECONDS = 0.1
"""Seconds by which requests that the client sent 60 s apart may reach the gateway less apart."""
_MINUTE = 60.0


@dataclass(frozen=True, slots=True)
class Limited:
    """Results of one limit. Attributes: limit, asked, admitted: requests or tokens (concurrent: streams open at once;
    `asked` counts attempts). most: most of them in any 60 s. incomplete: refusals without `Retry-After` or, for limits
    per minute, without the rate limit headers. other: answers that are neither 200 nor 429."""

    name: str
    limit: int
    asked: int
    admitted: list[int]
    most: int
    refused: int
    incomplete: int
    other: int


@dataclass(frozen=True, slots=True)
class Rotated:
    """Keys rotated under load. Attributes: refused: requests with a valid key that were not answered with 200.
    revived: answers other than 401 to an old key after its first 401. seen_s, gone_s: longest time until a new key
    was accepted, and until an old one was refused."""

    rotations: int
    requests: int
    refused: int
    revived: int
    seen_s: float
    gone_s: float


@dataclass(frozen=True, slots=True)
class Limits:
    limits: list[Limited]
    rotated: Rotated


@dataclass(slots=True)
class _Counts:
    sent: int = 0
    admitted: list[float] = field(default_factory=list)
    refused: int = 0
    incomplete: int = 0
    other: int = 0

    def take(self, at: float, status: int, complete: bool) -> None:
        self.sent += 1
        if status == 200:
            self.admitted.append(at)
        elif status == 429:
            self.refused += 1
            self.incomplete += not complete
        else:
            self.other += 1


class _Client:
    """A client of a running gateway. Attributes: keys: API keys of the tenants with limits."""

    def __init__(self, session: aiohttp.ClientSession, running: Gateways, service: dict[str, Any]) -> None:
        self._session = session
        self._running = running
        self._service = service
        self._urls = cycle([f"http://127.0.0.1:{pod.port}/v1/completions" for pod in running.pods])
        self.keys: dict[str, str] = {}

    def publish(self, *rotating: str) -> None:
        """Makes these keys, and the keys of tenants with limits, the only valid ones."""
        keys = {key: tenant for tenant, key in self.keys.items()} | dict.fromkeys(rotating, "rotating")
        self._running.configure([self._service], [secret(keys)])

    def post(self, key: str, *, stream: bool = False) -> Any:
        body = {"model": SERVICE, "prompt": "one two three", "max_tokens": 1, "stream": stream}
        return self._session.post(next(self._urls), json=body, headers={"Host": f"{SERVICE}.default", **bearer(key)})

    async def status(self, key: str) -> int:
        async with self.post(key) as answer:
            await answer.read()
            return int(answer.status)

    async def everywhere(self, key: str) -> set[int]:
        """Returns the statuses of a request to each pod."""
        return {await self.status(key) for _ in self._running.pods}


def measure(folder: Path, minutes: int, pods: int) -> Limits:
    """Start a stand-in engine and gateway pods in front of it, and send for so many minutes.

    Raises:
        RuntimeError: a process did not start.
    """
    folder.mkdir(parents=True)
    port = free_port()
    service: dict[str, Any] = {
        "name": SERVICE,
        "endpoints": [f"127.0.0.1:{port}"],
        "max_num_seqs": 100_000,
        "api_keys_secret": SECRET,
        "tenants": [
            {"name": "requests", "limits": {"requests_per_minute": REQUESTS}},
            {"name": "tokens", "limits": {"tokens_per_minute": TOKENS}},
            {"name": "concurrent", "limits": {"concurrent_requests": CONCURRENT}},
        ],
    }
    upstream = [sys.executable, "-m", "tools.standin.stream", str(port)]
    with process(folder / "upstream.log", upstream), gateways(folder / "gateway", [service], pods=pods) as running:
        return asyncio.run(_run(running, service, minutes))


async def _run(running: Gateways, service: dict[str, Any], minutes: int) -> Limits:
    timeout = aiohttp.ClientTimeout(total=None, sock_read=30)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        client = _Client(session, running, service)
        client.keys = {name: new_key() for name in ("requests", "tokens", "concurrent")}
        first = new_key()
        client.publish(first)
        await _until(lambda: client.everywhere(first), 200)
        seconds = minutes * _MINUTE
        requests, tokens, concurrent, rotated = await asyncio.gather(
            _steadily(client, "requests", REQUESTS * FACTOR / _MINUTE, seconds),
            _steadily(client, "tokens", TOKENS * FACTOR / ANSWER_TOKENS / _MINUTE, seconds),
            _streams(client, seconds),
            _rotate(client, first, seconds),
        )
    limits = [
        _limited("requests", REQUESTS, requests, 1, minutes),
        _limited("tokens", TOKENS, tokens, ANSWER_TOKENS, minutes),
    ]
    return Limits([*limits, concurrent], rotated)


async def _steadily(client: _Client, tenant: str, per_s: float, seconds: float) -> tuple[float, _Counts]:
    began, counts = time.monotonic(), _Counts()

    async def one(at: float) -> None:
        await asyncio.sleep(at - time.monotonic())
        sent = time.monotonic()
        async with client.post(client.keys[tenant]) as answer:
            await answer.read()
            headers = (f"x-ratelimit-{each}-{tenant}" for each in ("limit", "remaining", "reset"))
            complete = int(answer.headers.get("retry-after", 0)) > 0 and all(name in answer.headers for name in headers)
            counts.take(sent, answer.status, complete)

    await asyncio.gather(*(one(began + number / per_s) for number in range(int(seconds * per_s))))
    return began, counts


def _limited(name: str, limit: int, found: tuple[float, _Counts], unit: int, minutes: int) -> Limited:
    began, counts = found
    times = sorted(counts.admitted)
    by_minute = [0] * minutes
    for at in times:
        by_minute[min(minutes - 1, int((at - began) / _MINUTE))] += unit
    return Limited(
        name=name,
        limit=limit,
        asked=counts.sent * unit,
        admitted=by_minute,
        most=most_in(times, _MINUTE - _CLOCK_SECONDS) * unit,
        refused=counts.refused,
        incomplete=counts.incomplete,
        other=counts.other,
    )


def most_in(times: Sequence[float], seconds: float) -> int:
    """Returns the most of the ascending `times` that lie in any interval of so many seconds."""
    most = first = 0
    for last, at in enumerate(times):
        while times[first] <= at - seconds:
            first += 1
        most = max(most, last - first + 1)
    return most


async def _streams(client: _Client, seconds: float) -> Limited:
    """Opens far more streams than allowed, closes half of the admitted ones, opens more and closes all, twice."""
    counts, open_at_once = _Counts(), list[int]()
    for _ in range(2):
        async with AsyncExitStack() as kept, AsyncExitStack() as closed:
            first = await _open(client, counts, FACTOR * CONCURRENT)
            for number, answer in enumerate(first):
                (kept if number % 2 else closed).push(lambda *_, answer=answer: answer.close())
            open_at_once.append(len(first))
            await closed.aclose()
            await asyncio.sleep(1.0)
            more = await _open(client, counts, FACTOR * CONCURRENT)
            for answer in more:
                kept.push(lambda *_, answer=answer: answer.close())
            open_at_once.append(len(first) // 2 + len(more))
        await asyncio.sleep(min(seconds / 2, 5.0))
    return Limited(
        name="concurrent",
        limit=CONCURRENT,
        asked=counts.sent,
        admitted=open_at_once,
        most=max(open_at_once),
        refused=counts.refused,
        incomplete=counts.incomplete,
        other=counts.other,
    )


async def _open(client: _Client, counts: _Counts, streams: int) -> list[aiohttp.ClientResponse]:
    """Opens streams all at once; returns the admitted ones."""

    async def one() -> aiohttp.ClientResponse | None:
        answer: aiohttp.ClientResponse = await client.post(client.keys["concurrent"], stream=True)
        counts.take(time.monotonic(), answer.status, "retry-after" in answer.headers)
        if answer.status == 200:
            return answer
        answer.release()
        return None

    return [each for each in await asyncio.gather(*(one() for _ in range(streams))) if each is not None]


async def _rotate(client: _Client, key: str, seconds: float) -> Rotated:
    until = time.monotonic() + seconds
    valid, statuses, seen, gone, revived, rotations = [key], list[int](), [0.0], [0.0], 0, 0

    async def load() -> None:
        tasks = []
        while time.monotonic() < until:
            tasks.append(asyncio.create_task(client.status(valid[0])))
            await asyncio.sleep(1 / ROTATING_PER_S)
        statuses.extend(await asyncio.gather(*tasks))

    sending = asyncio.create_task(load())
    while time.monotonic() + 2 * ROTATION_SECONDS < until:
        old, new = valid[0], new_key()
        client.publish(old, new)
        seen.append(await _until(lambda key=new: client.everywhere(key), 200))  # type: ignore[misc]
        valid[0] = new
        await asyncio.sleep(0.5)  # requests with the old key arrive before its removal
        client.publish(new)
        gone.append(await _until(lambda key=old: client.everywhere(key), 401))  # type: ignore[misc]
        rotations += 1
        again = time.monotonic() + ROTATION_SECONDS / 2
        while time.monotonic() < again:
            revived += await client.everywhere(old) != {401}
            await asyncio.sleep(0.1)
    await sending
    return Rotated(rotations, len(statuses), sum(each != 200 for each in statuses), revived, max(seen), max(gone))


async def _until(statuses: Callable[[], Any], wanted: int) -> float:
    """Seconds until all pods answer so."""
    began = time.monotonic()
    while await statuses() != {wanted}:
        if time.monotonic() - began > 30:
            raise RuntimeError(f"no status {wanted} in 30 s")
        await asyncio.sleep(0.05)
    return time.monotonic() - began


def table(found: Limits) -> list[str]:
    """Lines for a terminal."""
    head = f"{'limit':<12} {'limit':>6} {'asked':>7} {'admitted':<24} {'most':>6} {'x':>6} {'refused':>8} {'faults':>7}"
    lines = ["", head]
    for row in found.limits:
        admitted = ", ".join(str(each) for each in row.admitted)
        line = f"{row.name:<12} {row.limit:>6} {row.asked:>7} {admitted:<24} {row.most:>6} {row.most / row.limit:>6.3f}"
        lines.append(f"{line} {row.refused:>8} {row.incomplete + row.other:>7}")
    lines += [
        "admitted: in each minute (concurrent: open at once); most: in any 60 s; x: most / limit; faults: 429 without",
        "the headers, and other answers",
    ]
    keys = found.rotated
    lines += [
        "",
        f"Keys rotated {keys.rotations} times under {keys.requests} requests: {keys.refused} with a valid key refused,",
        f"{keys.revived} with a removed key admitted after its first 401; new keys valid within {keys.seen_s:.2f} s of",
        f"the change of the file, removed ones refused within {keys.gone_s:.2f} s",
    ]
    return lines
