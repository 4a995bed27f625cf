"""Decision of an iteration: the tokens that each request computes (continuous batching, Orca, Yu et al. 2022; chunked
prefill mixed with decodes, Sarathi-Serve, Agrawal et al. 2024)."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set

from inflight_engine.cache.block_pool import BlockPool
from inflight_engine.cache.offload import Offload
from inflight_engine.cache.prefix import hash_blocks
from inflight_engine.cache.tiers import HostTier
from inflight_engine.request import FinishReason, ForcedRun, Request, RequestState, TokenIds
from inflight_engine.scheduling.admission import Admission
from inflight_engine.scheduling.budget import fit_decodes, plan_prefills, runs_out
from inflight_engine.scheduling.config import SchedulerConfig
from inflight_engine.scheduling.deadlines import Deadlines
from inflight_engine.scheduling.decodes import DecodeGroup
from inflight_engine.scheduling.in_flight import PlansInFlight
from inflight_engine.scheduling.phases import Phase
from inflight_engine.scheduling.plan import BlockGrowth, SlotStart, StepPlan
from inflight_engine.scheduling.preemption import Preemptor
from inflight_engine.scheduling.queues import WaitingQueues
from inflight_engine.scheduling.running import Running, longest_request
from inflight_engine.scheduling.slots import SlotTable
from inflight_settings.limits import Limits


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

    A plan made ahead pauses and preempts no request: the victim's last token would be unknown when it is queued.
    Where blocks or budget run out `schedule` returns None and decides after `update`, which costs one step without
    overlap, next to the recomputing that follows.

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
        ValueError: the classes are not valid.

    Attributes:
        queues, running: the requests without and with a slot.
        in_flight: plans whose tokens are not taken in yet.
        admission, preemptor: give slots to requests and take them away.
        deadlines: predicts until when a new request must start.
        offload: what leaves the device's blocks and comes back to them.
        num_steps: planned so far: the number of the next one.
        num_forced_tokens: tokens that requests got without sampling them.
        changed: something other than growth may have to be decided.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        make_pool: Callable[[int, int], BlockPool] = BlockPool,
        make_decodes: Callable[[SlotTable, int, int], DecodeGroup] = DecodeGroup,
    ) -> None:
        pool = make_pool(config.num_blocks, config.block_size)
        self._longest = longest_request(config)
        table = SlotTable(config.capacity.max_num_seqs, pool.blocks_for(self._longest))
        decodes = make_decodes(table, config.num_blocks, config.block_size)
        self.config = config
        self.queues = WaitingQueues(config)
        self.running = Running(pool, table, decodes, self.queues, prefix_caching=config.prefix_caching)
        self.offload = Offload(
            HostTier(config.num_host_blocks, config.block_size, pool.events) if config.has_tier else None,
            pool,
            longest=self._longest,
            always=config.preemption == "swap",
            cost=lambda: self.deadlines.cost,
        )
        self.deadlines = Deadlines(config, pool, self.offload)
        self.in_flight = PlansInFlight(self.running, self.offload)
        self.preemptor = Preemptor(config, self.queues, self.running)
        self.admission = Admission(config, self.queues, self.running, self.offload)
        self.num_steps = self.num_forced_tokens = 0
        self.changed = False
        self._limits = config.capacity
        self._requests: dict[int, Request] = {}
        self._num_orders = 0

    def schedule(self, now: float = 0.0) -> StepPlan | None:
        """Plan the next step; None where nothing is left to run, or nothing can be decided before `update` of the plan
        that is in flight. At most one may be.

        Args:
            now: seconds on the clock of `Request.arrival_time`, never less than before.
        """
        if not self._requests:
            return None
        in_flight, admission = self.in_flight, self.admission
        if in_flight.newest is not None and in_flight.count_ahead(in_flight.newest):
            self.changed = True
        if self.changed or admission.head_moved(now):
            return self._decide(now)
        decodes, pool = self.running.decodes, self.running.pool
        growing, growth = decodes.growing(), None
        if len(growing):
            # Too few blocks, or few enough for a pass.
            if pool.num_free - len(growing) <= admission.pass_at:
                return self._decide(now)
            growth = decodes.grow(growing, pool.allocate(len(growing)))
        step = self.num_steps
        self.num_steps = step + 1
        slots, stores = decodes.slots, None if growth is None else self.offload.plan(step)
        plan = in_flight.newest = StepPlan(step, (), (), (), growth, (), slots, len(slots), stores=stores)
        return plan

    def _decide(self, now: float) -> StepPlan | None:
        """Plan a step in which something changes: every running decode the budget allows goes first, oldest first; then
        unfinished prefills; then admissions."""
        running, preempted, limits = self.running, self.preemptor.preempted, self._limits
        running.count_extensions()
        if self.in_flight.counted is not None and runs_out(running, limits.max_num_batched_tokens):
            return None
        self.admission.forget_blocked()
        growth = self._grow_decodes()
        decode_slots = running.decodes.slots
        budget = limits.max_num_batched_tokens - len(decode_slots)
        chunks = plan_prefills(running, budget)
        starts: list[SlotStart] = []
        # A step that had to preempt admits no request: the victim would bounce straight back.
        if not preempted:
            budget -= sum(chunk.length for chunk in chunks)
            starts, first_chunks = self.admission.admit(limits.max_num_seqs, budget, now)
            chunks += first_chunks
        self.changed = bool(preempted or running.prefilling or running.extended)
        if not chunks and not len(decode_slots):
            return None  # All running requests end with the step in flight.
        plan = StepPlan(
            step=self.num_steps,
            preemptions=tuple(preempted),
            releases=tuple(running.releases),
            starts=tuple(starts),
            growth=growth,
            prefills=tuple(chunks),
            decode_slots=decode_slots,
            num_tokens=len(decode_slots) + sum(chunk.length for chunk in chunks),
            extensions=running.plan_extensions(chunks),
            stores=self.offload.plan(self.num_steps),
        )
        self.in_flight.add(plan, running.registered)
        self.num_steps += 1
        preempted.clear()
        running.releases.clear()
        running.registered = []
        return plan

    def _grow_decodes(self) -> BlockGrowth | None:
        """Settle which requests decode, and give those that cross a block boundary their next block. If none is free,
        victims are preempted."""
        decodes, pool = self.running.decodes, self.running.pool
        while True:
            fit_decodes(self.running, self._limits.max_num_batched_tokens)
            growing = decodes.growing()
            if not len(growing):
                return None
            if len(growing) <= pool.num_free:
                return decodes.grow(growing, pool.allocate(len(growing)))
            self.preemptor.preempt()

    def update(self, plan: StepPlan, token_ids: TokenIds) -> list[Request]:
        """Take in a step's sampled tokens (int32, in the plan's order), of the older plan where two are in flight;
        returns the requests that ended with it."""
        running = self.running
        stopped = running.stops.candidates(token_ids)
        full, discarded = self.in_flight.take_in(plan, token_ids)
        if plan.prefills:
            self.changed = True
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

    def force(self, runs: Sequence[ForcedRun]) -> tuple[list[ForcedRun], list[Request]]:
        """Give requests the tokens that must follow, as far as they have room for them; right after `update` with the
        tokens before. They are computed in one chunk where a step has room for it, and a step in flight computes their
        requests in vain. Else they are not taken: they will be sampled one by one, which needs less.

        Returns:
            The runs that were taken, cut where their request reaches its length; and the requests that ended so.
        """
        running, clock = self.running, self.running.decodes.clock
        taken: list[ForcedRun] = []
        full: list[Request] = []
        # Beside the other decodes, and what else is extended.
        room = self._limits.max_num_batched_tokens - running.decodes.num_members - running.num_extended_tokens
        for run in runs:
            request = running.table.requests[run.slot]
            if request is None or running.phases[run.slot] is not Phase.DECODING:
                continue  # It has ended with the token before.
            num_left = request.max_total_tokens - int(running.table.num_tokens[run.slot])
            if len(run.token_ids) >= num_left:
                taken.append(run._replace(token_ids=run.token_ids[:num_left]))
                full.append(request)
                self._finish(request, FinishReason.LENGTH)
                self.queues.generated(request, num_left, clock)
                room += 1
            elif len(run.token_ids) <= room and self._extend(run):
                taken.append(run)
                room -= len(run.token_ids)
        self.num_forced_tokens += sum(len(run.token_ids) for run in taken)
        return taken, full

    def _extend(self, run: ForcedRun) -> bool:
        """Let a decoding request go on with a chunk; False: there are no blocks for it."""
        pool, table = self.running.pool, self.running.table
        num_tokens = int(table.num_tokens[run.slot]) + len(run.token_ids)
        num_blocks = pool.blocks_for(num_tokens) - int(table.num_blocks[run.slot])
        if num_blocks > pool.num_free:
            return False
        self.running.extend(run.slot, run.token_ids, pool.allocate(num_blocks))
        self.in_flight.discard(run.slot)
        self.changed = True
        return True

    def add(self, request: Request) -> None:
        """Queue a new request. One that comes with tokens is continued: it resumes with them as after a preemption,
        unless its `Scheduling` says otherwise.

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
        request.latest_start = self.deadlines.latest_start(
            request, self.num_running, self._limits.max_num_batched_tokens
        )
        if len(request.output_token_ids) and request.scheduling.resumes:
            request.state = RequestState.PREEMPTED
        self.queues.push(request, self.running.decodes.clock)
        self._num_orders += 1
        self._requests[request.request_id] = request
        self.changed = True

    def longest_wait(self, request: Request, now: float) -> float:
        """Return the seconds that a request may wait before it is added; see `Deadlines.longest_wait`."""
        return self.deadlines.longest_wait(request, self.num_running, self._limits.max_num_batched_tokens, now)

    def cancel(self, request_id: int, reason: FinishReason) -> bool:
        """End a request wherever it is; its slot and blocks are free for the next step. False: no such request."""
        request = self._requests.get(request_id)
        if request is None:
            return False
        self._finish(request, reason)
        return True

    def _finish(self, request: Request, reason: FinishReason) -> None:
        if request.slot >= 0:
            self.in_flight.discard(request.slot)
            self.running.leave(request)
        else:
            self.queues.remove(request)
            self.admission.forget(request)
        request.state, request.finish_reason = RequestState.FINISHED, reason
        del self._requests[request.request_id]
        self.changed = True

    def fail(self, plan: StepPlan) -> list[Request]:
        """Drop a plan in flight, and one that was made after it: they give no tokens and are not to be taken in.

        Returns:
            The requests whose keys and values the plan computes or copies, in the order of its tokens: they may be
            missing, so the caller has to end these requests before anything else. Those that only the later plan
            computes have lost no more than that: they are queued to be computed from the start. Empty where the plan
            was dropped with an earlier one.
        """
        dropped = self.in_flight.drop(plan)
        if not dropped:
            return []
        lost, *later = [self._requests_in(each, discarded) for each, discarded in dropped]
        self._recompute([each for requests in later for each in requests if each not in lost])
        return lost

    def fail_slots(self, plan: StepPlan, slots: Sequence[int]) -> list[Request]:
        """End the requests in these slots of a plan in flight, the older one of two, with `OUT_OF_MEMORY`: there was no
        memory for them. Call it before the plan's `update`, where the plan was computed but for these slots.

        Where a chunk is among them, requests that found blocks which plans in flight were to fill may have read
        nothing of use: they are queued to be computed from the start.

        Returns:
            The requests that ended with it.
        """
        discarded, table = self.discarded_slots(plan), self.running.table
        failed = [table.request(slot) for slot in slots if slot not in discarded]
        for request in failed:
            self._finish(request, FinishReason.OUT_OF_MEMORY)
        if any(chunk.slot in slots for chunk in plan.prefills):
            self._recompute([table.request(slot) for slot in self.in_flight.misled()])
        return failed

    def fail_loads(self, plan: StepPlan, slots: Sequence[int]) -> None:
        """Queue the requests in these slots of a plan in flight, the older one of two, to be computed anew: what was
        copied in for them is not what was stored. Those that found blocks which plans in flight were to fill go with
        them. Call it before the plan's `update`."""
        table = self.running.table
        for start in plan.starts:
            if start.slot in slots:
                self.offload.fail(start.host_block_ids, start.host_hashes)
        lost = dict.fromkeys(slot for slot in slots if slot not in self.discarded_slots(plan))
        lost |= dict.fromkeys(self.in_flight.misled())
        self._recompute([table.request(slot) for slot in lost])

    def _recompute(self, requests: Sequence[Request]) -> None:
        """Take slot and blocks away from requests that plans in flight compute in vain."""
        self.changed = True
        for request in requests:
            self.in_flight.discard(request.slot)
            self.running.leave(request)
            self.preemptor.put_back(request)

    def _requests_in(self, plan: StepPlan, discarded: Set[int]) -> list[Request]:
        slots = [*plan.decode_slots.tolist(), *(chunk.slot for chunk in plan.prefills)]
        return [self.running.table.request(slot) for slot in slots if slot not in discarded]

    def forget_cache(self) -> None:
        """Forget the content of all blocks, of the tier too: their memory is given back.

        Raises:
            ValueError: there are requests.
        """
        if self._requests:
            raise ValueError(f"{len(self._requests)} requests may have blocks")
        self.running.pool.unregister(range(self.config.num_blocks))
        self.offload.clear()

    def discarded_slots(self, plan: StepPlan) -> Set[int]:
        """Return the slots of a plan in flight whose requests finished since it was made: its tokens for them are
        discarded."""
        return self.in_flight.discarded(plan)

    @property
    def limits(self) -> Limits:
        """Live limits, within capacity; in force from the next step."""
        return self._limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        self._limits = limits
        self.changed = True

    @property
    def class_weights(self) -> dict[str, float]:
        return self.queues.weights

    def set_class_weights(self, weights: dict[str, float]) -> None:
        """Change the weights of some classes.

        Raises:
            ValueError: no such class, or a weight that is not above 0; nothing is changed.
        """
        self.queues.set_weights(weights, self.running.decodes.clock)
        self.changed = True

    @property
    def has_work(self) -> bool:
        return bool(self._requests)

    @property
    def num_running(self) -> int:
        return self.running.table.num_running

    @property
    def num_waiting(self) -> int:
        return len(self.queues)

    @property
    def num_uncomputed_tokens(self) -> int:
        """Prompt tokens (and lost tokens of preempted requests) still to be computed, waiting or in prefill."""
        return self.queues.num_tokens + self.running.num_uncomputed_tokens

    @property
    def num_attended_tokens(self) -> int:
        """Tokens whose keys and values the decodes of the latest plan read, or of a step that is planned now and
        where no block runs out; ask before anything else is done."""
        return self.running.decodes.num_attended

    @property
    def kv_usage(self) -> float:
        """Share of KV blocks that requests hold, 0..1. Cached blocks without owner are as good as free."""
        return self.running.pool.usage

    def is_cached(self, block_hash: bytes) -> bool:
        """Return whether the prefix cache, or the tier behind it, can find a block with this content now, or once it
        has come from behind the tier."""
        return len(self.running.pool.match([block_hash])) > 0 or self.offload.may_have(block_hash)
