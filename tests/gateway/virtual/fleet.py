"""Whole gateway pods in virtual time, in front of emulated engines: the pickers' and the relays' own code, and the
streams between them."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.link.wire import Ask, Go, Refuse
from inflight_gateway.request.body import Body
from inflight_gateway.types import Endpoint, Finished, ServiceConfig
from tests.gateway.virtual import loop
from tests.gateway.virtual.engine import Engine, Sent, Shape
from tests.gateway.virtual.pod import Pod

T = TypeVar("T")

KEY = ServiceKey("default", "a")
BETWEEN_S = 0.0005
"""Seconds from one pod to another."""


class Fleet:
    """A service behind some gateway pods. Create it in the event loop.

    Attributes:
        pods: by number. engines: by address.
        started, done: requests in the order in which engines got them, and in which they ended.
        refused: requests that were refused, with their status.
        most: most requests at engines at once.
    """

    def __init__(self, shape: Shape, pods: int = 1, **config: object) -> None:
        self.engines = {f"10.0.0.{number}:80": Engine(shape) for number in range(shape.replicas)}
        self.config = ServiceConfig(KEY, "uid", "m", max_num_seqs=shape.slots, **config)
        endpoints = tuple(Endpoint(address, address) for address in self.engines)
        self.pods = [Pod(number, self.config, endpoints, self.sample) for number in range(pods)]
        self.started: list[Sent] = []
        self.done: list[Sent] = []
        self.refused: list[tuple[Sent, int]] = []
        self.most = 0
        self._names = Counter[str]()

    def sample(self, address: str):
        return self.engines[address].sample()

    async def start(self) -> None:
        """Returns when all pods have all streams."""
        self.set_ready(*self.pods)
        for pod in self.pods:
            pod.start()
        await asyncio.sleep(2.0)

    def set_ready(self, *pods: Pod) -> None:
        """Makes these pods the ready ones."""
        for pod in self.pods:
            pod.set_ready(pods)

    @property
    def owner(self) -> Pod:
        """The pod that owns the service."""
        name = self.pods[0].owner(KEY)
        return next(pod for pod in self.pods if pod.name == name)

    async def generate(
        self, pod: Pod, tenant: str, prompt: int = 64, tokens: int = 24, name: str = "", blocks: bytes = b""
    ) -> Sent | None:
        """Sends a request to a pod, and returns it at its end; None: it was refused."""
        self._names[tenant] += 1
        sent = Sent(
            name or f"{tenant} {self._names[tenant]}", tenant, asyncio.get_running_loop().time(), prompt, tokens
        )
        answer = await pod.ask(
            Ask(sent.name, 1, KEY, tenant, path="/v1/completions", body=Body(prompt_tokens=prompt, blocks=blocks))
        )
        if isinstance(answer, Refuse):
            self.refused.append((sent, answer.status))
            pod.pickers.asks.ended(Finished(sent.name, KEY, answer.status, True, prompt))
            return None
        await self._run(pod, sent, answer)
        return sent

    async def _run(self, pod: Pod, sent: Sent, go: Go) -> None:
        address = sent.engine = go.endpoints[0]
        self.started.append(sent)
        self.engines[address].take(sent)
        self.most = max(self.most, len(self.started) - len(self.done))
        pod.pickers.asks.answering(sent.name, address, (), lambda: sent.done)
        await sent.over.wait()
        pod.ended(address)
        self.done.append(sent)
        pod.pickers.asks.ended(
            Finished(sent.name, KEY, 200, True, sent.prompt, completion_tokens=sent.tokens, endpoints=(address,))
        )


def run(main: Callable[[], Awaitable[T]]) -> T:
    """Runs a coroutine function in virtual time."""
    return loop.run(main, BETWEEN_S)


Arrival = tuple[float, str, str, int, int]
"""Time, tenant, name, prompt tokens, output tokens."""


def poisson(
    tenant: str,
    per_s: float,
    seconds: float,
    seed: int,
    *,
    prompt: int = 64,
    output: int = 24,
    longest: int | None = None,
) -> list[Arrival]:
    """Requests of a tenant. Args: longest: tokens of an answer, of exponential lengths with the mean `output`; None:
    equal lengths."""
    rng, lengths = random.Random(f"{tenant} {seed}"), random.Random(f"{tenant} {seed} lengths")
    arrivals: list[Arrival] = []
    at = 0.0
    while per_s and (at := at + rng.expovariate(per_s)) < seconds:
        tokens = output if longest is None else min(longest, 1 + int(lengths.expovariate(1 / output)))
        arrivals.append((at, tenant, f"{tenant} {len(arrivals)}", prompt, tokens))
    return arrivals


def simulated(
    arrivals: Sequence[Arrival],
    shape: Shape,
    until: float,
    pods: int = 1,
    at: Callable[[Fleet, str], Pod] | None = None,
) -> list[Sent]:
    """The requests that ended, with their times since the first second. Args: at: returns the pod that a tenant
    connects to; None: the first one."""

    async def main() -> list[Sent]:
        fleet = Fleet(shape, pods)
        await fleet.start()
        begin = asyncio.get_running_loop().time()

        async def one(after: float, tenant: str, name: str, prompt: int, tokens: int) -> None:
            await asyncio.sleep(begin + after - asyncio.get_running_loop().time())
            pod = fleet.pods[0] if at is None else at(fleet, tenant)
            await fleet.generate(pod, tenant, prompt, tokens, name)

        tasks = [asyncio.create_task(one(*arrival)) for arrival in arrivals]
        await asyncio.wait(tasks, timeout=until)
        done = [*fleet.done]
        for each in done:
            each.at, each.started, each.first, each.ended = (
                moment - begin for moment in (each.at, each.started, each.first, each.ended)
            )
        return done

    return run(main)
