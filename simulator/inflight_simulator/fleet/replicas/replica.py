"""A replica on the fleet's clock: decisions by the engine's scheduler, step durations by the cost model."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from functools import lru_cache

import numpy as np

from inflight_cost.model import StepWork
from inflight_engine.request import Request, SamplingParams, Scheduling
from inflight_engine.scheduling.config import SchedulerConfig
from inflight_engine.scheduling.plan import StepPlan
from inflight_engine.scheduling.scheduler import CannotFitError
from inflight_engine.step_work import work_of
from inflight_settings.limits import LimitsInForce
from inflight_simulator.arrivals import OUTPUT_TOKEN
from inflight_simulator.cost import load_rates
from inflight_simulator.fleet.config import FleetConfig
from inflight_simulator.fleet.replicas.disk import DiskTier
from inflight_simulator.fleet.replicas.meter import Meter
from inflight_simulator.fleet.replicas.noise import Noise
from inflight_simulator.fleet.replicas.request_states import RequestStates
from inflight_simulator.fleet.replicas.scheduler import FleetScheduler
from inflight_simulator.fleet.requests import Floats

NEVER = math.inf
_AHEAD = 128
"""Maximum steps whose durations are computed at once."""
_RAMP = np.arange(_AHEAD, dtype=np.float64)


@lru_cache(maxsize=100_000)
def _sampling(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens)


@lru_cache(maxsize=100_000)
def _scheduling(tenant: str) -> Scheduling:
    return Scheduling(tenant=tenant)


def scheduler_config(config: FleetConfig, longest: int, *, prefix_caching: bool = False) -> SchedulerConfig:
    """The scheduler of a replica. `longest`: tokens of the longest request."""
    model = config.replica
    return SchedulerConfig(
        capacity=config.capacity,
        num_blocks=model.kv_tokens // model.block_size,
        block_size=model.block_size,
        num_host_blocks=model.host_tokens // model.block_size,
        max_model_len=longest,
        kv_headroom=model.kv_headroom,
        policy=config.policy,
        ttft_target=config.targets.ttft,
        ttft_per_1k_tokens=config.ttft_per_token * 1000,
        prefix_caching=prefix_caching,
    )


class Replica:
    """A replica. Its steps follow each other without a gap while it has requests; a request is scheduled from the first
    step that starts at its arrival or later.

    Steps with prefills are planned one by one. Decodes alone are planned as a run, up to the first of them that ends or
    to the end of the free blocks, and processed at the next event; an arrival ends the run after the current step, as
    the request may be admitted then.

    Args:
        meter: receives each step and token; None: metrics are not read.
        prefill: it computes prompts for other replicas.

    Attributes:
        outstanding: unfinished requests sent here.
        event: time of the next end of a step that may change state, or of a start (`starts`).
        idle_s: when its last request ended.
        refused: requests that could never run.
        revision: of the limits in force.
    """

    def __init__(
        self,
        config: FleetConfig,
        scheduling: SchedulerConfig,
        states: RequestStates,
        noise: Noise,
        meter: Meter | None,
        *,
        prefill: bool = False,
    ) -> None:
        self.outstanding = 0
        self.event = NEVER
        self.starts = False
        self.idle_s = 0.0
        self.refused: list[int] = []
        self.revision = 0
        self.scheduler = FleetScheduler(scheduling)
        self.scheduler.limits = config.limits
        self.scheduler.deadlines.cost = config.replica.cost
        self.scheduler.offload.rates = load_rates(config.replica.cost)
        has_disk = scheduling.has_tier and config.replica.disk_tokens >= scheduling.block_size
        self._disk = DiskTier(config.replica, self.scheduler) if has_disk else None
        self._states = states
        self._cost = config.replica.cost
        self._noise = noise
        self._meter = meter
        self._prefill = prefill
        self._tokens_per_s = math.inf if config.prefill is None else config.prefill.tokens_per_s
        self._read_until = -math.inf
        """When all has come that it reads from other replicas."""
        self._given_tokens = 0
        """Tokens whose keys and values the next step copies out for other replicas."""
        self._moved: dict[int, Request] = {}
        """Requests that other replicas have begun, until their next token."""
        self._arrived: list[int] = []
        """Requests not scheduled by a step yet."""
        self._arrived_tokens = 0
        """Prompt tokens of the requests that the scheduler does not have yet."""
        self._num_on_disk = 0
        """Requests that wait for the disk."""
        self._in_slot: dict[int, int] = {}
        """Request id by slot."""
        self._lost_s: dict[int, float] = {}
        """Time of the last token of each request that was preempted, or that came from another replica."""
        self._plan: StepPlan | None = None
        self._ends: list[float] = []
        """Ends of the steps of a run."""
        self._begun = 0.0
        """Begin of the step under way, or of the first one of the run."""
        self._tokens = np.full(scheduling.capacity.max_num_seqs, OUTPUT_TOKEN, np.int32)

    @property
    def pending_tokens(self) -> int:
        """Uncomputed prompt tokens and tokens to be recomputed."""
        return self._arrived_tokens + self.scheduler.num_uncomputed_tokens

    @property
    def tokens_ahead(self) -> int:
        """The part of `pending_tokens` computed before a request that arrives now."""
        return self._arrived_tokens + self.scheduler.num_tokens_ahead

    @property
    def num_waiting(self) -> int:
        return self.scheduler.num_waiting + len(self._arrived) + self._num_on_disk

    def set_limits(self, limits: LimitsInForce, now: float) -> None:
        """Sets limits, which are in force from the next step."""
        self.take_in_until(now)
        self._cut_run(now)
        if self._ends:
            # The current step is processed with the limits it was planned with.
            self._commit(len(self._ends))
        self.scheduler.limits, self.revision = limits.limits, limits.revision

    def arrive(self, request_id: int, now: float) -> None:
        """A request arrives at `now`; all earlier events were processed."""
        self.outstanding += 1
        self._arrived.append(request_id)
        tokens = self._states.prompt_tokens[request_id]
        self._arrived_tokens += tokens
        if self._meter is not None:
            self._meter.arrived(tokens)
        if self.event == NEVER or self.starts:
            # Requests that wait for the disk may start later.
            self.event, self.starts = min(self.event, now), True
        elif self._disk is not None or self.scheduler.num_running < self.scheduler.limits.max_num_seqs:
            self._cut_run(now)

    def withdraw(self, request_id: int, now: float) -> tuple[Request, list[bytes], float]:
        """Takes a request away that goes on at another replica, with all events before `now` processed. A step under
        way computes it in vain.

        Returns:
            The request, the names of its blocks that are computed, and the time of its last token.
        """
        self.take_in_until(now)
        self._cut_run(now)
        last_s = self._lost_s.pop(request_id, now if self.starts else self._begun)
        request, blocks = self.scheduler.withdraw(request_id)
        self.outstanding -= 1
        return request, blocks, last_s

    def give(self, num_tokens: int) -> None:
        """Copies the keys and values of tokens out for another replica, in the next step."""
        self._given_tokens += num_tokens

    def expect(self, request: Request, blocks: list[bytes], now: float) -> tuple[int, float]:
        """Begins to read what another replica has of a request, unless computing it takes less time. One read follows
        another, and no step waits for them; `resume` is due when this one is done.

        Returns:
            The tokens that are read, and the seconds until they are there.
        """
        self.outstanding += 1
        scheduler = self.scheduler
        size = scheduler.config.block_size
        num_cached = len(scheduler.running.pool.match(blocks)) * size if blocks else 0
        num_read = len(blocks) * size - num_cached
        done_s = max(now, self._read_until) + num_read / self._tokens_per_s
        if not num_read or not scheduler.offload.pays(num_read, num_cached, done_s - now):
            return 0, 0.0
        self._read_until = done_s
        scheduler.peers.came(blocks)
        return num_read, done_s - now

    def resume(self, request: Request, blocks: list[bytes], last_s: float, now: float) -> None:
        """Takes a request that another replica has begun. Args: blocks: names of those that may have come. last_s: time
        of its last token."""
        states, request_id = self._states, request.request_id
        states.sent_s[request_id], self._lost_s[request_id] = now, last_s
        self._moved[request_id] = Request(
            request_id,
            request.prompt_token_ids,
            request.sampling,
            now,
            request.scheduling,
            output_token_ids=request.output_token_ids,
            block_hashes=blocks,
        )
        self.outstanding -= 1
        self.arrive(request_id, now)

    def step(self) -> None:
        """Process the next event."""
        if self._disk is not None:
            self._disk.advance(self.event)
        if self.starts:
            self._start(self.event)
        else:
            self._end(self.event)

    def advance(self, now: float) -> None:
        """Process all ends up to `now`, and starts before it."""
        while self.event <= now:
            if self.starts and self.event == now:
                return
            self.step()

    def take_in_until(self, now: float) -> None:
        """Count the steps of a run that have ended by now, so that metrics show them."""
        ends = self._ends
        if ends and ends[0] <= now < ends[-1]:
            self._commit(bisect_right(ends, now))

    def _start(self, now: float) -> None:
        scheduler, disk = self.scheduler, self._disk
        if self._arrived:
            self._hand_over()
        if disk is not None:
            for request in disk.take():
                self._num_on_disk -= 1
                self._submit(request)
        steps = scheduler.steady_steps()
        if steps:
            self._start_run(min(steps, _AHEAD), now)
            return
        plan = scheduler.schedule(now)
        if plan is None:
            # All requests that have arrived were refused, or wait for the disk.
            self.event = disk.next_s if disk is not None and self.outstanding else NEVER
            self.idle_s = now
            return
        for each in plan.preemptions:
            self._lost_s[each.request_id] = now
        for start in plan.starts:
            self._in_slot[start.slot] = start.request_id
        work = self._with_given(work_of(plan, scheduler.num_attended_tokens, scheduler.config.block_size))
        seconds = self._cost.seconds(work) * float(self._noise.ahead(1)[0])
        self._noise.use(1)
        if self._meter is not None:
            self._meter.started(work, seconds, now + seconds)
        self._plan, self._begun = plan, now
        self.event, self.starts = now + seconds, False

    def _start_run(self, steps: int, now: float) -> None:
        scheduler, cost = self.scheduler, self._cost
        decodes = scheduler.num_decoding
        work = StepWork(decodes, 0, scheduler.num_attended_tokens, 0)
        first = cost.seconds(work)
        seconds: Floats = (first + cost.decode_kv_token_s * decodes * _RAMP[:steps]) * self._noise.ahead(steps)
        if self._given_tokens:
            work = self._with_given(work)
            seconds[0] += work.copied_tokens * cost.copied_token_s
        seconds[0] += now
        self._ends = seconds.cumsum().tolist()
        self._begun = now
        self.event, self.starts = self._ends[-1], False
        if self._disk is not None:
            self._cut_run(self._disk.next_s)
        if self._meter is not None:
            self._meter.started(work, self._ends[0] - now, self._ends[0])

    def _with_given(self, work: StepWork) -> StepWork:
        """Returns the work of a step with what it copies out for other replicas."""
        given, self._given_tokens = self._given_tokens, 0
        return work._replace(copied_tokens=work.copied_tokens + given) if given else work

    def _cut_run(self, now: float) -> None:
        """End the run with the step in progress at `now`."""
        ends = self._ends
        if not ends:
            return
        under_way = bisect_left(ends, now)
        if under_way + 1 < len(ends):
            del ends[under_way + 1 :]
            self.event = ends[-1]

    def _commit(self, steps: int) -> None:
        """Process the first steps of the run."""
        if self._meter is not None:
            self._meter.run(self._begun, self._ends[:steps], self.scheduler.num_decoding)
        self._noise.use(steps)
        now = self._begun = self._ends[steps - 1]
        del self._ends[:steps]
        for request in self.scheduler.advance_many(steps):
            self._finish(request.request_id, now)

    def _end(self, now: float) -> None:
        """A step, or the run, ends now."""
        if self._ends:
            self._commit(len(self._ends))
        elif self._plan is not None:
            self._end_plan(self._plan, now)
        self.starts = True
        if not self.outstanding:
            self.event, self.idle_s = NEVER, now

    def _end_plan(self, plan: StepPlan, now: float) -> None:
        self._plan = None
        first_s, sampled = self._states.first_s, len(plan.decode_slots)
        meter = self._meter
        if meter is not None:
            meter.step(now - self._begun, sampled, plan.num_tokens)
        for chunk in plan.prefills:
            if not chunk.samples:
                continue
            sampled += 1
            request_id = self._in_slot[chunk.slot]
            if request_id in self._lost_s:
                lost_s = self._lost_s.pop(request_id)
                if request_id in self._moved:
                    del self._moved[request_id]
                    self._states.gaps.append(now - lost_s)
                if meter is not None and first_s[request_id] == first_s[request_id]:
                    meter.gap(now - lost_s)
            if first_s[request_id] != first_s[request_id]:
                first_s[request_id] = now
                if self._prefill:
                    self._states.begun.append(request_id)
                if meter is not None:
                    meter.first_token(now - self._states.sent_s[request_id])
        for request in self.scheduler.update(plan, self._tokens[:sampled]):
            self._finish(request.request_id, now)

    def _finish(self, request_id: int, now: float) -> None:
        self.outstanding -= 1
        self._states.end_s[request_id] = now
        self._states.ended.append(request_id)
        if self._meter is not None:
            tokens = self._states.output_tokens[request_id]
            self._meter.finished(request_id, tokens, now - self._states.first_s[request_id])

    def _hand_over(self) -> None:
        """Submit arrived requests to the scheduler, but for those that wait for the disk."""
        states = self._states
        for request_id in self._arrived:
            # One that another replica has begun has read what it needs from there.
            request = self._moved.get(request_id)
            if request is None:
                request = Request(
                    request_id,
                    states.prompt_token_ids(request_id),
                    _sampling(states.output_tokens[request_id]),
                    states.sent_s[request_id],
                    _scheduling(states.tenant(request_id)),
                )
                if self._disk is not None and self._disk.put(request):
                    self._num_on_disk += 1
                    continue
            self._submit(request)
        self._arrived.clear()

    def _submit(self, request: Request) -> None:
        """Submit a request to the scheduler."""
        self._arrived_tokens -= self._states.prompt_tokens[request.request_id]
        try:
            self.scheduler.add(request)
        except CannotFitError:
            self.outstanding -= 1
            self.refused.append(request.request_id)
            self._states.ended.append(request.request_id)
