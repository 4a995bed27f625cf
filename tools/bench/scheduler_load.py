"""A scheduler at work without a model: requests with random tokens, driven step by step, each call timed."""

from __future__ import annotations

import time
from typing import Literal

import numpy as np
import numpy.typing as npt

from inflight_engine.request import Request, SamplingParams, Scheduling, TokenIds
from inflight_engine.scheduling.config import SchedulerConfig
from inflight_engine.scheduling.plan import StepPlan
from inflight_engine.scheduling.scheduler import Scheduler
from inflight_settings.limits import Limits

BLOCK_SIZE = 16
VOCABULARY = 128_000
STOP_TOKEN_IDS = (128_001, 128_008, 128_009)
"""Stop tokens of Llama 3; sampled tokens stay below them unless a request is to stop."""
MAX_MODEL_LEN = 8192
FILLER_BLOCKS = 256
NUM_TOKEN_ROWS = 64
_TENANTS = ("first", "second", "first", "second")
"""Tenants of requests that start beside one that does not fit, and of as many that wait behind it."""

Nanoseconds = npt.NDArray[np.int64]


class Load:
    """A scheduler with requests, driven step by step. Tokens are random, so no prompt is in the prefix cache."""

    def __init__(self, config: SchedulerConfig, timer_cost: int) -> None:
        self.scheduler = Scheduler(config)
        self._longest = min(config.max_model_len, config.num_blocks * config.block_size)
        self._timer_cost = timer_cost
        self._num_requests = 0
        self._num_steps = 0
        self._random = np.random.default_rng(0)
        self._rows = self._tokens((NUM_TOKEN_ROWS, config.capacity.max_num_seqs))

    def add(self, num_prompt_tokens: int, max_tokens: int | None = None, tenant: str = "") -> int:
        """Add a request, with the longest allowed output by default; returns what `add` took, in ns."""
        request = Request(
            request_id=self._num_requests,
            prompt_token_ids=self._tokens(num_prompt_tokens),
            sampling=SamplingParams(max_tokens or self._longest - num_prompt_tokens, stop_token_ids=STOP_TOKEN_IDS),
            arrival_time=0.0,
            scheduling=Scheduling(tenant=tenant),
        )
        self._num_requests += 1
        started = time.perf_counter_ns()
        self.scheduler.add(request)
        return time.perf_counter_ns() - started - self._timer_cost

    def step(self, stopping: int | None = None) -> tuple[StepPlan, list[int]]:
        """Runs an iteration; returns its plan and the times of schedule, update and metrics, in ns.

        Args:
            stopping: place in the batch of a request that samples a stop token.
        """
        scheduler, clock = self.scheduler, time.perf_counter_ns
        t0 = clock()
        plan = scheduler.schedule()
        t1 = clock()
        if plan is None:
            raise RuntimeError("nothing is left to schedule")
        num_sampled = len(plan.decode_slots) + sum(chunk.samples for chunk in plan.prefills)
        token_ids = self._rows[self._num_steps % NUM_TOKEN_ROWS, :num_sampled]
        self._num_steps += 1
        if stopping is not None:
            token_ids = token_ids.copy()
            token_ids[stopping] = STOP_TOKEN_IDS[-1]
        t2 = clock()
        scheduler.update(plan, token_ids)
        t3 = clock()
        read_metrics(scheduler)
        t4 = clock()
        return plan, [t1 - t0 - self._timer_cost, t3 - t2 - self._timer_cost, t4 - t3 - self._timer_cost]

    def steps(self, count: int) -> tuple[list[StepPlan], Nanoseconds]:
        """Plans, and times [count, 3]."""
        plans, times = zip(*(self.step() for _ in range(count)), strict=True)
        return list(plans), np.array(times, np.int64)

    def _tokens(self, shape: int | tuple[int, int]) -> TokenIds:
        return self._random.integers(0, VOCABULARY, shape, np.int32)


def read_metrics(scheduler: Scheduler) -> tuple[float, ...]:
    """Returns the values that the engine puts in each step's report."""
    return (
        scheduler.num_running,
        scheduler.num_waiting,
        scheduler.num_uncomputed_tokens,
        scheduler.kv_usage,
        scheduler.preemptor.num_preemptions,
        scheduler.offload.usage(),
        scheduler.admission.prefix_queries,
        scheduler.admission.prefix_hits,
    )


def blocked(num_running: int, num_blocks: int, prompt_tokens: int, timer_cost: int) -> Load:
    """A scheduler as of `loaded`, and a request of the whole context that is next and does not fit. Requests of other
    tenants have passed it, and more of them wait."""
    load = loaded(
        num_running, num_blocks, prompt_tokens, timer_cost, warm=True, policy="fair", num_free_slots=2 * len(_TENANTS)
    )
    admission, pool = load.scheduler.admission, load.scheduler.running.pool
    admission.headroom_blocks = pool.num_free - MAX_MODEL_LEN // BLOCK_SIZE + 1
    load.add(MAX_MODEL_LEN - 1, tenant="giant")
    for tenant in _TENANTS:
        load.add(BLOCK_SIZE, tenant=tenant)
    load.step()
    admission.headroom_blocks = pool.num_free
    for tenant in _TENANTS:
        load.add(BLOCK_SIZE, tenant=tenant)
    load.step()
    return load


def loaded(
    num_running: int,
    num_blocks: int,
    prompt_tokens: int,
    timer_cost: int,
    *,
    warm: bool,
    policy: Literal["fcfs", "fair"] = "fcfs",
    num_free_slots: int = 0,
) -> Load:
    """A scheduler with `num_running` requests, their prompts of `prompt_tokens` and a few more, computed.
    Their lengths differ so that an equal share of them crosses a block boundary in each step.

    Args:
        warm: all blocks that are free have content that could be found again, as in a server that has run for a while.
    """
    config = SchedulerConfig(
        capacity=Limits(
            num_running + num_free_slots, max_num_batched_tokens=num_running * (prompt_tokens + BLOCK_SIZE)
        ),
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        max_model_len=MAX_MODEL_LEN,
        kv_headroom=0.0,
        prefix_caching=True,
        policy=policy,
    )
    load = Load(config, timer_cost)
    if warm:
        # Each leaves full blocks only, and together they are more than there is room for.
        for _ in range(num_blocks // FILLER_BLOCKS + 1):
            load.add(FILLER_BLOCKS * BLOCK_SIZE, max_tokens=1)
        while load.scheduler.has_work:
            load.step()
    for index in range(num_running):
        load.add(prompt_tokens + index % BLOCK_SIZE)
    while load.scheduler.num_running < num_running:  # prompts are hashed in turns, some of them between two steps
        load.step()
    return load
