"""Routing on real replicas: time to first token and prefix hits of conversations, by the choice of the replica.

The peers choose on the client's side, without a proxy in the path, so they are free of any overhead:

- `service`: a plain Kubernetes Service. It balances connections: each of the clients keeps one to a random replica.
- `round-robin`: the replicas in turn.
- `least-requests`: the replica with the fewest requests in flight, all clients counted.

`gateway` is all requests at one gateway pod, the one that owns the service, on kept connections. `gateway-pods` is each
request on a new connection, to all pods in turn. `gateway-pods-exact` is the same with the KV cache events of the
engines, by which the gateway's index of prefixes is exact.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from pathlib import Path

from inflight_kubectl.load.answers import Answer, AnswerError
from inflight_kubectl.load.client import Client
from inflight_operator.observe.metrics import Sample, parse_metrics
from inflight_settings.limits import Limits
from tools.bench.gateway.conversations import Turn
from tools.bench.gateway.stack import Gateway, gateways
from tools.measure.cpu_share import cpu_group
from tools.measure.report import percentile
from tools.measure.served import free_port, served_engine

CLIENTS = 16
SERVICE = "bench"
LATE_S = 300.0
"""Seconds after the last request until the run of a policy is given up."""
LIMITS = Limits(16, 256)
TTFT_S = 0.5
"""Target of the service, its default: late binding queues no more at a replica than a share of it."""
ENGINE_FLAGS = (
    "--quantization=int8",
    "--num-threads=1",
    f"--max-num-seqs={LIMITS.max_num_seqs}",
    f"--max-num-batched-tokens={LIMITS.max_num_batched_tokens}",
    "--max-model-len=4096",
    "--num-kv-blocks=1500",
    "--max-queued-requests=1000",
)


@dataclass(frozen=True, slots=True)
class Routed:
    """Results of one policy. Attributes: ttft_*: seconds. hit_rate: share of prompt tokens found in prefix caches.
    busiest: share of the prompt tokens at the replica that had most of them."""

    policy: str
    requests: int
    ttft_p50: float
    ttft_p95: float
    hit_rate: float
    busiest: float


Choice = Callable[[int, int, Sequence[int]], int]
"""(client, number of the request, requests in flight by replica) -> replica."""


def _by_connection(client: int, number: int, in_flight: Sequence[int]) -> int:
    return random.Random(client).randrange(len(in_flight))


def _in_turn(client: int, number: int, in_flight: Sequence[int]) -> int:
    return number % len(in_flight)


def _least(client: int, number: int, in_flight: Sequence[int]) -> int:
    fewest = min(in_flight)
    return random.Random(number).choice([place for place, each in enumerate(in_flight) if each == fewest])


PEERS: Mapping[str, Choice] = {"service": _by_connection, "round-robin": _in_turn, "least-requests": _least}
OURS, PODS, EXACT = "gateway", "gateway-pods", "gateway-pods-exact"
POLICIES = (*PEERS, OURS, PODS, EXACT)


def measure(
    folder: Path,
    turns: Sequence[Turn],
    replicas: int,
    policies: Sequence[str],
    say: Callable[[str], None],
    *,
    pods: int,
    cores: float = 0.0,
) -> list[Routed]:
    """Start the replicas and send the same load by each policy, one after the other. Prefix caches begin without the
    content of earlier policies: each has its own cache salt.

    Args:
        pods: of the gateway.
        cores: CPU time that each replica gets; 0: all share the machine.

    Raises:
        RuntimeError: an engine or the gateway did not start, or a request was not answered.
    """
    with ExitStack() as stack:
        names = [f"bench-gateway-{number}" for number in range(replicas)]
        groups = [stack.enter_context(cpu_group(name)) if cores else None for name in names]
        # Each at an address of its own: the ports of events are the same for all engines of a service.
        ports, hosts = (free_port(), free_port()), [f"127.0.0.{number}" for number in range(2, 2 + replicas)]
        urls = [
            stack.enter_context(
                served_engine(folder / f"{name}.log", *ENGINE_FLAGS, _events_flag(host, *ports), group=group, host=host)
            )
            for name, group, host in zip(names, groups, hosts, strict=True)
        ]
        for group in groups:
            if group is not None:
                group.limit(cores)
        endpoints = [url.removeprefix("http://") for url in urls]
        service = {
            "name": SERVICE,
            "model": "smollm2",
            "endpoints": endpoints,
            "max_num_seqs": LIMITS.max_num_seqs,
            "ttft_s": TTFT_S,
        }
        running = stack.enter_context(gateways(folder / "gateway", [service], pods=pods)).by_owner(SERVICE)
        exact: list[Gateway] = []
        if EXACT in policies:
            publishing = {**service, "kv_events": ports}
            exact = stack.enter_context(gateways(folder / "exact", [publishing], pods=pods)).by_owner(SERVICE)
        found = []
        for policy in policies:
            say(f"{policy}: {len(turns)} requests in {turns[-1].at_s:.0f} s")
            through = {OURS: running[:1], PODS: running, EXACT: exact}.get(policy, [])
            found.append(asyncio.run(_run(policy, turns, urls, through)))
            say(f"  TTFT p50 {found[-1].ttft_p50:.2f} s, p95 {found[-1].ttft_p95:.2f} s, hits {found[-1].hit_rate:.1%}")
        return found


def _events_flag(host: str, port: int, replay_port: int) -> str:
    # A socket is bound, and not connected, where its address has two colons.
    endpoint = f"tcp://[::ffff:{host}]:{port}"
    config = {"enable_kv_cache_events": True, "endpoint": endpoint, "replay_endpoint": f"tcp://{host}:{replay_port}"}
    return f"--kv-events-config={json.dumps(config)}"


def _sample(url: str) -> Sample:
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        return parse_metrics(answer.read().decode(), 0.0)


async def _run(policy: str, turns: Sequence[Turn], urls: Sequence[str], through: Sequence[Gateway]) -> Routed:
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(Client(url)) for url in urls]
        fronts = [
            await stack.enter_async_context(Client(f"http://127.0.0.1:{pod.port}", keep=len(through) == 1))
            for pod in through
        ]
        before = [_sample(url) for url in urls]
        in_flight = [0] * len(urls)
        began = time.monotonic()

        async def send(number: int, turn: Turn) -> float:
            await asyncio.sleep(began + turn.at_s - time.monotonic())
            if fronts:
                return await _ttft(fronts[number % len(fronts)], turn, policy)
            place = PEERS[policy](number % CLIENTS, number, in_flight)
            in_flight[place] += 1
            try:
                return await _ttft(clients[place], turn, policy)
            finally:
                in_flight[place] -= 1

        sent = [asyncio.create_task(send(number, turn)) for number, turn in enumerate(turns)]
        try:
            async with asyncio.timeout(turns[-1].at_s + LATE_S):
                ttfts = await asyncio.gather(*sent)
        except TimeoutError:
            waiting = sum(task.cancelled() for task in sent)
            raise RuntimeError(
                f"{policy}: {waiting} of {len(sent)} requests have no answer {LATE_S:g} s after the last one was sent; "
                "the machine is too slow for the load, or used otherwise"
            ) from None
        except AnswerError as error:
            raise RuntimeError(f"{policy}: {error}") from None
        after = [_sample(url) for url in urls]
    spans = list(zip(before, after, strict=True))
    hits = sum(now.prefix_hits - then.prefix_hits for then, now in spans)
    queries = [now.prefix_queries - then.prefix_queries for then, now in spans]
    return Routed(
        policy=policy,
        requests=len(ttfts),
        ttft_p50=percentile(ttfts, 0.5),
        ttft_p95=percentile(ttfts, 0.95),
        hit_rate=hits / sum(queries),
        busiest=max(queries) / sum(queries),
    )


async def _ttft(client: Client, turn: Turn, salt: str) -> float:
    body = {
        "model": "smollm2",
        "prompt": turn.prompt,
        "max_tokens": turn.output_tokens,
        "cache_salt": salt,
        "ignore_eos": True,
        "stream": True,
    }
    answer = Answer(time.monotonic())
    await client.ask(body, answer, headers={"Host": f"{SERVICE}.default"})
    assert answer.ttft is not None, "a whole answer has a first token"
    return answer.ttft
