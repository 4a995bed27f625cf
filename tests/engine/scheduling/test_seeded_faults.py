"""The model is worth something: each of these faults, planted in the real scheduler from outside, is caught by it.

A fault is planted where it would be made: a block forgotten in the pool, a hash without its parent, a limit read as one
more. Where the code has no such place, the plan itself is falsified on its way to the runner.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest

from inflight_engine.cache import offload, prefix
from inflight_engine.cache.block_pool import BlockPool
from inflight_engine.cache.prefix import block_hashes, root_hash
from inflight_engine.request import Request, TokenIds
from inflight_engine.scheduling import admission, class_queue, queues
from inflight_engine.scheduling import running as running_module
from inflight_engine.scheduling import scheduler as scheduler_module
from inflight_engine.scheduling.budget import fit_decodes, plan_prefills
from inflight_engine.scheduling.class_queue import ClassQueue
from inflight_engine.scheduling.deadlines import Deadlines
from inflight_engine.scheduling.plan import PrefillChunk, StepPlan
from inflight_engine.scheduling.policies.deadline import Deadline
from inflight_engine.scheduling.policies.fcfs import Fcfs
from inflight_engine.scheduling.policies.priority import Priority
from inflight_engine.scheduling.running import Running
from inflight_engine.scheduling.scheduler import Scheduler
from inflight_policies import service_counter
from inflight_policies.deadline import DeadlineQueue
from inflight_settings.scheduling import ServiceClass
from tests.engine.scheduling.workload import Workload

SEEDS, STEPS = range(4), 600
BUSY: dict[str, Any] = {
    "max_num_seqs": 4,
    "max_num_batched_tokens": 12,
    "num_blocks": 16,
    "block_size": 2,
    "max_model_len": 24,
    "kv_headroom": 0.0,
    "policy": "fcfs",
    "priority_aging": 2.0,
    "classes": (ServiceClass(),),
    "preemption": "recompute",
    "preemption_victim": "last_arrived",
    "num_host_blocks": 0,
    "prefix_caching": True,
    "lookahead": False,
}
TIER = {"preemption": "swap", "num_host_blocks": 40}
LOOKAHEAD = {"lookahead": True}
DEADLINE = {"policy": "deadline", "ttft_target": 4.0, "ttft_per_1k_tokens": 0.0, "late_share": 0.25, "late_wait": 40.0}
UNEQUAL = (ServiceClass("default", weight=4.0), ServiceClass("batch", weight=0.25))
PASSING = {
    "max_num_seqs": 6,
    "max_num_batched_tokens": 40,
    "num_blocks": 100,
    "max_model_len": 150,
    "classes": (ServiceClass("default", weight=4.0), ServiceClass("batch", weight=1.0)),
}
LONG_PASSING = PASSING | {
    "max_num_seqs": 12,
    "max_num_batched_tokens": 300,
    "num_blocks": 150,
    "max_model_len": 250,
    "kv_headroom": 0.3,
    "prefix_caching": False,
}
OUT_OF_TURN = "deadline: request .* overtakes|nobody is admitted"

Patch = pytest.MonkeyPatch
Plant = Callable[[Scheduler, Patch], None]


class Fault(NamedTuple):
    """`caught`: what the model must say. `fields`: of the configuration, where it differs from `BUSY`. `forces`:
    requests get tokens that they do not sample."""

    plant: Plant
    caught: str
    fields: Mapping[str, Any] = MappingProxyType({})
    forces: bool = False


def falsify(change: Callable[[StepPlan], StepPlan]) -> Plant:
    """The scheduler decides well, and its plan says something else."""

    def plant(scheduler: Scheduler, patch: Patch) -> None:
        schedule = scheduler.schedule

        def falsified(now: float) -> StepPlan | None:
            plan = schedule(now)
            return None if plan is None else change(plan)

        patch.setattr(scheduler, "schedule", falsified)

    return plant


def with_limits(max_num_seqs: int = 0, max_num_batched_tokens: int = 0) -> Plant:
    """Limits are read as so much more than they are."""

    def plant(scheduler: Scheduler, patch: Patch) -> None:
        schedule = scheduler.schedule

        def misread(now: float) -> StepPlan | None:
            true = scheduler.limits
            scheduler.limits = replace(
                true,
                max_num_seqs=true.max_num_seqs + max_num_seqs,
                max_num_batched_tokens=max(1, true.max_num_batched_tokens + max_num_batched_tokens),
            )
            try:
                return schedule(now)
            finally:
                scheduler.limits = true

        patch.setattr(scheduler, "schedule", misread)

    return plant


def wrap(part: str, method: str, wrapper: Callable[..., Any]) -> Plant:
    """`wrapper(original, *arguments)` instead of a method of a part of the scheduler."""

    def plant(scheduler: Scheduler, patch: Patch) -> None:
        owner: Any = scheduler
        for name in filter(None, part.split(".")):
            owner = getattr(owner, name)
        original = getattr(owner, method)
        patch.setattr(owner, method, lambda *arguments: wrapper(original, *arguments))

    return plant


def set_attribute(owner: Any, name: str, value: Any) -> Plant:
    return lambda scheduler, patch: patch.setattr(owner, name, value)


def with_deadlines(**changes: float) -> Plant:
    """Late requests have another share of the picks, or another longest wait."""

    def plant(scheduler: Scheduler, patch: Patch) -> None:
        patch.setattr(scheduler.queues.by_class["default"], "policy", Deadline(replace(scheduler.config, **changes)))

    return plant


def with_hashes(parents: Callable[[bytes], bytes], roots: Callable[[str, str], bytes] = root_hash) -> Plant:
    """Changes how a block's hash depends on the block before it, and on its tenant and salt."""

    def hashes(token_ids: TokenIds, block_size: int, parent: bytes) -> list[bytes]:
        chain: list[bytes] = []
        for start in range(0, len(token_ids) - block_size + 1, block_size):
            chain += block_hashes(token_ids[start : start + block_size], block_size, parents(parent))
            parent = chain[-1]
        return chain

    def plant(scheduler: Scheduler, patch: Patch) -> None:
        patch.setattr(prefix, "block_hashes", hashes)
        patch.setattr(prefix, "root_hash", roots)

    return plant


def resumes_whatever_it_says(add: Callable[[Request], None], request: Request) -> None:
    given, request.scheduling = request.scheduling, replace(request.scheduling, resumes=True)
    add(request)
    request.scheduling = given


def shares_all_blocks(scheduler: Scheduler, patch: Patch) -> None:
    for module in (prefix, running_module):
        patch.setattr(module, "shares_blocks", lambda request: True)


def changed(struct: Any, **fields: Any) -> Any:
    return msgspec.structs.replace(struct, **fields)


def last_start(plan: StepPlan, change: Callable[[Any], Any]) -> StepPlan:
    return changed(plan, starts=(*plan.starts[:-1], change(plan.starts[-1]))) if plan.starts else plan


def forgets_a_block(free, blocks):
    free(blocks[1:])


def allocates_and_frees_one(scheduler: Scheduler, patch: Patch) -> None:
    """A block that has an owner is free as well, and the counts agree."""
    pool = scheduler.running.pool
    allocate = pool.allocate

    def allocate_wrongly(count):
        blocks = allocate(count)
        if scheduler.running.table.num_running < 2:
            return blocks
        oldest = scheduler.running.table.table(int(scheduler.running.table.taken()[0]))
        return np.concatenate([blocks[1:], oldest[-1:]])

    patch.setattr(pool, "allocate", allocate_wrongly)


def loses_a_request(scheduler: Scheduler, patch: Patch) -> None:
    push, count = scheduler.queues.push, iter(range(1_000_000))
    patch.setattr(scheduler.queues, "push", lambda *arguments: push(*arguments) if next(count) != 9 else None)


def stalls(schedule):
    """Nothing is done while a single request is left."""
    return lambda scheduler, now: (
        None if scheduler.num_running + scheduler.num_waiting == 1 else schedule(scheduler, now)
    )


def overlooks_the_queue(head, clock):
    return None if clock % 5 == 3 else head(clock)


def takes_new_ones_first(scheduler: Scheduler, patch: Patch) -> None:
    head = ClassQueue.head
    patch.setattr(ClassQueue, "head", lambda queue, clock: queue.policy.head(clock) or head(queue, clock))


def asks_one_class_only(beside, head, clock):
    found, until = beside(head, clock)
    return [each for each in found if _class(each) == _class(head)], until


def _class(request: Request) -> str:
    return request.scheduling.service_class


def keeps_the_place_of_the_first_refused(scheduler: Scheduler, patch: Patch) -> None:
    """A request that did not fit stays ahead of those that the policy puts before it."""
    admission, head = scheduler.admission, scheduler.queues.head

    def first_refused(clock: int) -> Request | None:
        return next(iter(admission._refusals), None) or head(clock)

    patch.setattr(scheduler.queues, "head", first_refused)


def starts_the_wait_anew(scheduler: Scheduler, patch: Patch) -> None:
    """A request that passes another gives those behind it their time again."""
    start_beside, refusals = scheduler.admission._start_beside, scheduler.admission._refusals

    def start(head: Request, refusal: admission.Refusal, requests: list[Request], now: float) -> Any:
        found = start_beside(head, refusal, requests, now)
        if found is not None:
            refusals[head] = replace(refusal, since=now)
        return found

    patch.setattr(scheduler.admission, "_start_beside", start)


def runs_the_youngest(scheduler: Scheduler, patch: Patch) -> None:
    table = scheduler.running.table

    def fit_wrongly(running: Running, budget: int) -> None:
        table.order, order = -table.order, table.order
        fit_decodes(running, budget)
        table.order = order

    patch.setattr(scheduler_module, "fit_decodes", fit_wrongly)


def preempts_the_oldest(scheduler: Scheduler, patch: Patch) -> None:
    taken = scheduler.running.table.taken
    patch.setattr(scheduler.running.table, "taken", lambda: taken()[::-1])
    patch.setattr(scheduler.preemptor, "rule", lambda order, num_tokens, num_preemptions: int(np.argmin(order)))


def preempts_too_early(scheduler: Scheduler, patch: Patch) -> None:
    decodes, pool = scheduler.running.decodes, scheduler.running.pool
    growing = decodes.growing

    def growing_with_a_spare():
        slots = growing()
        # One more than needed is asked for wherever just enough is free.
        exact = slots is not None and len(slots) == pool.num_free and scheduler.num_running > 1
        return np.append(slots, slots[-1]) if exact and slots is not None else slots

    patch.setattr(decodes, "growing", growing_with_a_spare)


def knows_who_left_but_takes_their_tokens(scheduler: Scheduler, patch: Patch) -> None:
    """Slots are taken for whom they belong to now."""
    update, discarded = scheduler.update, scheduler.in_flight.discarded

    def discarded_wrongly(plan):
        return {slot for slot in discarded(plan) if scheduler.running.table.requests[slot] is None}

    def update_wrongly(plan, token_ids):
        with pytest.MonkeyPatch.context() as silent:
            silent.setattr(scheduler.in_flight, "discarded", discarded_wrongly)
            return update(plan, token_ids)

    patch.setattr(scheduler, "update", update_wrongly)


def plans_a_complete_request_again(scheduler: Scheduler, patch: Patch) -> None:
    running = scheduler.running
    patch.setattr(running, "end_decoding", lambda slot: None)
    patch.setattr(running, "take_last_token", lambda slot: None)


def finds_what_failed_steps_were_to_compute(scheduler: Scheduler, patch: Patch) -> None:
    patch.setattr(scheduler.running.pool, "unregister", lambda blocks: None)


def finds_what_failed_chunks_were_to_compute(scheduler: Scheduler, patch: Patch) -> None:
    fail_slots, pool = scheduler.fail_slots, scheduler.running.pool

    def forgetting_nothing(plan, slots):
        with pytest.MonkeyPatch.context() as silent:
            silent.setattr(pool, "unregister", lambda blocks: None)
            return fail_slots(plan, slots)

    patch.setattr(scheduler, "fail_slots", forgetting_nothing)


def lets_the_misled_go_on(scheduler: Scheduler, patch: Patch) -> None:
    patch.setattr(scheduler.in_flight, "misled", list)


def finds_only_what_is_computed(scheduler: Scheduler, patch: Patch) -> None:
    running = scheduler.running
    plan_chunk, end_chunk, register = running.plan_chunk, running.end_chunk, running.register

    def plan_silently(slot, budget):
        with pytest.MonkeyPatch.context() as silent:
            silent.setattr(running, "register", lambda *arguments: [])
            return plan_chunk(slot, budget)

    def end_and_register(chunk, token_id):
        register(running.table.request(chunk.slot), chunk.slot, chunk.start + chunk.length)
        end_chunk(chunk, token_id)

    patch.setattr(running, "plan_chunk", plan_silently)
    patch.setattr(running, "end_chunk", end_and_register)


def finds_what_is_not_planned(scheduler: Scheduler, patch: Patch) -> None:
    running = scheduler.running
    start = running.start

    def start_and_register(request, *arguments):
        start(request, *arguments)
        running.register(request, request.slot, request.num_tokens)

    patch.setattr(running, "start", start_and_register)


def forgets_the_later_plan(scheduler: Scheduler, patch: Patch) -> None:
    fail, in_flight = scheduler.fail, scheduler.in_flight

    def fail_wrongly(plan):
        if in_flight.counted is not None:
            in_flight.newest = None
        return fail(plan)

    patch.setattr(scheduler, "fail", fail_wrongly)


def takes_the_step_in_flight_for_done(leave, slot):
    """The tokens of a request that leaves include one that is not known."""
    return np.append(leave(slot), np.int32(0))


def plans_on_old_lengths(scheduler: Scheduler, patch: Patch) -> None:
    """A plan made ahead takes the step under way for one that never was."""
    decodes, in_flight = scheduler.running.decodes, scheduler.in_flight
    growing, num_tokens = decodes.growing, scheduler.running.table.num_tokens

    def growing_wrongly():
        under_way = [] if in_flight.counted is None else in_flight.counted.decode_slots
        num_tokens[under_way] -= 1
        try:
            return growing()
        finally:
            num_tokens[under_way] += 1

    patch.setattr(decodes, "growing", growing_wrongly)


def counts_what_a_step_under_way_samples(scheduler: Scheduler, patch: Patch) -> None:
    force, in_flight = scheduler.force, scheduler.in_flight

    def discarding_nothing(runs):
        with pytest.MonkeyPatch.context() as silent:
            silent.setattr(in_flight, "discard", lambda slot: None)
            return force(runs)

    patch.setattr(scheduler, "force", discarding_nothing)


def plans_prompts_first(running: Running, budget: int) -> list[PrefillChunk]:
    extended, prefilling = running.extended, running.prefilling
    running.extended = {}.keys()
    chunks = plan_prefills(running, budget)
    running.extended, running.prefilling = extended, {}.keys()
    chunks += plan_prefills(running, budget - sum(chunk.length for chunk in chunks))
    running.prefilling = prefilling
    return chunks


def drops_the_last_token(leave, slot):
    return leave(slot)[:-1]


def copies_out_elsewhere(plan: StepPlan) -> StepPlan:
    stores = plan.stores
    return plan if stores is None else changed(plan, stores=changed(stores, host_block_ids=stores.host_block_ids[::-1]))


def copies_back_in_another_order(plan: StepPlan) -> StepPlan:
    return last_start(plan, lambda start: changed(start, host_block_ids=start.host_block_ids[::-1]))


def copies_too_few(plan: StepPlan) -> StepPlan:
    stores = plan.stores
    if stores is None or len(stores.block_ids) < 2:
        return plan
    few = changed(stores, block_ids=stores.block_ids[:-1], host_block_ids=stores.host_block_ids[:-1])
    return changed(plan, stores=few)


def stores_over_what_is_loaded(scheduler: Scheduler, patch: Patch) -> None:
    """Hold what a plan loads no longer than it takes to look for it."""
    offload, load = scheduler.offload, scheduler.offload.load

    def load_and_release(hashes, num_before):
        places = load(hashes, num_before)
        offload.release()
        return places

    patch.setattr(offload, "load", load_and_release)


def counts_loads_as_used(scheduler: Scheduler, patch: Patch) -> None:
    """Blocks that the device has too are given up as if they were in host memory alone."""
    pool, free = scheduler.offload._tier._pool, scheduler.offload._tier._pool.free
    patch.setattr(pool, "free", lambda blocks, **_: free(blocks))


def copies_over_what_comes(scheduler: Scheduler, patch: Patch) -> None:
    """The next plan copies to places to which something comes from the disk."""
    offload, fetch = scheduler.offload, scheduler.offload.fetch

    def fetch_and_copy(number, hashes):
        copies = dict(offload._copies)
        fetched = fetch(number, hashes)
        patch.setattr(offload, "_copies", copies)
        return fetched

    patch.setattr(offload, "fetch", fetch_and_copy)


def skips_a_decode(plan: StepPlan) -> StepPlan:
    if len(plan.decode_slots) < 2:
        return plan
    return changed(plan, decode_slots=plan.decode_slots[:-1], num_tokens=plan.num_tokens - 1)


def skips_a_token(plan: StepPlan) -> StepPlan:
    return changed(
        plan,
        prefills=tuple(changed(each, start=each.start + 1, length=each.length - 1) for each in plan.prefills),
        num_tokens=plan.num_tokens - len(plan.prefills),
    )


def gives_the_budget_to_the_last(plan: StepPlan) -> StepPlan:
    """The newcomer's chunk grows at the cost of whoever was there before."""
    if len(plan.prefills) < 2 or plan.prefills[0].length < 2 or plan.prefills[-1].samples:
        return plan
    first, *others, last = plan.prefills
    first = changed(first, length=first.length - 1, samples=False)
    return changed(plan, prefills=(first, *others, changed(last, length=last.length + 1)))


FAULTS = {
    "a block leaks": Fault(wrap("running.pool", "free", forgets_a_block), "blocks are in use where block tables"),
    "a block that has an owner is given out": Fault(allocates_and_frees_one, "given out while it is owned|are in use"),
    "a shared block is not counted": Fault(
        wrap("running.pool", "share", lambda share, blocks: share(blocks[:-1])),
        "blocks are in use where block tables|a table holds a block twice",
    ),
    "a hit is one block short": Fault(
        wrap("running.pool", "match", lambda match, hashes: match(hashes[:-1])), "tokens are in the prefix cache"
    ),
    "a hit is one block too long": Fault(
        falsify(
            lambda plan: last_start(
                plan,
                lambda start: (
                    changed(start, num_computed_tokens=start.num_computed_tokens + 2)
                    if start.num_computed_tokens + 2 < len(start.token_ids)
                    else start
                ),
            )
        ),
        "blocks that do not hold its tokens|is given out while it is owned|a chunk skips",
    ),
    "a block's hash forgets what came before": Fault(
        with_hashes(lambda parent: b""),
        "do not hold its tokens|the content of block|named twice",
        {"block_size": 1, "num_blocks": 32},
    ),
    "tenants share blocks": Fault(
        with_hashes(lambda parent: parent, roots=lambda tenant, salt: b""),
        "do not hold its tokens|the content of block",
    ),
    "a continued request goes first that should wait": Fault(
        wrap("", "add", resumes_whatever_it_says), "the state of a new request is wrong"
    ),
    "a prompt to be scored takes what others computed": Fault(
        shares_all_blocks,
        "do not hold its tokens|the content of block|not all of its prompt is scored",
    ),
    "what was used last is evicted first": Fault(
        wrap("running.pool", "free", lambda free, blocks: free(blocks[::-1])), "used less recently"
    ),
    "blocks are copied out in another order": Fault(falsify(copies_out_elsewhere), "something else|do not hold", TIER),
    "blocks are loaded in another order": Fault(falsify(copies_back_in_another_order), "do not hold its tokens", TIER),
    "a block is not copied out": Fault(falsify(copies_too_few), "not what the device lost", TIER),
    "places of the tier leak": Fault(
        wrap("offload", "release", lambda release: None), "host blocks leaked|should be|two contents", TIER
    ),
    "what is loaded is given up in the same plan": Fault(
        stores_over_what_is_loaded,
        "host blocks leaked|should be|two contents|do not hold its tokens",
        TIER | {"num_host_blocks": 9},
    ),
    "what the device has too is given up last": Fault(
        counts_loads_as_used,
        "host blocks leaked|should be|two contents|do not hold its tokens",
        TIER | {"num_host_blocks": 9},
    ),
    "what a failed step did not load or copy out is found": Fault(
        finds_what_failed_steps_were_to_compute,
        "lost though|do not hold its tokens|in the prefix cache|host blocks leaked|should be",
        TIER,
    ),
    "what a failed step did not copy out is found": Fault(
        wrap("offload", "forget", lambda forget: None), "host blocks leaked|should be|do not hold its tokens", TIER
    ),
    "what is damaged is loaded again": Fault(
        wrap("offload", "fail", lambda fail, places, hashes: None), "host blocks leaked|should be", TIER
    ),
    "what did not come from the disk is found": Fault(
        wrap("offload", "fetched", lambda fetched, number, count: fetched(number, 10_000)),
        "host blocks leaked|should be|do not hold its tokens",
        TIER,
    ),
    "what comes from the disk is held for ever": Fault(
        wrap("offload._tier", "store", lambda store, places, hashes: None),
        "host blocks leaked|should be|two contents|come from the disk|gets a place",
        TIER,
    ),
    "the next plan copies over what comes from the disk": Fault(
        copies_over_what_comes,
        "not what the device lost",
        TIER | {"num_host_blocks": 2},
        forces=True,
    ),
    "it loads though computing is cheaper": Fault(
        set_attribute(offload, "loading_is_cheaper", lambda *arguments: True),
        "blocks are loaded, and 0 should be|not what the device lost",
        TIER | {"preemption": "auto"},
    ),
    "it stores what no request can pay for": Fault(
        lambda scheduler, patch: patch.setattr(scheduler.offload, "_longest", 10**6),
        "not what the device lost",
        TIER | {"preemption": "auto"},
    ),
    "tenants load from each other": Fault(
        with_hashes(lambda parent: parent, roots=lambda tenant, salt: b""),
        "do not hold its tokens|the content of block|not what the device lost",
        TIER,
    ),
    "the token budget is off by one": Fault(with_limits(max_num_batched_tokens=1), "over the budget|not due"),
    "a token of the budget is never used": Fault(
        with_limits(max_num_batched_tokens=-1), "budget is left over|loses a step|nobody is admitted"
    ),
    "max_num_seqs is off by one": Fault(with_limits(max_num_seqs=1), "admission beyond max_num_seqs|overtakes"),
    "admission takes the headroom": Fault(
        lambda scheduler, patch: patch.setattr(scheduler.admission, "headroom_blocks", 0),
        "admission takes the headroom",
        {"kv_headroom": 0.4},
    ),
    "a running decode is skipped": Fault(falsify(skips_a_decode), "a running decode loses a step"),
    "a small budget runs the youngest": Fault(
        runs_the_youngest, "must run the oldest", {"max_num_seqs": 8, "num_blocks": 40}
    ),
    "a prompt token is skipped": Fault(falsify(skips_a_token), "a chunk"),
    "a later prompt takes an earlier one's budget": Fault(
        falsify(gives_the_budget_to_the_last),
        "before one that was admitted earlier",
        {"block_size": 1, "num_blocks": 60},
    ),
    "a table does not grow": Fault(falsify(lambda plan: changed(plan, growth=None)), "a token has no block"),
    "a released slot is not reported": Fault(
        falsify(lambda plan: changed(plan, releases=plan.releases[1:])), "slots not released"
    ),
    "a request is lost": Fault(loses_a_request, "num_waiting is wrong"),
    "the last request is never served": Fault(
        set_attribute(Scheduler, "schedule", stalls(Scheduler.schedule)), "no step though requests are there"
    ),
    "the queue is overlooked": Fault(
        wrap("queues", "head", overlooks_the_queue),
        "nobody is admitted though the next request fits|no step though requests are there",
    ),
    "the last come is first served": Fault(
        set_attribute(Fcfs, "key", lambda policy, request: -request.order),
        "fcfs: request .* overtakes|nobody is admitted",
    ),
    "priorities do not age": Fault(
        set_attribute(Priority, "key", lambda policy, request: request.scheduling.priority),
        "priority: request .* overtakes|nobody is admitted",
        {"policy": "priority"},
    ),
    "late requests never have their turn": Fault(
        with_deadlines(late_share=1e-9),
        OUT_OF_TURN,
        DEADLINE,
    ),
    "the share of late requests is one of picks": Fault(
        lambda scheduler, patch: patch.setattr(
            scheduler.queues.by_class["default"].policy, "_queue", DeadlineQueue(lambda request: 1, late_share=0.25)
        ),
        OUT_OF_TURN,
        DEADLINE,
    ),
    "late requests that have waited for long get no more picks": Fault(
        with_deadlines(late_wait=1e9),
        OUT_OF_TURN,
        DEADLINE | {"late_share": 0.05, "late_wait": 5.0, "max_num_seqs": 2},
    ),
    "late requests go first": Fault(
        with_deadlines(late_share=1.0),
        OUT_OF_TURN,
        DEADLINE,
    ),
    "time stands still": Fault(
        wrap("queues", "pass_time", lambda pass_time, now: pass_time(0.0)), OUT_OF_TURN, DEADLINE
    ),
    "a head that does not fit is not looked at again": Fault(
        wrap("admission", "head_moved", lambda head_moved, now: False),
        "nobody is admitted",
        DEADLINE | {"max_num_seqs": 16, "kv_headroom": 0.35},
    ),
    "a long prompt has no longer a target": Fault(
        lambda scheduler, patch: patch.setattr(
            scheduler,
            "deadlines",
            Deadlines(replace(scheduler.config, ttft_per_1k_tokens=0.0), scheduler.running.pool, scheduler.offload),
        ),
        "the latest start of a request is wrong",
        DEADLINE | {"ttft_per_1k_tokens": 100.0},
    ),
    "what the prefix cache has is predicted as computed": Fault(
        lambda scheduler, patch: patch.setattr(
            scheduler, "deadlines", Deadlines(scheduler.config, BlockPool(16, 2), scheduler.offload)
        ),
        "the latest start of a request is wrong",
        DEADLINE,
    ),
    "only a policy that orders by deadlines looks at them": Fault(
        wrap("deadlines", "_target", lambda target, request: math.inf),
        "the longest wait of a request is wrong",
        DEADLINE | {"policy": "fcfs"},
    ),
    "a request waits beyond its timeout": Fault(
        lambda scheduler, patch: patch.setattr(scheduler.deadlines, "_timeouts", {"default": math.inf}),
        "the longest wait of a request is wrong",
        {"classes": (ServiceClass(request_timeout=4.0),)},
    ),
    "a request waits beyond half of the queue timeout": Fault(
        lambda scheduler, patch: patch.setattr(scheduler.deadlines, "_longest_wait", math.inf),
        "the longest wait of a request is wrong",
        {"late_wait": 2.0},
    ),
    "a request that is late does not wait": Fault(
        wrap(
            "deadlines",
            "longest_wait",
            lambda longest_wait, request, *others: (
                0.0 if request.latest_start < others[-1] else longest_wait(request, *others)
            ),
        ),
        "the longest wait of a request is wrong",
        DEADLINE,
    ),
    "output tokens cost a tenant nothing": Fault(
        set_attribute(service_counter, "OUTPUT_TOKEN", 0),
        "fair: request .* overtakes|nobody is admitted though the next request fits",
        {"policy": "fair"},
    ),
    "class weights mean nothing": Fault(
        set_attribute(queues, "unit_of_weight", lambda weight: 1),
        "overtakes|nobody is admitted though the next request fits",
        {"classes": (ServiceClass("default", weight=4.0), ServiceClass("batch", weight=0.25))},
    ),
    "new requests overtake resumed ones": Fault(takes_new_ones_first, "overtakes"),
    "a new request overtakes one that resumes, whatever the tenants hold": Fault(
        wrap("admission", "_holds_fewer", lambda holds_fewer, request, head: True), "overtakes request .* may not"
    ),
    "a request that does not fit is passed for ever": Fault(
        set_attribute(admission, "PASSING_SECONDS", 1e9), "overtakes request .* may not", PASSING
    ),
    "nobody passes a request that does not fit": Fault(
        wrap("queues", "beside", lambda beside, head, clock: ([], math.inf)),
        "nobody is admitted though a request may pass",
        PASSING,
    ),
    "those that pass take what comes free": Fault(
        wrap("running", "blocks_since", lambda blocks_since, num_starts: 0), "overtakes request .* may not", PASSING
    ),
    "those that pass take what was left for those they may not pass": Fault(
        wrap("running", "blocks_beside", lambda blocks_beside, left: 0), "overtakes request .* may not", PASSING
    ),
    "a request waits for large ones that keep another from starting anyway": Fault(
        wrap("running", "blocks_beside", lambda blocks_beside, left: left),
        "nobody is admitted though a request may pass",
        PASSING,
    ),
    "a request that does not fit keeps its place before more urgent ones": Fault(
        keeps_the_place_of_the_first_refused, "overtakes request|nobody is admitted", PASSING | {"policy": "priority"}
    ),
    "a request that does not fit keeps its place before a tenant that was served less": Fault(
        keeps_the_place_of_the_first_refused, "overtakes request|nobody is admitted", PASSING | {"policy": "fair"}
    ),
    "a class of more weight passes no longer than others": Fault(
        wrap("queues", "weight_ratio", lambda ratio, *classes: 1.0),
        "nobody is admitted though a request may pass",
        LONG_PASSING,
    ),
    "each that passes gives the next its time again": Fault(
        starts_the_wait_anew, "overtakes request .* may not", LONG_PASSING
    ),
    "only the class of the blocked request is asked": Fault(
        wrap("queues", "beside", asks_one_class_only),
        "nobody is admitted though a request may pass|before one that may too",
        PASSING,
    ),
    "the last of those that may pass starts first": Fault(
        wrap("queues", "beside", lambda beside, head, clock: (beside(head, clock)[0][::-1], math.inf)),
        "before one that may too",
        PASSING | {"prefix_caching": False},
    ),
    "only the next one is asked": Fault(
        set_attribute(class_queue, "NUM_BEHIND", 1), "nobody is admitted though a request may pass", PASSING
    ),
    "the tenant with the fewest blocks gives way": Fault(
        wrap("running", "blocks_by_tenant", lambda held: {tenant: -blocks for tenant, blocks in held().items()}),
        "the victim is not the one|may not",
        {"max_num_seqs": 6},
    ),
    "the wrong one is preempted": Fault(
        lambda scheduler, patch: patch.setattr(
            scheduler.preemptor, "rule", lambda order, *others: int(np.argmin(order))
        ),
        "the victim is not the one that last_arrived chooses",
        {"max_num_seqs": 6},
    ),
    "the class of most weight gives way": Fault(
        wrap("queues", "standing", lambda standing, request: (-standing(request)[0], 0)),
        "the victim is not the one",
        {"max_num_seqs": 6, "classes": (ServiceClass("default", weight=4.0), ServiceClass("batch", weight=0.25))},
    ),
    "the most urgent gives way": Fault(
        wrap("queues", "standing", lambda standing, request: (0.0, -standing(request)[1])),
        "the victim is not the one",
        {"max_num_seqs": 6, "policy": "priority"},
    ),
    "who resumes overtakes a higher priority": Fault(
        lambda scheduler, patch: patch.setattr(
            scheduler.queues.by_class["default"].policy, "orders_by_priority", False
        ),
        "priority: request .* overtakes|nobody is admitted",
        {"policy": "priority"},
    ),
    "the longest is spared": Fault(
        lambda scheduler, patch: patch.setattr(
            scheduler.preemptor, "rule", lambda order, tokens, _: int(np.argmin(tokens))
        ),
        "the victim is not the one that longest_first chooses",
        {"max_num_seqs": 6, "preemption_victim": "longest_first"},
    ),
    "the oldest is preempted": Fault(preempts_the_oldest, "the oldest running request is preempted"),
    "it preempts while blocks are free": Fault(preempts_too_early, "preempted though blocks did not run out"),
    "a preempted request loses a token": Fault(
        wrap("running.decodes", "leave", drops_the_last_token),
        "a preempted request loses tokens",
        {"prefix_caching": False},
    ),
    "it is forgotten who left since a plan was made": Fault(
        wrap("in_flight", "discard", lambda discard, slot: None),
        "discarded_slots is not who has ended|is empty",
        LOOKAHEAD,
    ),
    "a late token goes to the slot's new owner": Fault(
        knows_who_left_but_takes_their_tokens,
        "discarded_slots|must end with|blocks but . hashes|^[0-9]+$|another token|lost though|cannot go from",
        LOOKAHEAD,
    ),
    "a complete request is planned again": Fault(
        plans_a_complete_request_again, "a slot decodes that is not due", LOOKAHEAD
    ),
    "what a failed step was to compute is found": Fault(
        finds_what_failed_steps_were_to_compute,
        "tokens are in the prefix cache|lost though|used less recently|do not hold its tokens",
        LOOKAHEAD,
    ),
    "what a failed chunk was to compute is found": Fault(
        finds_what_failed_chunks_were_to_compute,
        "tokens are in the prefix cache|lost though|used less recently|do not hold its tokens|is put back is wrong",
    ),
    "who found what a failed chunk was to compute goes on": Fault(
        lets_the_misled_go_on, "the state of a request that is put back is wrong|lost though", LOOKAHEAD
    ),
    "what is planned is not found before it is computed": Fault(
        finds_only_what_is_computed,
        "tokens are in the prefix cache|lost though|used less recently|nobody is admitted",
        LOOKAHEAD,
    ),
    "what is not planned is found": Fault(
        finds_what_is_not_planned,
        "tokens are in the prefix cache|lost though|used less recently|do not hold its tokens",
    ),
    "a request preempted ahead loses its token": Fault(
        set_attribute(scheduler_module, "runs_out", lambda running, budget: False),
        "with a token that nobody knows|is empty",
        LOOKAHEAD,
    ),
    "a step that fell with the one before leaves its requests running": Fault(
        forgets_the_later_plan,
        "the state of a request that is put back is wrong",
        LOOKAHEAD | {"max_num_seqs": 8, "num_blocks": 40},
    ),
    "a token that is not known is hashed": Fault(
        wrap("running.decodes", "leave", takes_the_step_in_flight_for_done),
        "tokens are in the prefix cache|lost though|used less recently|loses tokens",
        LOOKAHEAD,
    ),
    "a plan made ahead grows tables as if no step were under way": Fault(
        plans_on_old_lengths, "a table grows|a token has no block|nothing is planned|growth leaves", LOOKAHEAD
    ),
    "the runner is not told of forced tokens": Fault(
        falsify(lambda plan: changed(plan, extensions=())), "does not know tokens that it is to compute", forces=True
    ),
    "forced tokens follow one that a step under way samples": Fault(
        counts_what_a_step_under_way_samples, "discarded_slots is not who has ended", LOOKAHEAD, forces=True
    ),
    "forced tokens cost a tenant nothing": Fault(
        wrap("queues", "generated", lambda generated, *arguments: None),
        "fair: request .* overtakes|nobody is admitted though the next request fits",
        {"policy": "fair"},
        forces=True,
    ),
    "forced tokens take blocks that nobody counts": Fault(
        wrap("running.table", "extend", lambda extend, slot, blocks, computed: extend(slot, blocks[:0], computed)),
        "blocks are in use where block tables",
        forces=True,
    ),
    "extended requests wait behind prompts": Fault(
        set_attribute(scheduler_module, "plan_prefills", plans_prompts_first),
        "before one that was admitted earlier",
        forces=True,
    ),
    "a request ends too late": Fault(
        wrap("running.decodes", "advance", lambda advance: (advance(), [])[1]),
        "must end with their last token",
    ),
}


def run(fault: Fault, plant: bool, patch: Patch) -> None:
    for seed in SEEDS:
        workload = Workload(seed, **BUSY | fault.fields)
        workload.forced_share = 0.3 * fault.forces
        if plant:
            fault.plant(workload.driver.scheduler, patch)
        for _ in range(STEPS):
            workload.step()


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_caught(name, monkeypatch):
    with pytest.raises((AssertionError, LookupError, ValueError), match=FAULTS[name].caught):
        run(FAULTS[name], True, monkeypatch)


@pytest.mark.parametrize("fields", {str(fault.fields): fault.fields for fault in FAULTS.values()}.values(), ids=str)
def test_the_same_load_without_the_fault_breaks_no_rule(fields, monkeypatch):
    run(Fault(lambda scheduler, patch: None, "", fields), False, monkeypatch)
