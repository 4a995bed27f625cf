"""Overhead of the gateway over a direct connection: latency, CPU time for each request and pick, memory of open
streams."""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from inflight_base.manifest.keys import ServiceKey
from inflight_cost.model import CostModel
from inflight_gateway.engines.ledger import Ledger
from inflight_gateway.pick.picker import Picker
from inflight_gateway.tenants.estimate import Estimates
from inflight_gateway.types import Endpoint, EngineSample, RequestView, ServiceConfig
from tools.bench.gateway.client import closed_loop, open_streams, prompt_body
from tools.bench.gateway.stack import Gateway, gateway
from tools.measure.report import percentile
from tools.measure.served import free_port, process
from tools.standin.stream import EVENT_SECONDS

CONNECTIONS = (1, 8)
PROMPT_CHARACTERS = 2000
_WARM_UP_SECONDS = 1.0
_SETTLE_SECONDS = 3.0

PICK_REPLICAS = (4, 100)
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
    """Latencies of one path, in milliseconds; `rps`: requests/s that were sent, by clients on the same machine."""

    path: str
    connections: int
    p50_ms: float
    p99_ms: float
    rps: float


@dataclass(frozen=True, slots=True)
class Overhead:
    """Results of the measurement.

    Attributes:
        latencies: direct and through the gateway, in turns; medians of the rounds.
        cpu_ms: CPU milliseconds for each request, by process.
        pick_us: CPU microseconds of a pick, by the number of replicas.
        streams: open streams. stream_memory_mib: MiB that they add, by process.
        longest_gap_s: between two events of a stream while so many were open; events come every `EVENT_SECONDS`.
    """

    latencies: list[Latency]
    cpu_ms: dict[str, float]
    pick_us: dict[int, float]
    streams: int
    memory_mib: dict[str, float]
    stream_memory_mib: dict[str, float]
    longest_gap_s: float


def measure(folder: Path, *, seconds: float, rounds: int, streams: int) -> Overhead:
    """Start a stand-in engine and a gateway in front of it, and measure both paths in turns.

    Raises:
        RuntimeError: a request was not answered, or a process did not start.
    """
    port = free_port()
    upstream = [sys.executable, "-m", "tools.standin.stream", str(port)]
    service = {"name": "bench", "endpoints": [f"127.0.0.1:{port}"], "max_num_seqs": 100_000}
    with process(folder / "upstream.log", upstream), gateway(folder / "gateway", [service]) as running:
        latencies, cpu_ms = _latencies(port, running, seconds, rounds)
        memory, added, gap = asyncio.run(_streams(running, streams))
    return Overhead(latencies, cpu_ms, pick_microseconds(), streams, memory, added, gap)


def _latencies(port: int, running: Gateway, seconds: float, rounds: int) -> tuple[list[Latency], dict[str, float]]:
    paths = {"direct": port, "gateway": running.port}
    body = prompt_body(PROMPT_CHARACTERS)
    for each in paths.values():
        asyncio.run(closed_loop(("127.0.0.1", each), 2, _WARM_UP_SECONDS, body))
    found: list[Latency] = []
    used, requests = dict.fromkeys(running.pids, 0.0), 0
    for connections in CONNECTIONS:
        taken: dict[str, list[Latency]] = {path: [] for path in paths}
        for _ in range(rounds):
            for path, each in paths.items():
                before = running.cpu()
                times = asyncio.run(closed_loop(("127.0.0.1", each), connections, seconds, body))
                taken[path].append(_latency(path, connections, times, seconds))
                if path == "gateway":
                    requests += len(times)
                    used = {name: used[name] + after - before[name] for name, after in running.cpu().items()}
        found += [_median(rows) for rows in taken.values()]
    return found, {name: 1000 * total / requests for name, total in used.items()}


def _latency(path: str, connections: int, times: Sequence[float], seconds: float) -> Latency:
    p50, p99 = (1000 * percentile(times, share) for share in (0.5, 0.99))
    return Latency(path, connections, p50, p99, len(times) / seconds)


def _median(rows: Sequence[Latency]) -> Latency:
    p50, p99, rps = (statistics.median(getattr(row, name) for row in rows) for name in ("p50_ms", "p99_ms", "rps"))
    return Latency(rows[0].path, rows[0].connections, p50, p99, rps)


async def _streams(running: Gateway, streams: int) -> tuple[dict[str, float], dict[str, float], float]:
    before = running.memory()
    body = prompt_body(PROMPT_CHARACTERS)
    async with open_streams(("127.0.0.1", running.port), streams, body) as newest:
        longest, until = 0.0, time.perf_counter() + _SETTLE_SECONDS
        while (now := time.perf_counter()) < until:
            longest = max(longest, max(now - each for each in newest))
            await asyncio.sleep(EVENT_SECONDS / 10)
        with_streams = running.memory()
    return before, {name: with_streams[name] - before[name] for name in before}, longest


def pick_microseconds() -> dict[int, float]:
    """Returns the time of a pick by the number of replicas, in microseconds: medians of the rounds."""
    return {count: _pick_us(count) for count in PICK_REPLICAS}


def _pick_us(count: int) -> float:
    rng = random.Random(count)
    endpoints = tuple(Endpoint(f"10.0.0.{number}:8000", f"pod-{number}") for number in range(count))
    samples = {each.address: _engine_sample(rng) for each in endpoints}
    ledger, picker = Ledger(lambda _: endpoints, samples.get, Estimates()), Picker()
    prefixes = [tuple(rng.getrandbits(64) for _ in range(_BLOCKS)) for _ in range(_PREFIXES)]
    requests = [
        RequestView(str(number), _KEY, _NOW, prompt_tokens=64 * _BLOCKS, prefix=prefixes[number % _PREFIXES])
        for number in range(_PICKS)
    ]
    for request in requests:
        pick = picker.pick(request, _CONFIG, ledger.loads(_KEY, request, _NOW), _NOW)
        assert pick is not None
        ledger.begin(request, pick, _NOW)
    taken = []
    for _ in range(_PICK_ROUNDS):
        begin = time.thread_time()
        for request in requests:
            picker.pick(request, _CONFIG, ledger.loads(_KEY, request, _NOW), _NOW)
        taken.append((time.thread_time() - begin) / _PICKS)
    return 1e6 * statistics.median(taken)


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
