"""The gateway's decisions in simulated time, in front of engines whose steps take as long as a GPU's."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from inflight_base.manifest.keys import ServiceKey
from inflight_cost.model import CostModel, StepWork
from inflight_engine.request import Request, SamplingParams, Scheduling
from inflight_engine.scheduling.config import SchedulerConfig
from inflight_engine.scheduling.plan import StepPlan
from inflight_engine.scheduling.scheduler import Scheduler
from inflight_gateway.discovery.catalog import Catalog
from inflight_gateway.engines.ledger import Ledger
from inflight_gateway.hold.queue import HoldQueue
from inflight_gateway.link.wire import Ask, Go, Held, Refuse
from inflight_gateway.pick.picker import Picker
from inflight_gateway.request.body import Body
from inflight_gateway.requests.registry import Requests
from inflight_gateway.state.picks import PicksLog
from inflight_gateway.telemetry.metrics import Metrics
from inflight_gateway.telemetry.request_log import RequestLog
from inflight_gateway.tenants.estimate import Estimates
from inflight_gateway.tenants.gate import Gate
from inflight_gateway.tenants.keys import KeyTables
from inflight_gateway.types import Endpoint, EngineSample, Finished, ServiceConfig
from inflight_settings.limits import Limits

KEY = ServiceKey("default", "a")
COST = CostModel(25e-3, 50e-6, 60e-6, 0.0, 0.0)
"""Cost model of tools/standin/timed.py: requests that run side by side hardly slow each other down."""
BUDGET = 2048
BLOCK_SIZE = 16
LONGEST = 8192
"""Tokens of prompt and answer."""


@dataclass(eq=False)
class Sent:
    """A request on its way. Attributes: tokens: of its answer. Seconds since the start of the run: at: of its arrival.
    started: sent to an engine. first: first token."""

    name: str
    tenant: str
    at: float
    prompt: int
    tokens: int
    started: float = 0.0
    first: float = 0.0
    ended: float = 0.0


@dataclass(frozen=True)
class Shape:
    """Size of a fleet. Attributes: slots, kv_tokens, cost: properties of each replica."""

    slots: int
    replicas: int = 1
    kv_tokens: int = 10**6
    cost: CostModel = COST


class Engine:
    """The engine's own scheduler, without a model. Attributes: end: of the step under way."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.end: float | None = None
        self._plan: StepPlan | None = None
        self._scheduler = Scheduler(
            SchedulerConfig(
                Limits(shape.slots, BUDGET),
                num_blocks=shape.kv_tokens // BLOCK_SIZE,
                block_size=BLOCK_SIZE,
                max_model_len=LONGEST,
                kv_headroom=0.03,
                prefix_caching=False,
            )
        )
        self._sent: list[Sent] = []
        """Requests by number."""

    def step(self, now: float) -> None:
        """Starts the next one, unless nothing is left."""
        self._plan = plan = self._scheduler.schedule(now)
        if plan is not None:
            prompt_tokens = sum(chunk.length for chunk in plan.prefills)
            self.end = now + self.shape.cost.seconds(StepWork(len(plan.decode_slots), prompt_tokens, 0, 0))

    def take(self, sent: Sent, now: float) -> None:
        request = Request(len(self._sent), np.zeros(sent.prompt, np.int32), SamplingParams(max_tokens=sent.tokens), now)
        request.scheduling = Scheduling(tenant=sent.tenant)
        self._sent.append(sent)
        self._scheduler.add(request)

    def ended(self) -> list[Sent]:
        """The step has ended; returns the requests that ended with it."""
        now, self.end = self.end or 0.0, None
        if self._plan is None:
            return []
        for chunk in self._plan.prefills:
            sent = self._sent[self._scheduler.running.table.request(chunk.slot).request_id]
            if chunk.samples:
                sent.first = sent.first or now
        token_ids = np.zeros(len(self._plan.sampled_slots), np.int32)
        return [self._sent[each.request_id] for each in self._scheduler.update(self._plan, token_ids)]

    def sample(self, now: float) -> EngineSample:
        scheduler = self._scheduler
        return EngineSample(
            now,
            scheduler.num_running,
            scheduler.num_waiting,
            scheduler.num_uncomputed_tokens,
            kv_utilization=scheduler.kv_usage,
            kv_cache_tokens=self.shape.kv_tokens,
            limits=Limits(self.shape.slots, BUDGET),
            cost=self.shape.cost,
        )


Arrival = tuple[float, str, str, int, int]
"""Time, tenant, name, prompt tokens, output tokens."""


class Fleet:
    """A gateway in front of some engines, which it scrapes every second.

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
        estimates, holds = Estimates(), HoldQueue()
        ledger = Ledger(catalog.endpoints_of, self._samples.get, estimates)
        gate = Gate(KeyTables(catalog), estimates)
        log = RequestLog(Metrics(), PicksLog(), access_log=False)
        self._gateway = Requests(catalog, Picker(), holds, ledger, gate, log, clock=lambda: self.now)
        self._said: list[Go | Held | Refuse] = []
        self._held: dict[str, Sent] = {}

    def run(self, until: float) -> None:
        while self.advance() <= until:
            pass

    def advance(self) -> float:
        """To the next event; returns its time, infinite without one."""
        ends = [engine.end for engine in self.engines.values() if engine.end is not None]
        comes = [self._arrivals[0][0]] if self._arrivals else []
        if not ends and not comes and not self._held:
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
            at = tuple(self.engines)[:1]
            self._gateway.ended(
                Finished(each.name, KEY, 200, True, each.prompt, completion_tokens=each.tokens, endpoints=at)
            )

    def _arrive(self, at: float, tenant: str, name: str, prompt: int, output: int) -> None:
        self._held[name] = Sent(name, tenant, at, prompt, output)
        ask = Ask(name, 1, KEY, tenant, path="/v1/completions", body=Body(prompt_tokens=prompt), age_s=self.now - at)
        self._gateway.ask(ask, "relay", self._said.append)

    def _take_started(self) -> None:
        said, self._said[:] = self._said[:], []
        for message in said:
            if isinstance(message, Held):
                continue
            each = self._held.pop(message.id)
            if isinstance(message, Go):
                each.started = self.now
                engine = self.engines[message.endpoints[0]]
                engine.take(each, self.now)
                if engine.end is None:
                    engine.step(self.now)


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
    fleet = Fleet(arrivals, shape)
    fleet.run(until)
    return fleet.done
