"""The rules of scheduling, checked from outside: who may run, be admitted, be preempted, and in which order.

Written from the rules alone (states, limits, order within an iteration, policies, preemption, admission by KV budget),
not from the scheduler's code. It sees each request as it arrived, each plan, and what the model runner rebuilt from the
plans; every broken rule raises AssertionError with the rule in words.

The runner executes a plan when it is launched, the scheduler may take its tokens in later. What the scheduler must know
of a plan in between is said by `counted` and `confirmed`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from inflight_cost.model import CostModel, StepWork
from inflight_engine.cache.loading import LoadRates
from inflight_engine.request import Request, RequestState
from inflight_engine.scheduling.config import SchedulerConfig
from inflight_engine.scheduling.plan import Preemption, Slots, SlotStart, StepPlan
from inflight_engine.scheduling.scheduler import Scheduler
from inflight_settings.limits import Limits
from tests.engine.scheduling.cache_rules import CacheRules
from tests.engine.scheduling.model_runner import ModelRunner, ModelSequence
from tests.engine.scheduling.queue_rules import Known, QueueRules
from tests.engine.scheduling.tier_rules import TierRules

NOBODY = -1
"""No request's id."""


Held: TypeAlias = dict[tuple[str, str], set[int]]
"""Blocks in the tables of each tenant's requests of each class."""


Tables: TypeAlias = dict[int, set[int]]
"""Blocks of each running request."""


def _tables(running: list[ModelSequence]) -> Tables:
    return {each.request_id: set(each.blocks) for each in running}


def _union(tables: Iterable[set[int]]) -> set[int]:
    return set().union(*tables)


def _class(known: Known) -> str:
    return known.request.scheduling.service_class


def num_held(held: Held, tenant: str, service_class: str | None = None) -> int:
    """Blocks of a tenant in all classes or one; a block that requests share counts once."""
    tables = [blocks for owner, blocks in held.items() if owner[0] == tenant and service_class in (None, owner[1])]
    return len(set().union(*tables))


@dataclass(slots=True)
class UnderWay:
    """A plan that was carried out and not taken in.

    Attributes:
        computed: by slot, whom the plan computed for and how many of its tokens were in its blocks then.
        counted: the scheduler plans on the grounds of it.
    """

    plan: StepPlan
    computed: dict[int, tuple[int, int]]
    counted: bool = False


@dataclass(slots=True)
class Refused:
    """
    Attributes:
        since: when a request was next and did not fit, for the first time. room: blocks that were free then.
        started: who was admitted since.
    """

    since: float
    room: int
    started: set[int] = field(default_factory=set)


class Rules:
    """
    Args:
        config: what the scheduler was given.
        runner: where the plans are carried out.

    Attributes:
        limits, rates, prefill_cost: in force; set them whenever the scheduler's are set.
        requests: that did not end, in order of arrival.
        queues: those of them that have no slot. refused: who of these was next and did not fit. num_passed: times that
            somebody was admitted before one of them.
        num_preemptions: since start. num_loaded: blocks loaded from the tier.
        num_throttled: steps with a budget below the running decodes.
        started_blocks: of the requests that start in a step, but for the last one.
    """

    def __init__(self, config: SchedulerConfig, runner: ModelRunner) -> None:
        self.config = config
        self.runner = runner
        self.limits: Limits = config.capacity
        self.rates: LoadRates | None = None
        self.prefill_cost: CostModel | None = None
        self.requests: dict[int, Known] = {}
        self.queues = QueueRules(config)
        self.refused: dict[int, Refused] = {}
        self.num_passed = 0
        self._cache = CacheRules(
            config.num_blocks,
            config.block_size,
            enabled=config.prefix_caching,
            num_places=config.num_host_blocks if config.prefix_caching and config.preemption != "recompute" else 0,
            stores=self._stores,
        )
        self.num_added = 0
        self.num_preemptions = 0
        self.num_loaded = 0
        self.prefix_queries = self.prefix_hits = 0
        self.num_throttled = 0
        self.started_blocks = 32_768
        self._decode_slots: tuple[Slots | None, list[int]] = (None, [])
        self._set_may_change = True
        self._under_way: dict[int, UnderWay] = {}
        self._loads: dict[int, list[int]] = {}
        """Stamps that the newest start of each request loads."""

    def added(self, request: Request) -> None:
        known = Known(request, self.num_added, self._latest_start(request))
        if len(request.output_token_ids) and request.scheduling.resumes:
            known.continued, known.state = True, RequestState.PREEMPTED
        assert request.state is known.state, "the state of a new request is wrong"
        assert request.latest_start == known.latest_start, "the latest start of a request is wrong"
        self.requests[request.request_id] = known
        self.queues.add(known)
        self.num_added += 1
        if request.sampling.prompt_logprobs is not None:
            self._cache.unshared.add(request.request_id)

    def _latest_start(self, request: Request) -> float:
        """Arrival + target - its loads - its own prefill, without what is cached or loaded - its steps with what runs -
        two full steps of others, a fifth of the target at most."""
        target = self._target(request)
        if self.config.policy != "deadline" or target is None:
            return math.inf
        return self._start_for(request, target, self.prefill_cost)

    def longest_wait(self, request: Request, now: float) -> float:
        """It may wait for half of the queue timeout, and up to each of the latest starts that are still to come: by its
        TTFT target, whatever the policy, and by its request timeout. Without a cost of steps prefills go at the
        measured rate."""
        cost = self.prefill_cost
        if cost is None and self.rates is not None:
            cost = CostModel(0.0, 0.0, 1 / self.rates.prefill, 0.0, 0.0)
        timeouts = {each.name: each.request_timeout for each in self.config.classes}
        timeout = timeouts[request.scheduling.service_class]
        wait = self.config.late_wait
        for limit in (self._target(request), self.config.request_timeout if timeout is None else timeout):
            if limit is not None and (start := self._start_for(request, limit, cost)) > now:
                wait = min(wait, start - now)
        return wait

    def _target(self, request: Request) -> float | None:
        target = self.queues.targets[request.scheduling.service_class]
        return None if target is None else target + self.config.ttft_per_token * request.num_prompt_tokens

    def _start_for(self, request: Request, target: float, cost: CostModel | None) -> float:
        if cost is None:
            return request.arrival_time + target
        num_tokens = request.num_prompt_tokens
        stamps = self.runner.sequences[request.request_id].stamps
        cached = self._cache.findable(stamps, num_tokens)
        size = self.config.block_size
        loaded = self.tier.leading(stamps[cached + size - 1 : (num_tokens - 1) // size * size : size]) * size
        loaded = loaded if loaded and self._pays(loaded, cached) else 0
        loading = loaded / self.rates.copy if self.rates is not None else 0.0
        cached += loaded
        held = self.runner.num_owned * self.config.block_size
        running, budget = len(self.runner.running), self.limits.max_num_batched_tokens
        step = cost.seconds(StepWork(running, 0, held, 0))
        full = cost.seconds(StepWork(running, max(0, budget - running), held, 0))
        computed = num_tokens - cached
        own = cost.prefill_seconds(computed, cached) + math.ceil(computed / budget) * step
        return request.arrival_time + target - loading - own - min(2 * full, 0.2 * target)

    def ended(self, request_id: int) -> None:
        known = self.requests.pop(request_id)
        if known.decoding:
            self.queues.decode_ends(known)
        if known.state is RequestState.RUNNING:
            self._cache.leave(self.runner.sequences[request_id])
        else:
            self.queues.remove(known)
            self.refused.pop(request_id, None)
        self.runner.end(request_id)

    def forget_cache(self) -> None:
        self._cache.forget()

    def put_back(self, request_id: int) -> None:
        """It lost its slot because a step broke that it was not in."""
        known, sequence = self.requests[request_id], self.runner.sequences[request_id]
        assert known.state is RequestState.RUNNING, "a request is put back that does not run"
        known.state = RequestState.PREEMPTED
        assert known.request.state is known.state, "the state of a request that is put back is wrong"
        known.num_preemptions += 1
        self.num_preemptions += 1
        if known.decoding:
            self.queues.decode_ends(known)
        self._cache.leave(sequence)
        self.queues.pause(known)
        known.ending = False
        self._compute_in_vain(request_id)

    def extended(self, request_id: int, num_known: int, token_ids: list[int], blocks: list[int]) -> None:
        """It goes on with tokens that it did not sample, which count as those that it does, with the one that their
        chunk samples. `blocks`: that it got for them."""
        known = self.requests[request_id]
        self._cache.give_out(blocks)
        self.runner.extend(request_id, num_known, token_ids, blocks)
        self.queues.decode_ends(known)
        self.queues.generated(known, len(token_ids) + 1)
        self._compute_in_vain(request_id)

    def check_not_extended(self, request_id: int, num_known: int, num_more: int) -> None:
        """It did not get so many tokens, and must sample them: blocks or the budget of a step do not suffice."""
        size, running = self.config.block_size, self.runner.running
        lacking = -(-(num_known + num_more) // size) - len(self.runner.sequences[request_id].blocks)
        extended = sum(len(each.stamps) - each.computed for each in running if each.extended >= 0 and not each.decodes)
        for under_way in self._under_way.values():
            for chunk in () if under_way.counted else under_way.plan.prefills:
                owner = under_way.computed[chunk.slot][0]
                if owner in self.requests and self.runner.sequences[owner].extended >= 0:
                    extended += chunk.length
        decoding = sum(known.decoding for known in self.requests.values())
        assert (
            lacking > self.config.num_blocks - self.runner.num_owned
            or decoding + extended + num_more > self.limits.max_num_batched_tokens
        ), "tokens are sampled one by one though there is room for them at once"

    def _compute_in_vain(self, request_id: int) -> None:
        """Let what steps under way compute for a request count for nothing."""
        for under_way in self._under_way.values():
            for slot, (owner, _) in under_way.computed.items():
                if owner == request_id:
                    under_way.computed[slot] = (NOBODY, 0)

    def chunks_failed(self, plans: list[StepPlan]) -> set[int]:
        """A chunk of these plans under way was not computed: nothing that they were to compute is found any more.
        Returns the blocks that could be found since they were made."""
        self._cache.tier.forget()
        return set().union(*(self._cache.dropped(plan.step) for plan in plans))

    def load_failed(self, start: SlotStart) -> None:
        """Take in that a start found something damaged in the tier."""
        self._cache.tier.damaged(self._loads[start.request_id], start.host_block_ids)

    # One step.

    def before(self, plan: StepPlan, *, ahead: bool = False) -> None:
        """Checks the decisions of a plan that is not carried out yet. `ahead`: the tokens of the one before are not
        known."""
        running = self.runner.running
        self._check_steady(plan)
        if ahead:
            assert not plan.preemptions, "a request is preempted with a token that nobody knows"
            decoding = self._decoding(running)
            due = self._oldest(decoding, self.limits.max_num_batched_tokens)
            pausing = [each for each in decoding if self.requests[each.request_id].decoding != (each in due)]
            assert not pausing, "a request pauses with a token that nobody knows, or resumes in a plan made ahead"
        if plan.preemptions:
            assert not plan.starts, "somebody is admitted in a step that preempted"
            running = self._check_preemptions(plan.preemptions, running)
        self._check_decodes(plan, running)
        tables = _tables(running)
        if plan.growth is not None:
            for slot, block in zip(plan.growth.slots.tolist(), plan.growth.block_ids.tolist(), strict=True):
                tables[self.runner.slots[slot].request_id].add(block)
        for start in plan.starts:
            self._check_start(start, tables)
        num_before_last = sum(len(start.block_ids) for start in plan.starts[:-1])
        assert not plan.starts or num_before_last < self.started_blocks, "a step starts requests of too many blocks"
        for extension in plan.extensions:
            request = self.requests[extension.request_id].request
            assert extension.num_prompt_tokens == request.num_prompt_tokens, "num_prompt_tokens is wrong"
            assert extension.sampling is request.sampling, "sampling is another request's"

    def after(self, plan: StepPlan) -> None:
        """Checks what a plan left undone, once it is carried out."""
        budget, running = self.limits.max_num_batched_tokens, self.runner.running
        self._check_blocks(plan)
        assert plan.num_tokens <= budget, f"{plan.num_tokens} tokens are over the budget of {budget}"
        if plan.starts:
            assert len(running) <= self.limits.max_num_seqs, "admission beyond max_num_seqs"
            self._check_room_left(plan, running)
        if plan.num_tokens < budget:
            for sequence in running:
                assert sequence.computed == len(sequence.stamps) - 1, "budget is left over while a prompt waits for it"
            if not plan.preemptions:
                self._check_nobody_fits(running, plan.starts)
        elif plan.prefills:
            self._check_chunk_order(plan, running)
        slots = self.runner.slots
        computed = plan.decode_slots.tolist() + [chunk.slot for chunk in plan.prefills]
        self._under_way[plan.step] = UnderWay(
            plan, {slot: (slots[slot].request_id, slots[slot].computed) for slot in computed}
        )

    def nothing_planned(self, *, ahead: bool) -> None:
        """There was no plan."""
        if not self.requests:
            return
        assert ahead, "no step though requests are there"
        running, budget, size = self.runner.running, self.limits.max_num_batched_tokens, self.config.block_size
        decoding = self._decoding(running)
        growing = sum(each.computed == len(each.blocks) * size for each in decoding)
        if self._throttled() or growing > self.config.num_blocks - self.runner.num_owned:
            return  # Somebody would have to give way.
        assert not decoding, "nothing is planned though requests decode"
        assert all(each.computed == len(each.stamps) - 1 for each in running), "nothing is planned though prompts wait"
        assert budget > 0
        self._check_nobody_fits(running)

    def failed(self, plan: StepPlan) -> None:
        """Takes in a plan of which nothing was computed."""
        self._check_blocks(plan)
        if plan.num_tokens < self.limits.max_num_batched_tokens and not plan.preemptions:
            self._check_nobody_fits(self.runner.running, plan.starts)

    def counted(self, plan: StepPlan) -> None:
        """Another plan follows, or the tokens are taken in: lengths and shares of service include this one."""
        under_way = self._under_way[plan.step]
        under_way.counted = True
        started = {start.slot for start in plan.starts}
        for slot in plan.decode_slots.tolist():
            known = self.requests.get(under_way.computed[slot][0])
            if known is not None:
                (self.queues.decode_starts if slot in started else self.queues.generated)(known)
                self._check_ending(known)
        for chunk in plan.prefills:
            known = self.requests.get(under_way.computed[chunk.slot][0])
            if known is not None and chunk.samples:
                self.queues.decode_starts(known)
                self._check_ending(known)

    def confirmed(self, plan: StepPlan) -> None:
        """The tokens are taken in: what was computed is there."""
        under_way = self._under_way[plan.step]
        if not under_way.counted:
            self.counted(plan)
        del self._under_way[plan.step]
        self._cache.taken_in(plan.step)
        self._cache.tier.taken_in(plan.step)
        for request_id, computed in under_way.computed.values():
            if request_id in self.requests:
                self.runner.sequences[request_id].confirmed = computed

    def broken(self, plan: StepPlan) -> None:
        """A plan has broken, carried out or not, and its tokens will not be taken in."""
        self._under_way.pop(plan.step, None)
        self._cache.dropped(plan.step)
        self._cache.tier.forget()

    def _check_ending(self, known: Known) -> None:
        sequence = self.runner.sequences[known.request.request_id]
        if len(sequence.token_ids) == known.request.max_total_tokens:
            known.ending = True
            self.queues.decode_ends(known)

    def _decoding(self, running: list[ModelSequence]) -> list[ModelSequence]:
        return [each for each in running if each.decodes and not self.requests[each.request_id].ending]

    def _throttled(self) -> bool:
        """Requests that could decode pause, or would have to."""
        decoding = self._decoding(self.runner.running)
        paused = any(not self.requests[each.request_id].decoding for each in decoding)
        return paused or len(decoding) > self.limits.max_num_batched_tokens

    def _check_steady(self, plan: StepPlan) -> None:
        array, slots = self._decode_slots
        planned = plan.decode_slots.tolist()
        if array is not None:
            assert array.tolist() == slots, "decode_slots of an earlier plan were written to"
            if planned == slots and not (self._set_may_change or plan.releases or plan.starts):
                assert plan.decode_slots is array, "decode_slots is a new array though the set did not change"
        self._decode_slots = (plan.decode_slots, planned)
        self._set_may_change = any(chunk.samples for chunk in plan.prefills)

    def _check_decodes(self, plan: StepPlan, running: list[ModelSequence]) -> None:
        budget = self.limits.max_num_batched_tokens
        decoding = self._decoding(running)
        throttled = len(decoding) > budget
        self.num_throttled += throttled
        due = {sequence.slot for sequence in self._oldest(decoding, budget)}
        # A request of which all but one token is found may decode at once.
        ready = {start.slot for start in plan.starts if start.num_computed_tokens == len(start.token_ids) - 1}
        planned = set(plan.decode_slots.tolist())
        assert due <= planned, (
            "a budget below the running decodes must run the oldest" if throttled else "a running decode loses a step"
        )
        assert planned <= due | ready, "a slot decodes that is not due"
        for sequence in decoding:
            known = self.requests[sequence.request_id]
            if known.decoding != (sequence.slot in due):
                (self.queues.decode_ends if known.decoding else self.queues.decode_starts)(known)

    def _oldest(self, sequences: list[ModelSequence], count: int) -> list[ModelSequence]:
        if len(sequences) <= count:
            return sequences
        return sorted(sequences, key=self._order)[:count]

    def _order(self, sequence: ModelSequence) -> int:
        return self.requests[sequence.request_id].order

    # Preemption.

    def _check_preemptions(
        self, preemptions: tuple[Preemption, ...], running: list[ModelSequence]
    ) -> list[ModelSequence]:
        """The running requests without the victims."""
        size = self.config.block_size
        refs: dict[int, int] = {}
        free = self.config.num_blocks - self.runner.num_owned
        for preemption in preemptions:
            victim = next((each for each in running if each.request_id == preemption.request_id), None)
            assert victim is not None, "a request is preempted that does not run"
            decoding = [sequence for sequence in running if sequence.decodes]
            growing = self._oldest(decoding, self.limits.max_num_batched_tokens)
            needed = sum(each.computed == len(each.blocks) * size for each in growing)
            assert needed > free, "a request is preempted though blocks did not run out"
            assert victim is not min(running, key=self._order), "the oldest running request is preempted"
            self._check_victim(victim, running)
            self._cache.leave(victim)
            for block in victim.blocks:
                refs[block] = refs.get(block, self.runner.refs[block]) - 1
                free += not refs[block]
            running = [each for each in running if each is not victim]
            known = self.requests[victim.request_id]
            known.state = RequestState.PREEMPTED
            assert known.request.state is known.state, "the state of a preempted request is wrong"
            generated = victim.token_ids[known.request.num_prompt_tokens :]
            assert known.request.output_token_ids.tolist() == generated, "a preempted request loses tokens"
            known.num_preemptions += 1
            if known.decoding:
                self.queues.decode_ends(known)
            self.queues.pause(known)
            self.num_preemptions += 1
        return running

    def _check_victim(self, victim: ModelSequence, running: list[ModelSequence]) -> None:
        oldest = min(running, key=self._order)
        candidates = [each for each in running if each is not oldest]
        held = self._held(_tables(running))
        rightful = max(candidates, key=lambda each: self._victim_key(each, held))
        assert victim is rightful, f"the victim is not the one that {self.config.preemption_victim} chooses"

    def _victim_key(self, sequence: ModelSequence, held: Held) -> tuple[float, ...]:
        """The greatest gives way: of the class with the least weight; where priorities count, of the least urgent; of
        the tenant with the most blocks; then by the rule; of equals the last arrived."""
        known = self.requests[sequence.request_id]
        request = known.request
        urgency = request.scheduling.priority if self.config.policy == "priority" else 0
        standing = (
            -self.queues.class_weights[request.scheduling.service_class],
            urgency,
            num_held(held, request.scheduling.tenant),
        )
        match self.config.preemption_victim:
            case "last_arrived":
                return *standing, 0, known.order
            case "longest_first":
                return *standing, len(sequence.token_ids), known.order
            case "most_preempted_last":
                return *standing, -known.num_preemptions, known.order
        raise ValueError(self.config.preemption_victim)

    # Admission.

    def _held(self, tables: Tables) -> Held:
        held: Held = {}
        for request_id, blocks in tables.items():
            request = self.requests[request_id].request
            held.setdefault((request.scheduling.tenant, request.scheduling.service_class), set()).update(blocks)
        return held

    def _may_pass(self, known: Known, due: Known, tables: Tables) -> bool:
        """Returns whether somebody may be admitted before the one that is due and does not fit.

        Behind one of its class that resumes: its tenant then holds no more blocks than that one's does in the class.
        Else, when who runs leaves room enough for the one that is due, with this one, and not counting those whose
        prompt is so large that it never has room beside them. Or for 10 s, times the ratio of the weights where its own
        class has more: all that were admitted in that time hold with it no more than was free at first.
        """
        request, ahead = known.request, due.request
        blocks = self._num_blocks(request.num_tokens)
        if due.state is not RequestState.WAITING and _class(known) == _class(due):
            held = self._held(tables)
            most = num_held(held, ahead.scheduling.tenant, ahead.scheduling.service_class)
            return (
                request.scheduling.tenant != ahead.scheduling.tenant
                and num_held(held, request.scheduling.tenant) + blocks <= most
            )
        usable = self._num_usable(tables)
        due_blocks = self._num_blocks(ahead.num_tokens)
        beside = [
            held
            for owner, held in tables.items()
            if self._num_blocks(self.requests[owner].request.num_prompt_tokens) + due_blocks <= usable
        ]
        if len(_union(beside)) + blocks + due_blocks <= usable:
            return True
        refused, weights = self.refused[ahead.request_id], self.queues.class_weights
        since = [held for owner, held in tables.items() if owner in refused.started]
        in_time = self.queues.now < refused.since + 10.0 * max(1.0, weights[_class(known)] / weights[_class(due)])
        return in_time and len(_union(since)) + blocks <= refused.room

    def _num_usable(self, tables: Tables) -> int:
        """Blocks for all that run and one that comes."""
        headroom = self.config.kv_headroom if tables else 0.0
        return self.config.num_blocks - math.floor(headroom * self.config.num_blocks)

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.config.block_size)

    def _check_start(self, start: SlotStart, tables: Tables) -> None:
        """`tables`: with those that start before it in the plan."""
        known = self.requests.get(start.request_id)
        assert known is not None, "a request is admitted that ended or never came"
        assert known.state is not RequestState.RUNNING, "a running request is admitted"
        assert start.num_prompt_tokens == known.request.num_prompt_tokens, "num_prompt_tokens is wrong"
        assert start.sampling is known.request.sampling, "sampling is another request's"
        due = self.queues.head()
        overtakes = f"{self.config.policy}: request {known.order} overtakes request {due and due.order}"
        if known is not due:
            assert due is not None, overtakes
            free = self._num_usable(tables) - len(_union(tables.values()))
            assert self._num_blocks(due.request.num_tokens) > free, f"{overtakes}, which fits"
            self._refuse(due, self.config.num_blocks - len(_union(tables.values())))
            beside = self.queues.beside(due)
            assert known in beside, overtakes
            assert self._may_pass(known, due, tables), f"{overtakes}, and may not"
            for ahead in [] if self.config.prefix_caching else beside[: beside.index(known)]:
                fits = self._num_blocks(ahead.request.num_tokens) <= free
                assert not (fits and self._may_pass(ahead, due, tables)), f"{overtakes} before one that may too"
            self.num_passed += 1
        self.refused.pop(start.request_id, None)
        for refused in self.refused.values():
            refused.started.add(start.request_id)
        tables[start.request_id] = set(start.block_ids.tolist())
        self.queues.remove(known)
        self.queues.admitted(known, len(start.token_ids) - start.num_computed_tokens)
        if known.state is RequestState.WAITING and self.config.prefix_caching:
            self.prefix_queries += start.num_prompt_tokens
            self.prefix_hits += min(start.num_computed_tokens, start.num_prompt_tokens)
        known.state = RequestState.RUNNING
        assert known.request.state is RequestState.RUNNING, "the state of a running request is wrong"

    @property
    def tier(self) -> TierRules:
        return self._cache.tier

    def _check_blocks(self, plan: StepPlan) -> None:
        """Who decodes gets blocks first, then who is admitted, in order; who comes later finds what earlier chunks of
        the same step compute."""
        cache, slots, size = self._cache, self.runner.slots, self.config.block_size
        if plan.growth is not None:
            cache.give_out(plan.growth.block_ids.tolist())
        ends = {chunk.slot: chunk.start + chunk.length for chunk in plan.prefills}
        starting = {start.slot for start in plan.starts}
        for slot, end in ends.items():
            if slot not in starting:
                cache.planned(plan.step, slots[slot], end)
        for start in plan.starts:
            blocks, stamps, num_loaded = start.block_ids.tolist(), slots[start.slot].stamps, len(start.host_block_ids)
            found = cache.findable(stamps, len(start.token_ids))
            taken = start.num_computed_tokens - num_loaded * size
            assert taken == found, f"{found} tokens are in the prefix cache, and {taken} are taken from there"
            contents = stamps[found + size - 1 : (len(start.token_ids) - 1) // size * size : size]
            in_tier = cache.tier.leading(contents)
            due = in_tier if self._pays(in_tier * size, found) else 0
            assert num_loaded == due, f"{num_loaded} blocks are loaded, and {due} should be"
            cache.tier.load(contents[:due], start.host_block_ids, plan)
            self._loads[start.request_id] = contents[:due]
            self.num_loaded += due
            for block in blocks[: found // size]:
                cache.share(block)
            cache.give_out(blocks[found // size :])
            assert start.slot in ends, "a request starts and computes nothing"
            cache.planned(plan.step, slots[start.slot], start.num_computed_tokens)
            cache.planned(plan.step, slots[start.slot], ends[start.slot])
        cache.tier.planned(plan)

    def _stores(self) -> bool:
        """Where loading the last block of the longest request takes longer than computing it, nothing is stored."""
        size = self.config.block_size
        longest = min(self.config.max_model_len, self.config.num_blocks * size)
        return self._pays(size, longest - size)

    def _pays(self, num_tokens: int, num_before: int) -> bool:
        """Loading takes less time than computing, as far as either is known, or is the rule."""
        if not num_tokens or self.config.preemption == "swap":
            return bool(num_tokens)
        rates, cost = self.rates, self.prefill_cost
        if rates is None:
            return False
        computing = num_tokens / rates.prefill if cost is None else cost.prefill_seconds(num_tokens, num_before)
        return num_tokens / rates.copy < computing

    def _check_room_left(self, plan: StepPlan, running: list[ModelSequence]) -> None:
        """`kv_headroom` is free after an admission, unless the admitted request is the only one."""
        if len(running) == 1:
            return
        free = self.config.num_blocks - self.runner.num_owned
        assert free >= math.floor(self.config.kv_headroom * self.config.num_blocks), "admission takes the headroom"

    def _check_nobody_fits(self, running: list[ModelSequence], starts: Sequence[SlotStart] = ()) -> None:
        """A step that has budget and slots left, preempted nobody and started few blocks must have admitted whoever is
        next and fits, or else may pass and fits."""
        if len(running) >= self.limits.max_num_seqs or len(running) == len(self.requests):
            return
        if sum(len(start.block_ids) for start in starts) >= self.started_blocks:
            return
        free = self.config.num_blocks - self.runner.num_owned
        headroom = math.ceil(self.config.kv_headroom * self.config.num_blocks) if running else 0
        due = self.queues.head()
        assert due is not None
        assert self._blocks_needed(due) + headroom > free, "nobody is admitted though the next request fits"
        self._refuse(due, free)
        tables = _tables(running)
        for known in self.queues.beside(due):
            if self._may_pass(known, due, tables):
                assert self._blocks_needed(known) + headroom > free, (
                    "nobody is admitted though a request may pass, and fits"
                )

    def _refuse(self, due: Known, free: int) -> None:
        """It is next and does not fit."""
        self.refused.setdefault(due.request.request_id, Refused(self.queues.now, free))

    def _blocks_needed(self, known: Known) -> int:
        sequence = self.runner.sequences[known.request.request_id]
        num_tokens = len(sequence.token_ids)
        needed = -(-num_tokens // self.config.block_size)
        shared = self._cache.findable(sequence.stamps, num_tokens) // self.config.block_size
        return needed - shared + self._cache.num_unowned(sequence.stamps, num_tokens)

    def _check_chunk_order(self, plan: StepPlan, running: list[ModelSequence]) -> None:
        """In order of admission everybody's prompt is done, but the last one that got any of the budget; extensions are
        done before."""
        lacking = False
        for sequence in sorted(running, key=lambda each: (each.extended < 0, each.extended, each.started)):
            if lacking:
                got = any(chunk.slot == sequence.slot for chunk in plan.prefills)
                assert not got, "a prompt gets budget before one that was admitted earlier"
            lacking = lacking or (not sequence.decodes and sequence.computed < len(sequence.stamps))

    # What the scheduler says of itself.

    def check_counters(self, scheduler: Scheduler) -> None:
        runner = self.runner
        running = runner.running
        assert scheduler.num_running == len(running), "num_running is wrong"
        assert scheduler.num_waiting == len(self.requests) - len(running), "num_waiting is wrong"
        assert scheduler.has_work == bool(self.requests), "has_work is wrong"
        assert scheduler.preemptor.num_preemptions == self.num_preemptions, "num_preemptions is wrong"
        assert scheduler.offload.usage() == self._cache.tier.num_full, "host blocks leaked, or given up too early"
        assert scheduler.offload.num_loaded == self.num_loaded, "num_loaded is wrong"
        owned = round(scheduler.kv_usage * self.config.num_blocks)
        assert owned == runner.num_owned, f"{owned} blocks are in use where block tables hold {runner.num_owned}"
        assert scheduler.admission.prefix_queries == self.prefix_queries, "prefix_queries is wrong"
        assert scheduler.admission.prefix_hits == self.prefix_hits, "prefix_hits is wrong"

    def check_uncomputed(self, scheduler: Scheduler) -> None:
        """`num_uncomputed_tokens` is what a walk over all requests counts."""
        total = 0
        for request_id, known in self.requests.items():
            sequence = self.runner.sequences[request_id]
            if known.state is not RequestState.RUNNING or not sequence.decodes:
                total += len(sequence.stamps) - sequence.computed
        for under_way in self._under_way.values():
            for chunk in () if under_way.counted else under_way.plan.prefills:
                if under_way.computed[chunk.slot][0] in self.requests:
                    total += chunk.length
        assert scheduler.num_uncomputed_tokens == total, "num_uncomputed_tokens is wrong"
