"""An engine in virtual time, whose steps take as long as a GPU's."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import numpy as np

from inflight_cost.model import CostModel, StepWork
from inflight_engine.request import Request, SamplingParams, Scheduling
from inflight_engine.scheduling.config import SchedulerConfig
from inflight_engine.scheduling.plan import StepPlan
from inflight_engine.scheduling.scheduler import Scheduler
from inflight_gateway.types import EngineSample
from inflight_settings.limits import Limits

COST = CostModel(25e-3, 50e-6, 60e-6, 0.0, 0.0)
"""Cost model of tools/standin/timed.py: requests that run side by side hardly slow each other down."""
BUDGET = 2048
BLOCK_SIZE = 16
LONGEST = 8192
"""Tokens of prompt and answer."""


@dataclass(eq=False)
class Sent:
    """A request on its way. Attributes: tokens: of its answer. done: of them, those that were computed. Seconds since
    the start of the run: at: of its arrival. started: sent to an engine. first: first token. ended: last one. engine:
    its address. over: set at the end."""

    name: str
    tenant: str
    at: float
    prompt: int
    tokens: int
    done: int = 0
    started: float = 0.0
    first: float = 0.0
    ended: float = 0.0
    engine: str = ""
    over: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True)
class Shape:
    """Size of a fleet. Attributes: slots, kv_tokens, cost: properties of each replica."""

    slots: int
    replicas: int = 1
    kv_tokens: int = 10**6
    cost: CostModel = COST


class Engine:
    """The engine's own scheduler, without a model. Create it in the event loop."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self._loop = asyncio.get_running_loop()
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

    def take(self, sent: Sent) -> None:
        """Takes a request, whose `over` is set when it has ended."""
        sent.started = now = self._loop.time()
        request = Request(len(self._sent), np.zeros(sent.prompt, np.int32), SamplingParams(max_tokens=sent.tokens), now)
        request.scheduling = Scheduling(tenant=sent.tenant)
        self._sent.append(sent)
        self._scheduler.add(request)
        if self._plan is None:
            self._step()

    def _step(self) -> None:
        """Starts the next one, unless nothing is left."""
        self._plan = plan = self._scheduler.schedule(self._loop.time())
        if plan is not None:
            prompt_tokens = sum(chunk.length for chunk in plan.prefills)
            seconds = self.shape.cost.seconds(StepWork(len(plan.decode_slots), prompt_tokens, 0, 0))
            self._loop.call_later(seconds, self._end_step, plan)

    def _end_step(self, plan: StepPlan) -> None:
        now = self._loop.time()
        for slot in plan.sampled_slots:
            sent = self._sent[self._scheduler.running.table.request(slot).request_id]
            sent.first = sent.first or now
            sent.done += 1
        ended = self._scheduler.update(plan, np.zeros(len(plan.sampled_slots), np.int32))
        # Requests that are sent because of these ends come after the next step has begun.
        self._step()
        for request in ended:
            sent = self._sent[request.request_id]
            sent.ended = now
            sent.over.set()

    def sample(self) -> EngineSample:
        scheduler = self._scheduler
        return EngineSample(
            self._loop.time(),
            scheduler.num_running,
            scheduler.num_waiting,
            scheduler.num_uncomputed_tokens,
            kv_utilization=scheduler.kv_usage,
            kv_cache_tokens=self.shape.kv_tokens,
            limits=Limits(self.shape.slots, BUDGET),
            cost=self.shape.cost,
        )
