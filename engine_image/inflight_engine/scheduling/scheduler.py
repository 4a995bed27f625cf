"""One iteration's decision: who computes how many tokens (continuous batching, Orca, Yu et al. 2022; chunked prefill
mixed with decodes, Sarathi-Serve, Agrawal et al. 2024)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence, Set

import numpy as np

from inflight_cost.model import CostModel
from inflight_engine.cache.block_pool import BlockIds, BlockPool
from inflight_engine.cache.swap import SwapRates, swapping_is_cheaper
from inflight_engine.request import FinishReason, Request, RequestState, TokenIds
from inflight_engine.scheduling.config import SchedulerConfig
from inflight_engine.scheduling.deadlines import Deadlines
from inflight_engine.scheduling.decodes import DecodeGroup
from inflight_engine.scheduling.in_flight import PlansInFlight
from inflight_engine.scheduling.plan import BlockGrowth, Preemption, PrefillChunk, SlotStart, StepPlan
from inflight_engine.scheduling.queues import WaitingQueues
from inflight_engine.scheduling.running import Running, all_tokens, hash_blocks, longest_request
from inflight_engine.scheduling.slots import SlotTable
from inflight_engine.scheduling.victims import VICTIMS, lowest
from inflight_settings.limits import Limits

_NO_BLOCKS: BlockIds = np.empty(0, np.int32)


NEVER = -1
"""So few blocks are never free."""


class CannotFitError(ValueError):
    """The request could never run: its tokens exceed the context or the whole KV cache."""


class Scheduler:
    """Decides from numbers, never from tensors; it has no clock and does no I/O.

    The caller alternates `schedule` and `update`, and all else may come between any two calls. Equal calls give equal
    plans: the time of day, which only the `deadline` policy looks at, comes as an argument.

    `schedule` may run one step ahead: called again before `update` has brought the tokens of the plan before, it plans
    what follows from that plan whatever those tokens are. Decodes are then one token longer, chunks are computed, and
    who reaches its length is not planned again, though it keeps slot and blocks until `update`. A stop token shows
    when its request is in the next plan already: the extra token is discarded (`discarded_slots`).

    A plan made ahead pauses and preempts no request: the victim's last token would be unknown when it is queued,
    swapped out and counted. Where blocks or budget run out `schedule` returns None and decides after
    `update`, which costs one step without overlap, next to the recomputing or copying that follows.

    Slots and blocks that `update` frees may be in the step in flight still. Steps are computed in the order of their
    plans, copies included, so what a later plan puts there comes after what that step writes. What it writes to a block
    that can be found is what the block is found by.

    The full blocks of a prompt can be found as soon as the chunk that fills them is planned, so of equal prompts only
    the first is computed. `fail` forgets those of the plans it drops.

    A step in which nothing arrives, ends or runs out costs a few microseconds: what grows and what ends is found by
    comparing arrays. Everything else goes the long way, `_decide`.

    Args:
        make_pool, make_decodes: the types that keep blocks and the requests that decode.

    Raises:
        ValueError: the policy, the victim rule or the way of preemption does not exist, or the classes are not valid.

    Attributes:
        rates: what `preemption: auto` compares; while unknown it recomputes.
        last_change: `now` of the last `schedule` at which time made a difference to the order of waiting requests.
            Calls with any later `now` before the next such one decide as calls with this one would.
        num_preemptions, num_swaps: since start; a swap is a preemption whose keys and values went to host memory.
        prefix_queries, prefix_hits: prompt tokens of admitted requests, and how many of them were in the prefix cache.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        make_pool: Callable[[int, int], BlockPool] = BlockPool,
        make_decodes: Callable[[SlotTable, int, int], DecodeGroup] = DecodeGroup,
    ) -> None:
        self.config = config
        self.rates: SwapRates | None = None
        self.num_preemptions = self.num_swaps = 0
        self.prefix_queries = self.prefix_hits = 0
        self._limits = config.capacity
        self._queues = WaitingQueues(config)
        pool = make_pool(config.num_blocks, config.block_size)
        table = SlotTable(config.capacity.max_num_seqs, pool.blocks_for(longest_request(config)))
        decodes = make_decodes(table, config.num_blocks, config.block_size)
        self._running = Running(pool, table, decodes, self._queues, prefix_caching=config.prefix_caching)
        self._in_flight = PlansInFlight(self._running)
        self._host_pool = BlockPool(config.num_host_blocks, config.block_size) if config.num_host_blocks else None
        self._choose_victim = VICTIMS[config.preemption_victim]
        self._requests: dict[int, Request] = {}
        self._preemptions: list[Preemption] = []
        self._num_queued_tokens = 0
        self._num_orders = 0
        self._num_steps = 0
        self.last_change = -math.inf
        self._deadlines = Deadlines(config, self._running.pool)
        self._longest = longest_request(config)
        self._headroom_blocks = int(config.kv_headroom * config.num_blocks)
        self._changed = False
        """Something other than growth may have to be decided."""
        self._blocked: Request | None = None
        """The queues' head that does not fit until something changes; as decodes go on, or time, another may take its
        place."""
        self._behind: Request | None = None
        """The new request that waits behind `_blocked`; it too may become another."""
        self._pass_at = NEVER
        """How few free blocks there are when `_behind` may pass: its tenant holds too many until others have grown."""

    @property
    def has_work(self) -> bool:
        return bool(self._requests)

    @property
    def num_steps(self) -> int:
        """Planned so far: the number of the next one."""
        return self._num_steps

    @property
    def prefill_cost(self) -> CostModel | None:
        """What the `deadline` policy predicts the prefill of a request with when it arrives; None: not known yet."""
        return self._deadlines.cost

    @prefill_cost.setter
    def prefill_cost(self, cost: CostModel | None) -> None:
        self._deadlines.cost = cost

    @property
    def num_running(self) -> int:
        return self._running.table.num_running

    @property
    def num_waiting(self) -> int:
        return len(self._queues)

    @property
    def num_uncomputed_tokens(self) -> int:
        """Prompt tokens (and lost tokens of preempted requests) still to be computed, waiting or in prefill."""
        return self._num_queued_tokens + self._running.num_uncomputed_tokens

    @property
    def num_decoding(self) -> int:
        """Requests that get a token in a step that is planned now, unless blocks run out."""
        self._running.decodes.settle()
        return len(self._running.decodes.slots)

    def decoding(self) -> list[tuple[Request, int]]:
        """The requests that decode, each with the tokens it has generated so far; walks over all of them."""
        decodes, table = self._running.decodes, self._running.table
        decodes.settle()
        requests = [table.request(slot) for slot in decodes.slots.tolist()]
        known = table.num_tokens[decodes.slots].tolist()
        return [(each, tokens - each.num_prompt_tokens) for each, tokens in zip(requests, known, strict=True)]

    @property
    def num_attended_tokens(self) -> int:
        """Tokens whose keys and values the decodes of the latest plan read, or of a step that is planned now and
        where no block runs out; ask before anything else is done."""
        return self._running.decodes.num_attended

    @property
    def num_tokens_ahead(self) -> int:
        """Of `num_uncomputed_tokens`, those that are computed before a request that comes now: without those of late
        requests, which it overtakes."""
        return self.num_uncomputed_tokens - self._queues.num_late_tokens

    @property
    def kv_usage(self) -> float:
        """Share of KV blocks that requests hold, 0..1. Cached blocks without owner are as good as free."""
        return self._running.pool.usage

    @property
    def num_swapped_blocks(self) -> int:
        pool = self._host_pool
        return 0 if pool is None else pool.num_blocks - pool.num_free

    def is_cached(self, block_hash: bytes) -> bool:
        """Whether the prefix cache can find a block with this content now."""
        return len(self._running.pool.match([block_hash])) > 0

    @property
    def limits(self) -> Limits:
        """Live limits, within capacity; in force from the next step."""
        return self._limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        self._limits = limits
        self._changed = True

    @property
    def class_weights(self) -> dict[str, float]:
        return self._queues.weights

    def set_class_weights(self, weights: dict[str, float]) -> None:
        """Change the weights of some classes.

        Raises:
            ValueError: no such class, or a weight that is not above 0; nothing is changed.
        """
        self._queues.set_weights(weights, self._running.decodes.clock)
        self._changed = True

    def add(self, request: Request) -> None:
        """Queue a new request. One that comes with tokens is continued: it resumes with them as after a preemption.

        Raises:
            CannotFitError: it is longer than `max_model_len` or than the whole KV cache.
            ValueError: it has no prompt, or all of its tokens already, its class does not exist, or its id is in use.
        """
        longest = self._longest
        if request.max_total_tokens > longest:
            raise CannotFitError(
                f"{request.num_prompt_tokens} prompt tokens and {request.sampling.max_tokens} output tokens "
                f"do not fit in {longest} tokens"
            )
        if request.num_prompt_tokens == 0 or request.sampling.max_tokens < 1:
            raise ValueError("a request needs at least one prompt token and max_tokens of at least 1")
        if len(request.output_token_ids) >= request.sampling.max_tokens:
            raise ValueError(f"{len(request.output_token_ids)} of max_tokens {request.sampling.max_tokens} are there")
        if request.request_id in self._requests:
            raise ValueError(f"request id {request.request_id} is in use")
        request.order = self._num_orders
        if self.config.prefix_caching:
            hash_blocks(request, request.num_tokens, self.config.block_size)
        request.latest_start = self._deadlines.latest_start(
            request, self.num_running, self._limits.max_num_batched_tokens
        )
        if len(request.output_token_ids):
            request.state = RequestState.PREEMPTED
        self._queue(request)
        self._num_orders += 1
        self._requests[request.request_id] = request
        self._changed = True

    def cancel(self, request_id: int, reason: FinishReason) -> bool:
        """End a request wherever it is; its slot and blocks are free for the next step. False: no such request."""
        request = self._requests.get(request_id)
        if request is None:
            return False
        self._finish(request, reason)
        return True

    def schedule(self, now: float = 0.0) -> StepPlan | None:
        """The next step, or None when nothing is left to run, or nothing can be decided before `update` of the plan
        that is in flight. At most one may be.

        Args:
            now: seconds on the clock of `Request.arrival_time`, never less than before.
        """
        if not self._requests:
            return None
        in_flight = self._in_flight
        if in_flight.newest is not None and in_flight.count_ahead(in_flight.newest):
            self._changed = True
        if self._changed or self._head_moved(now):
            return self._decide(now)
        decodes, pool = self._running.decodes, self._running.pool
        growing, growth = decodes.growing(), None
        if len(growing):
            # Too few blocks, or few enough for a pass.
            if pool.num_free - len(growing) <= self._pass_at:
                return self._decide(now)
            growth = decodes.grow(growing, pool.allocate(len(growing)))
        step = self._num_steps
        self._num_steps = step + 1
        plan = in_flight.newest = StepPlan(step, (), (), (), growth, (), decodes.slots, len(decodes.slots))
        return plan

    def update(self, plan: StepPlan, token_ids: TokenIds) -> list[Request]:
        """Take in a step's sampled tokens (int32, in the plan's order), of the older plan where two are in flight;
        returns the requests that ended with it."""
        running = self._running
        stopped = running.stops.candidates(token_ids)
        full, discarded = self._in_flight.take_in(plan, token_ids)
        if plan.prefills:
            self._changed = True
        if not stopped and not full:
            return []
        ended: dict[int, FinishReason] = {}
        if stopped:
            sampled = plan.sampled_slots
            for index in stopped:
                slot = int(sampled[index])
                if slot in discarded:
                    continue
                if token_ids[index] in running.table.request(slot).sampling.stop_token_ids:
                    ended[slot] = FinishReason.STOP
        for slot in full:
            ended.setdefault(slot, FinishReason.LENGTH)
        finished = [running.table.request(slot) for slot in ended]
        for request, reason in zip(finished, ended.values(), strict=True):
            self._finish(request, reason)
        return finished

    def discarded_slots(self, plan: StepPlan) -> Set[int]:
        """Slots of a plan in flight whose requests finished since it was made: its tokens for them are discarded."""
        return self._in_flight.discarded(plan)

    def request_in(self, slot: int) -> Request:
        """The request that runs in a slot."""
        return self._running.table.request(slot)

    def fail(self, plan: StepPlan) -> list[Request]:
        """A plan in flight, and one that was made after it, give no tokens and are not to be taken in.

        Returns:
            The requests whose keys and values the plan computes or copies, in the order of its tokens, then those that
            it swaps out: they may be missing, so the caller has to end these requests before anything else. Those that
            only the later plan computes have lost no more than that: they are queued to be computed from the start.
            Empty where the plan was dropped with an earlier one.
        """
        dropped = self._in_flight.drop(plan)
        if not dropped:
            return []
        lost, *later = [self._requests_in(each, discarded) for each, discarded in dropped]
        self._recompute([each for requests in later for each in requests if each not in lost])
        return lost

    def fail_slots(self, plan: StepPlan, slots: Sequence[int]) -> list[Request]:
        """There was no memory for these slots of a plan in flight, the older one of two: their requests end with
        `OUT_OF_MEMORY`. Call it before the plan's `update`, where the plan was computed but for these slots.

        Where a chunk is among them, requests that found blocks which plans in flight were to fill may have read
        nothing of use: they are queued to be computed from the start.

        Returns:
            The requests that ended with it.
        """
        discarded, table = self.discarded_slots(plan), self._running.table
        failed = [table.request(slot) for slot in slots if slot not in discarded]
        for request in failed:
            self._finish(request, FinishReason.OUT_OF_MEMORY)
        if any(chunk.slot in slots for chunk in plan.prefills):
            self._recompute([table.request(slot) for slot in self._in_flight.misled()])
        return failed

    def _recompute(self, requests: Sequence[Request]) -> None:
        """Take slot and blocks away from requests that plans in flight compute in vain."""
        self._changed = True
        for request in requests:
            self._in_flight.discard(request.slot)
            self._running.leave(request)
            self._put_back(request, RequestState.PREEMPTED)

    def _requests_in(self, plan: StepPlan, discarded: Set[int]) -> list[Request]:
        slots = [*plan.decode_slots.tolist(), *(chunk.slot for chunk in plan.prefills)]
        swapped_out = [self._requests.get(each.request_id) for each in plan.preemptions if each.swapped]
        in_slots = [self._running.table.request(slot) for slot in slots if slot not in discarded]
        return in_slots + [request for request in swapped_out if request is not None]

    def _head_moved(self, now: float) -> bool:
        blocked = self._blocked
        if blocked is None:
            return False
        self._pass_time(now)
        queues, clock = self._queues, self._running.decodes.clock
        return queues.head(clock) is not blocked or queues.behind(clock) is not self._behind

    def _forget_blocked(self) -> None:
        self._blocked = self._behind = None
        self._pass_at = NEVER

    def _pass_time(self, now: float) -> None:
        if self._queues.pass_time(now):
            self.last_change = now

    def _decide(self, now: float) -> StepPlan | None:
        """A step in which something changes: every running decode the budget allows goes first, oldest first; then
        unfinished prefills; then admissions."""
        running = self._running
        if self._in_flight.counted is not None and self._runs_out():
            return None
        self._forget_blocked()
        growth = self._grow_decodes()
        decode_slots = running.decodes.slots
        budget = self._limits.max_num_batched_tokens - len(decode_slots)
        chunks: list[PrefillChunk] = []
        for slot in running.prefilling:
            if budget == 0:
                break
            chunks.append(running.plan_chunk(slot, budget))
            budget -= chunks[-1].length
        # A step that had to preempt admits no request: the victim would bounce straight back.
        self._changed = bool(self._preemptions)
        starts = [] if self._preemptions else self._admit(budget, chunks, now)
        self._changed |= bool(running.prefilling)
        if not chunks and not len(decode_slots):
            return None  # All running requests end with the step in flight.
        plan = StepPlan(
            step=self._num_steps,
            preemptions=tuple(self._preemptions),
            releases=tuple(running.releases),
            starts=tuple(starts),
            growth=growth,
            prefills=tuple(chunks),
            decode_slots=decode_slots,
            num_tokens=len(decode_slots) + sum(chunk.length for chunk in chunks),
        )
        self._in_flight.add(plan, running.registered)
        self._num_steps += 1
        self._preemptions.clear()
        running.releases.clear()
        running.registered = []
        return plan

    def _runs_out(self) -> bool:
        """A request is paused, or would have to be paused or preempted in the next step."""
        running = self._running
        running.decodes.settle()
        if running.paused or len(running.decodes.slots) > self._limits.max_num_batched_tokens:
            return True
        return len(running.decodes.growing()) > running.pool.num_free

    def _grow_decodes(self) -> BlockGrowth | None:
        """Settle which requests decode, and give those that cross a block boundary their next block. If none is free,
        victims are preempted."""
        running = self._running
        while True:
            self._fit_decodes()
            growing = running.decodes.growing()
            if not len(growing):
                return None
            if len(growing) <= running.pool.num_free:
                return running.decodes.grow(growing, running.pool.allocate(len(growing)))
            self._preempt(self._victim())

    def _victim(self) -> Request:
        """Of the lowest standing, and of these of the tenant that holds the most blocks, the request that the rule
        says; never the oldest, so that something always runs to its end."""
        running, queues = self._running, self._queues
        table, candidates = running.table, running.table.taken()[1:]
        if queues.ranks_running or len(running.tenants) > 1:
            held = running.blocks_by_tenant()
            requests = [table.request(slot) for slot in candidates.tolist()]
            standings = [(*queues.standing(each), held[each.scheduling.tenant]) for each in requests]
            candidates = candidates[lowest(standings)]
        index = self._choose_victim(
            table.order[candidates], table.num_tokens[candidates], table.num_preemptions[candidates]
        )
        return table.request(int(candidates[index]))

    def _fit_decodes(self) -> None:
        """With a budget smaller than the number of decodes the oldest go on and the others pause."""
        running = self._running
        decodes, budget = running.decodes, self._limits.max_num_batched_tokens
        decodes.settle()
        if not running.paused and len(decodes.slots) <= budget:
            return
        slots = np.array([*decodes.slots.tolist(), *running.paused], np.intp)
        oldest_first = slots[np.argsort(running.table.order[slots])].tolist()
        for slot in oldest_first[budget:]:
            if slot not in running.paused:
                running.pause(slot)
        for slot in oldest_first[:budget]:
            if slot in running.paused:
                running.resume(slot)
        decodes.settle()

    def _admit(self, budget: int, chunks: list[PrefillChunk], now: float) -> list[SlotStart]:
        starts: list[SlotStart] = []
        self._pass_time(now)
        running, clock = self._running, self._running.decodes.clock
        while budget > 0 and self.num_running < self._limits.max_num_seqs and running.table.has_free:
            request = self._queues.head(clock)
            if request is None:
                break
            start = self._start(request)
            if start is None:
                self._blocked = request
                start = self._start_behind(request)
                if start is None:
                    break
            starts.append(start)
            chunks.append(running.plan_chunk(start.slot, budget))
            budget -= chunks[-1].length
        return starts

    def _start_behind(self, head: Request) -> SlotStart | None:
        """Move a new request past the queues' head to a slot, where the head resumes, its blocks do not fit now, and
        its tenant holds, in the head's class, no fewer blocks than that of the new one then will in all. Else a tenant
        that fills the cache would hold up all others.

        The head does not starve: while it waits no request of its tenant and class starts, and once none of them runs
        no request passes it. What its tenant runs in other classes does not count: more of that may start all the time.
        """
        running = self._running
        request = self._behind = self._queues.behind(running.decodes.clock)
        self._pass_at = NEVER
        if request is None or request.scheduling.tenant == head.scheduling.tenant:
            return None
        most = running.blocks_of(head.scheduling.tenant, head.scheduling.service_class)
        excess = running.blocks_of(request.scheduling.tenant) + running.pool.blocks_for(request.num_tokens) - most
        if excess > 0:
            # Until something changes decodes take blocks and give none back: each makes up for one at most.
            self._pass_at = max(NEVER, running.pool.num_free - excess)
            return None
        return self._start(request, behind=True)

    def _start(self, request: Request, *, behind: bool = False) -> SlotStart | None:
        """Move the queues' head, or the request `behind` it, to a slot; None: its blocks do not fit now."""
        pool, num_tokens, swapped = self._running.pool, request.num_tokens, request.state is RequestState.SWAPPED
        # At least one token has to be computed, for its logits.
        hashes = [] if swapped else request.block_hashes[: (num_tokens - 1) // pool.block_size]
        shared = pool.match(hashes) if hashes else _NO_BLOCKS
        num_new = pool.blocks_for(num_tokens) - len(shared)
        num_taken = num_new + (pool.num_unowned(shared) if len(shared) else 0)
        headroom = self._headroom_blocks if self.num_running else 0
        if num_taken + headroom > pool.num_free:
            return None
        if len(shared):
            pool.share(shared)
            block_ids = np.concatenate([shared, pool.allocate(num_new)])
        else:
            block_ids = pool.allocate(num_new)
        computed = request.num_computed_tokens if swapped else len(shared) * pool.block_size
        if self.config.prefix_caching and request.state is RequestState.WAITING:
            self.prefix_queries += request.num_prompt_tokens
            self.prefix_hits += computed
        host_block_ids = request.host_block_ids
        clock = self._running.decodes.clock
        self._queues.pop(clock, behind=behind)
        self._queues.admitted(request, num_tokens - computed, clock)
        self._leave_queue(request)
        self._running.start(request, block_ids, computed, len(shared))
        request.state = RequestState.RUNNING
        return SlotStart(
            slot=request.slot,
            request_id=request.request_id,
            token_ids=all_tokens(request),
            num_prompt_tokens=request.num_prompt_tokens,
            num_computed_tokens=computed,
            sampling=request.sampling,
            block_ids=block_ids,
            host_block_ids=host_block_ids,
        )

    def _preempt(self, request: Request) -> None:
        """Take the slot and blocks away; the tokens are kept, and their keys and values where that pays."""
        slot = request.slot
        blocks, computed = self._running.leave(request)
        host_block_ids = self._host_blocks_for(computed)
        self._preemptions.append(
            Preemption(slot, request.request_id, blocks[: len(host_block_ids)], host_block_ids),
        )
        if host_block_ids:
            request.host_block_ids, request.num_computed_tokens = host_block_ids, computed
            self.num_swaps += 1
        self._put_back(request, RequestState.SWAPPED if host_block_ids else RequestState.PREEMPTED)

    def _put_back(self, request: Request, state: RequestState) -> None:
        """Queue a request that has lost its slot."""
        request.state = state
        request.num_preemptions += 1
        self.num_preemptions += 1
        self._queue(request)

    def _host_blocks_for(self, num_computed: int) -> tuple[int, ...]:
        """Where to swap a request to; empty: recompute it."""
        pool, mode = self._host_pool, self.config.preemption
        if pool is None or mode == "recompute":
            return ()
        if mode == "auto" and (self.rates is None or not swapping_is_cheaper(num_computed, self.rates)):
            return ()
        count = pool.blocks_for(num_computed)
        return tuple(pool.allocate(count).tolist()) if count <= pool.num_free else ()

    def _queue(self, request: Request) -> None:
        self._queues.push(request, self._running.decodes.clock)
        self._num_queued_tokens += request.num_tokens - request.num_computed_tokens

    def _leave_queue(self, request: Request) -> None:
        self._num_queued_tokens -= request.num_tokens - request.num_computed_tokens
        if self._host_pool is not None and request.host_block_ids:
            self._host_pool.free(request.host_block_ids)
        request.host_block_ids, request.num_computed_tokens = (), 0

    def _finish(self, request: Request, reason: FinishReason) -> None:
        if request.slot >= 0:
            self._in_flight.discard(request.slot)
            self._running.leave(request)
        else:
            self._queues.remove(request)
            self._leave_queue(request)
        request.state, request.finish_reason = RequestState.FINISHED, reason
        del self._requests[request.request_id]
        self._changed = True
