"""The gateway's decisions in simulated time, in front of engines whose steps take as long as a GPU's."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from inflight_cost.model import CostModel, StepWork
from inflight_gateway.catalog import Catalog
from inflight_gateway.ext_proc.dispatcher import Dispatcher, Start
from inflight_gateway.hold.queue import HoldQueue
from inflight_gateway.ledger import Ledger
from inflight_gateway.pick.picker import Picker
from inflight_gateway.tenants.estimate import Estimates
from inflight_gateway.types import Endpoint, EngineSample, Refusal, RequestView, ServiceConfig, ServiceKey

KEY = ServiceKey("default", "a")
COST = CostModel(25e-3, 50e-6, 60e-6, 0.0, 0.0)
"""As bench/gateway/emulated.py: requests that run side by side hardly slow each other down."""
BUDGET = 2048


@dataclass(eq=False)
class Sent:
    """A request on its way. Attributes: left: tokens to generate. todo: prompt tokens to compute. Seconds since the
    start of the run: at: of its arrival. started: sent to an engine. first: first token."""

    name: str
    tenant: str
    at: float
    prompt: int
    left: int
    outcome: asyncio.Future[Start | Refusal]
    tokens: int = 0
    todo: int = 0
    started: float = 0.0
    first: float = 0.0
    ended: float = 0.0


@dataclass(frozen=True)
class Shape:
    """Of a fleet. Attributes: slots, kv_tokens, cost: of each replica."""

    slots: int
    replicas: int = 1
    kv_tokens: int = 10**6
    cost: CostModel = COST


@dataclass(eq=False)
class Engine:
    """Continuous batching with chunked prefill, first come, first served. When the KV cache is full, the youngest
    request is preempted and computed again. Attributes: end: of the step under way."""

    shape: Shape
    queue: deque[Sent] = field(default_factory=deque)
    running: list[Sent] = field(default_factory=list)
    end: float | None = None
    sampled: list[Sent] = field(default_factory=list)

    @property
    def used_tokens(self) -> int:
        return sum(each.prompt + each.tokens for each in self.running)

    def step(self, now: float) -> None:
        """Starts the next one, unless nothing is left."""
        while len(self.running) > 1 and self.used_tokens + len(self.running) > self.shape.kv_tokens:
            self.queue.appendleft(self.running.pop())
            self.queue[0].todo = self.queue[0].prompt + self.queue[0].tokens
        decoding = [each for each in self.running if not each.todo]
        budget = BUDGET - len(decoding)
        while self.queue and len(self.running) < self.shape.slots and self._fits(self.queue[0]):
            self.running.append(self.queue.popleft())
        prefilled = []
        for each in self.running:
            if each.todo and budget:
                chunk = min(budget, each.todo)
                each.todo -= chunk
                budget -= chunk
                prefilled += [] if each.todo else [each]
        self.sampled = decoding + prefilled
        prompt_tokens = BUDGET - len(decoding) - budget
        self.end = now + self.shape.cost.seconds(StepWork(len(decoding), prompt_tokens, 0, 0)) if self.running else None

    def _fits(self, sent: Sent) -> bool:
        return not self.running or self.used_tokens + sent.prompt + sent.tokens <= self.shape.kv_tokens

    def take(self, sent: Sent) -> None:
        sent.todo = sent.prompt
        self.queue.append(sent)

    def ended(self) -> list[Sent]:
        """The step has ended; returns the requests that ended with it."""
        now, self.end = self.end or 0.0, None
        for each in self.sampled:
            each.first = each.first or now
            each.tokens += 1
            each.left -= 1
        done = [each for each in self.running if not each.left]
        self.running = [each for each in self.running if each.left]
        return done

    def sample(self, now: float) -> EngineSample:
        waiting = sum(each.todo for each in [*self.queue, *self.running])
        return EngineSample(
            now,
            len(self.running),
            len(self.queue),
            waiting,
            kv_utilization=self.used_tokens / self.shape.kv_tokens,
            kv_cache_tokens=self.shape.kv_tokens,
            max_num_seqs=self.shape.slots,
            cost=self.shape.cost,
        )


Arrival = tuple[float, str, str, int, int]
"""Time, tenant, name, prompt tokens, output tokens."""


class Fleet:
    """One gateway in front of some engines, which it scrapes every second.

    Attributes: done: requests that ended. now: seconds.
    """

    def __init__(self, arrivals: Sequence[Arrival], shape: Shape) -> None:
        self.now = 0.0
        self.done: list[Sent] = []
        self.engines = {f"10.0.0.{number}:80": Engine(shape) for number in range(shape.replicas)}
        self._arrivals = deque(sorted(arrivals))
        self._config = ServiceConfig(KEY, "uid", "m", max_num_seqs=shape.slots)
        catalog = Catalog()
        endpoints = tuple(Endpoint(address, address) for address in self.engines)
        catalog.update(services={KEY: self._config}, endpoints={KEY: endpoints})
        self._scraped = -1.0
        self._samples: dict[str, EngineSample] = {}
        self.holds = HoldQueue()
        self._estimates = Estimates()
        ledger = Ledger(catalog.endpoints_of, self._samples.get, self._estimates)
        self._gateway = Dispatcher(catalog, Picker(), self.holds, ledger, lambda: self.now, lambda: None)
        self.held: list[Sent] = []

    def run(self, until: float) -> None:
        while self.advance() <= until:
            pass

    def advance(self) -> float:
        """To the next event; returns its time, infinite without one."""
        ends = [engine.end for engine in self.engines.values() if engine.end is not None]
        comes = [self._arrivals[0][0]] if self._arrivals else []
        if not ends and not comes and not self.held:
            return float("inf")
        self.now = now = min([*ends, *comes, self._scraped + 1.0])
        if now == self._scraped + 1.0:
            self._scrape()
        for engine in self.engines.values():
            if engine.end == now:
                self._end_step(engine)
        while self._arrivals and self._arrivals[0][0] <= now:
            self._arrive(*self._arrivals.popleft())
        self._take_started()
        return now

    def _scrape(self) -> None:
        self._scraped = self.now
        self._samples.update({address: engine.sample(self.now) for address, engine in self.engines.items()})
        self._gateway.expire()
        self._gateway.release(KEY)

    def _end_step(self, engine: Engine) -> None:
        done = engine.ended()
        # What the gateway sends now comes after the next step has begun.
        engine.step(self.now)
        for each in done:
            each.ended = self.now
            self.done.append(each)
            self._gateway.end(each.name, KEY)
            request = _view(each.name, each.tenant, each.at, each.prompt)
            self.holds.served(request, each.tokens)
            self._estimates.learn(request, each.tokens)

    def _arrive(self, at: float, tenant: str, name: str, prompt: int, output: int) -> None:
        outcome = self._gateway.place(_view(name, tenant, at, prompt), self._config)
        if not isinstance(outcome, Refusal):
            self.held.append(Sent(name, tenant, at, prompt, output, outcome))

    def _take_started(self) -> None:
        settled = [each for each in self.held if each.outcome.done()]
        self.held = [each for each in self.held if not each.outcome.done()]
        for each in settled:
            start = each.outcome.result()
            if isinstance(start, Start):
                each.started = self.now
                engine = self.engines[start.pick.endpoints[0].address]
                engine.take(each)
                if engine.end is None:
                    engine.step(self.now)


def _view(name: str, tenant: str, at: float, prompt: int) -> RequestView:
    return RequestView(name, KEY, at, prompt_tokens=prompt, tenant=tenant)


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


def simulated(arrivals: Sequence[Arrival], shape: Shape, until: float) -> list[Sent]:
    """The requests that ended."""

    async def run() -> list[Sent]:
        fleet = Fleet(arrivals, shape)
        fleet.run(until)
        return fleet.done

    return asyncio.run(run())
