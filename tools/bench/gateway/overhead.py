"""Overhead of the gateway over a direct connection: latency, CPU time for each request, streamed token and pick, gaps
in streams beside long prompts, memory of open streams."""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from inflight_base.manifest.keys import ServiceKey
from inflight_cost.model import CostModel
from inflight_gateway.engines.ledger import Ledger
from inflight_gateway.pick.picker import Picker
from inflight_gateway.request.prefix import BYTES_PER_TOKEN
from inflight_gateway.tenants.estimate import Estimates
from inflight_gateway.types import Endpoint, EngineSample, Pick, RequestView, ServiceConfig
from tools.bench.gateway.beside import Tree
from tools.bench.gateway.client import Address, Stream, closed_loop, open_streams, prompt_body, send_steadily
from tools.bench.gateway.stack import Gateway, Gateways, Object, gateways
from tools.measure.report import percentile
from tools.measure.served import free_port, process
from tools.standin.stream import EVENT_SECONDS

OURS, CROSSING, DIRECT = "this", "other pod", "direct"
BENCH, TOKENS = "bench", "tokens"
"""Services."""
CONNECTIONS = (1, 8, 32, 128)
"""A request alone waits for each process in turn; 128 keep the cores busy."""
PROMPT_CHARACTERS = 2000
TOKEN_STREAMS = 256
TOKEN_SECONDS = 0.02
"""Between two tokens of a stream: 12,800 tokens a second of all, which two cores carry beside clients and stand-in."""
GAP_STREAMS = 64
LONG_PROMPT_TOKENS = 60_000
PROMPTS_PER_S = 20.0
_DIFFERENT_PROMPTS = 20
_WARM_UP_SECONDS = 1.0
_SETTLE_SECONDS = 3.0

PICK_REPLICAS = (4, 100, 500)
_KEY = ServiceKey("default", "bench")
_CONFIG = ServiceConfig(_KEY, "uid", "bench")
_NOW = 100.0
_PICK_ROUNDS = 25
_PICKS = 50
_PREFIXES = 40
"""Prompts that differ in their first block, of `_BLOCKS` blocks each."""
_BLOCKS = 8


@dataclass(frozen=True, slots=True)
class Latency:
    """Figures of one path for a number of connections with a request each; medians of the rounds.

    Attributes:
        p50_ms, p99_ms: latencies in milliseconds.
        rps: requests/s that were sent, by clients on the same machine.
        cpu_ms: CPU milliseconds of the gateway for each request, by process; empty without a gateway.
    """

    path: str
    connections: int
    p50_ms: float
    p99_ms: float
    rps: float
    cpu_ms: dict[str, float]

    @property
    def per_cpu_second(self) -> float:
        return 1e3 / sum(self.cpu_ms.values())


@dataclass(frozen=True, slots=True)
class Tokens:
    """Streamed tokens through a gateway.

    Attributes:
        sent: tokens a second that the stand-in sends. delivered: that reach the client.
        cpu_us: CPU microseconds for each delivered token, by process.
    """

    sent: float
    delivered: float
    cpu_us: dict[str, float]

    @property
    def per_cpu_second(self) -> float:
        return 1e6 / sum(self.cpu_us.values())


@dataclass(frozen=True, slots=True)
class Entry:
    """A way into a gateway. Attributes, by service: ports: for clients. pods: those that work for its requests."""

    ports: Mapping[str, int]
    pods: Mapping[str, Sequence[Gateway]]

    def address(self, service: str) -> Address:
        return "127.0.0.1", self.ports[service]

    def cpu(self, service: str) -> dict[str, float]:
        """CPU seconds that processes with each name have used."""
        return _total(pod.cpu() for pod in self.pods[service])

    def memory(self, service: str) -> dict[str, float]:
        """Memory of processes with each name, in MiB (proportional set size)."""
        return _total(pod.memory() for pod in self.pods[service])


def _total(rows: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: Counter[str] = Counter()
    for row in rows:
        total.update(row)
    return dict(total)


@dataclass(frozen=True, slots=True)
class Overhead:
    """Figures of one way into a gateway; medians of the rounds.

    Attributes:
        latencies: of this gateway and, where it is the first one measured, direct.
        tokens: of `TOKEN_STREAMS` streams.
        pick_us: CPU microseconds of a pick, by the number of replicas.
        streams: open streams. stream_memory_mib: MiB that they add, by process.
        longest_gap_s: between two events of a stream while so many were open; events come every `EVENT_SECONDS`.
        gap_ms: longest milliseconds between two events of `GAP_STREAMS` streams, whose events come every
            `TOKEN_SECONDS`, alone and beside `PROMPTS_PER_S` prompts of `LONG_PROMPT_TOKENS` tokens a second.
        direct_gap_ms: the same without a gateway: what clients and stand-in, on the same cores, take of it.
    """

    latencies: list[Latency]
    tokens: Tokens
    pick_us: dict[int, float]
    streams: int
    memory_mib: dict[str, float]
    stream_memory_mib: dict[str, float]
    longest_gap_s: float
    gap_ms: tuple[float, float]
    direct_gap_ms: tuple[float, float]

    @property
    def requests_per_cpu_second(self) -> dict[int, float]:
        """Requests for a second of CPU time, by the number of connections."""
        return {row.connections: row.per_cpu_second for row in self.latencies if row.cpu_ms}


def measure(
    folder: Path, *, seconds: float, rounds: int, streams: int, pods: int = 1, beside: Path | None = None
) -> dict[str, Overhead]:
    """Starts stand-in engines and a gateway in front of them, and measures the direct path and the gateway in turns.

    Args:
        pods: gateway pods. With several, requests enter at the one that owns their service, and then at another one.
        beside: folder of another version of this repository, one gateway pod of which is measured too, in the same
            turns.

    Returns:
        The figures by way: `OURS`, with several pods `CROSSING`, and the name of the other folder.

    Raises:
        RuntimeError: a request was not answered, or a process did not start.
    """
    with ExitStack() as stack:
        services, direct = [], dict[str, int]()
        for name, every in ((TOKENS, TOKEN_SECONDS), (BENCH, EVENT_SECONDS)):
            direct[name] = free_port()
            command = [sys.executable, "-m", "tools.standin.stream", str(direct[name]), str(every)]
            stack.enter_context(process(folder / f"{name}.log", command))
            services.append({"name": name, "endpoints": [f"127.0.0.1:{direct[name]}"], "max_num_seqs": 100_000})
        entries = _entries(stack.enter_context(gateways(folder / "gateway", services, pods=pods)), services)
        picks = dict.fromkeys(entries, pick_microseconds())
        if beside is not None:
            other = Tree(beside)
            old = stack.enter_context(other.gateway(folder / "beside", services))
            both = TOKENS, BENCH
            entries[other.name] = Entry(dict.fromkeys(both, old.port), dict.fromkeys(both, (old,)))
            picks[other.name] = other.pick_microseconds(PICK_REPLICAS)
        latencies = _latencies(direct[BENCH], entries, seconds, rounds)
        tokens = _tokens(entries, seconds, rounds)
        gaps = _gaps({DIRECT: Entry(direct, {}), **entries}, seconds, rounds)
        found = {}
        for name, entry in entries.items():
            memory, added, gap = asyncio.run(_memory(entry, streams))
            found[name] = Overhead(
                *(latencies[name], tokens[name], picks[name], streams, memory, added, gap),
                *(gaps[name], gaps[DIRECT]),
            )
    return found


def _entries(running: Gateways, services: Sequence[Object]) -> dict[str, Entry]:
    ports: dict[str, dict[str, int]] = {}
    pods: dict[str, dict[str, list[Gateway]]] = {}
    for service in (each["name"] for each in services):
        owner, *others = running.by_owner(service)
        for way, entry in zip((OURS, CROSSING), (owner, *others[:1]), strict=False):
            ports.setdefault(way, {})[service] = entry.port
            pods.setdefault(way, {})[service] = [owner] if entry is owner else [owner, entry]
    return {way: Entry(ports[way], pods[way]) for way in ports}


def _turns(names: Iterable[str], rounds: int) -> Iterator[str]:
    """Yields all names in each round, in the next one in reverse."""
    forward = list(names)
    for number in range(rounds):
        yield from reversed(forward) if number % 2 else forward


def _latencies(direct: int, entries: Mapping[str, Entry], seconds: float, rounds: int) -> dict[str, list[Latency]]:
    ports = {DIRECT: direct, **{name: each.ports[BENCH] for name, each in entries.items()}}
    body = prompt_body(PROMPT_CHARACTERS)
    for each in ports.values():
        asyncio.run(closed_loop(("127.0.0.1", each), 2, _WARM_UP_SECONDS, body))
    found: dict[str, list[Latency]] = {name: [] for name in ports}
    for connections in CONNECTIONS:
        taken: dict[str, list[Latency]] = {name: [] for name in ports}
        for name in _turns(ports, rounds):
            entry = entries.get(name)
            before = entry.cpu(BENCH) if entry else {}
            times = asyncio.run(closed_loop(("127.0.0.1", ports[name]), connections, seconds, body))
            p50, p99 = (1000 * percentile(times, share) for share in (0.5, 0.99))
            used = _each(entry.cpu(BENCH), before, len(times) / 1e3) if entry else {}
            path = "gateway" if entry else DIRECT
            taken[name].append(Latency(path, connections, p50, p99, len(times) / seconds, used))
        for name, rows in taken.items():
            found[name].append(_median(rows))
    found[OURS] = [row for pair in zip(found.pop(DIRECT), found[OURS], strict=True) for row in pair]
    return found


def _each(after: Mapping[str, float], before: Mapping[str, float], number: float) -> dict[str, float]:
    return {name: (after[name] - before[name]) / number for name in after}


def _medians(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def _median(rows: Sequence[Latency]) -> Latency:
    p50, p99, rps = (statistics.median(getattr(row, name) for row in rows) for name in ("p50_ms", "p99_ms", "rps"))
    return Latency(rows[0].path, rows[0].connections, p50, p99, rps, _medians([row.cpu_ms for row in rows]))


def _tokens(entries: Mapping[str, Entry], seconds: float, rounds: int) -> dict[str, Tokens]:
    taken: dict[str, list[Tokens]] = {name: [] for name in entries}
    for name in _turns(entries, rounds):
        taken[name].append(asyncio.run(_tokens_of(entries[name], seconds)))
    return {
        name: Tokens(
            rows[0].sent, statistics.median(row.delivered for row in rows), _medians([row.cpu_us for row in rows])
        )
        for name, rows in taken.items()
    }


async def _tokens_of(entry: Entry, seconds: float) -> Tokens:
    body = prompt_body(PROMPT_CHARACTERS)
    async with open_streams(entry.address(TOKENS), TOKEN_STREAMS, body, f"{TOKENS}.default") as streams:
        await asyncio.sleep(_WARM_UP_SECONDS)
        before, events, begin = entry.cpu(TOKENS), _events(streams), time.perf_counter()
        await asyncio.sleep(seconds)
        count, taken = _events(streams) - events, time.perf_counter() - begin
        return Tokens(TOKEN_STREAMS / TOKEN_SECONDS, count / taken, _each(entry.cpu(TOKENS), before, count / 1e6))


def _events(streams: Iterable[Stream]) -> int:
    return sum(stream.events for stream in streams)


def _gaps(entries: Mapping[str, Entry], seconds: float, rounds: int) -> dict[str, tuple[float, float]]:
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in entries}
    for name in _turns(entries, rounds):
        taken[name].append(asyncio.run(_gaps_of(entries[name], seconds)))
    return {
        name: (statistics.median(alone for alone, _ in rows), statistics.median(beside for _, beside in rows))
        for name, rows in taken.items()
    }


async def _gaps_of(entry: Entry, seconds: float) -> tuple[float, float]:
    body = prompt_body(PROMPT_CHARACTERS)
    text = prompt_body(LONG_PROMPT_TOKENS * BYTES_PER_TOKEN)
    prompts = [{**text, "prompt": f"{number} {text['prompt']}"} for number in range(_DIFFERENT_PROMPTS)]
    address, host = entry.address(TOKENS), f"{TOKENS}.default"
    async with open_streams(address, GAP_STREAMS, body, host) as streams:
        await asyncio.sleep(_WARM_UP_SECONDS)
        alone = await _longest(streams, asyncio.sleep(seconds))
        long = send_steadily(address, PROMPTS_PER_S, seconds, prompts, host)
        return alone, await _longest(streams, long)


async def _longest(streams: Sequence[Stream], meanwhile: Awaitable[object]) -> float:
    for stream in streams:
        stream.forget()
    await meanwhile
    return 1e3 * max(stream.longest_s for stream in streams)


async def _memory(entry: Entry, count: int) -> tuple[dict[str, float], dict[str, float], float]:
    before = entry.memory(BENCH)
    async with open_streams(entry.address(BENCH), count, prompt_body(PROMPT_CHARACTERS)) as streams:
        longest = await _longest(streams, asyncio.sleep(_SETTLE_SECONDS))
        with_streams = entry.memory(BENCH)
    return before, {name: with_streams[name] - before[name] for name in before}, longest / 1e3


def pick_microseconds() -> dict[int, float]:
    """Returns the time of a pick by the number of replicas, in microseconds: medians of the rounds."""
    return {count: _pick_us(count) for count in PICK_REPLICAS}


def _pick_us(count: int) -> float:
    rng = random.Random(count)
    endpoints = tuple(Endpoint(f"10.0.0.{number}:8000", f"pod-{number}") for number in range(count))
    samples = {each.address: _engine_sample(rng) for each in endpoints}
    ledger = Ledger(lambda _: endpoints, samples.get, Estimates())
    picker = Picker(ledger.ranking)
    prefixes = [tuple(rng.getrandbits(64) for _ in range(_BLOCKS)) for _ in range(_PREFIXES)]
    requests = [
        RequestView(str(number), _KEY, _NOW, prompt_tokens=64 * _BLOCKS, prefix=prefixes[number % _PREFIXES])
        for number in range(_PICKS)
    ]
    for request in requests:
        ledger.begin(request, _picked(picker, ledger, request), _NOW)
    taken = []
    for _ in range(_PICK_ROUNDS):
        begin = time.thread_time()
        for request in requests:
            _picked(picker, ledger, request)
        taken.append((time.thread_time() - begin) / _PICKS)
    return 1e6 * statistics.median(taken)


def _picked(picker: Picker, ledger: Ledger, request: RequestView) -> Pick:
    found = ledger.candidates(_CONFIG, request, _NOW)
    pick = picker.pick(request, _CONFIG, found.loads, _NOW, replicas=found.replicas)
    assert pick is not None
    return pick


def _engine_sample(rng: random.Random) -> EngineSample:
    """Returns the sample of a replica with some load and room for more; each has fitted a cost model of its own."""
    waiting = rng.randrange(3)
    return EngineSample(
        at=_NOW - rng.random(),
        running=rng.randrange(60),
        waiting=waiting,
        waiting_prompt_tokens=waiting * rng.randrange(1000),
        kv_utilization=rng.random(),
        kv_cache_tokens=400_000,
        cost=CostModel(6e-3, 20e-6, 30e-6 * (1 + 0.1 * rng.random()), 0.05e-6, 1e-9),
    )
