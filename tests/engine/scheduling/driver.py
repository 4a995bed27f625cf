"""Drives the real scheduler with the model runner and the rules, and collects what each request generates."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from inflight_cost.model import CostModel
from inflight_engine.block_events import BlockEvent
from inflight_engine.cache.block_pool import BlockPool
from inflight_engine.cache.loading import LoadRates
from inflight_engine.request import FinishReason, ForcedRun, Request, SamplingParams, TokenIds
from inflight_engine.scheduling.config import SchedulerConfig
from inflight_engine.scheduling.plan import SlotStart, StepPlan
from inflight_engine.scheduling.scheduler import Scheduler
from inflight_settings.limits import Limits
from tests.engine.scheduling.model_runner import UNWRITTEN, Computed, ModelRunner, reference_output
from tests.engine.scheduling.rules import Rules
from tests.engine.scheduling_fields import gathered

SMALL = SchedulerConfig(Limits(4, 16), num_blocks=16, block_size=4, max_model_len=64)

Fails: TypeAlias = Callable[[StepPlan], bool]
FailingSlots: TypeAlias = Callable[[StepPlan], Set[int]]
Forces: TypeAlias = Callable[[], int]


def never(plan: StepPlan) -> bool:
    return False


def no_slots(plan: StepPlan) -> Set[int]:
    return frozenset()


def nothing() -> None:
    pass


def no_tokens() -> int:
    return 0


@dataclass(slots=True)
class Launched:
    """A step under way.

    Attributes:
        owners: request of each slot it computes, as it was planned.
        token_ids: that it sampled; None where its launch broke. written: entries of blocks that it computed.
        computed: by request, in the plan's order, also where its launch broke: the scheduler does not know yet.
        breaks: it gives no tokens.
        put_back: slots whose requests were put back since.
    """

    plan: StepPlan
    owners: dict[int, int]
    token_ids: TokenIds | None
    written: list[tuple[int, int]]
    computed: list[Computed]
    breaks: bool
    put_back: set[int] = field(default_factory=set)

    @property
    def breaks_in_launch(self) -> bool:
        return self.token_ids is None


class Driver:
    """
    Args:
        lookahead: each step is planned and launched before the tokens of the one before are taken in.
        max_num_seqs, max_num_batched_tokens: capacity, and the limits at first.
        events: as in `BlockPool`.
        fields: of `SchedulerConfig`, instead of `SMALL`'s.

    Attributes:
        now: what the scheduler is told, never less than before.
        outputs: tokens generated so far by each request that ever came; each is checked as it comes.
        finished: why each request that ended did.
        admission_order: request of each start, resumed ones too.
        slot_owner: request that had each slot last.
        expected: what each request that did not end generates alone.
        plan: what the scheduler gave last, also when it broke a rule.
        plans: launched in the last iteration; two where no step was under way before it, with lookahead.
        under_way: with lookahead, the step that is launched and not taken in.
        coming: by number of a fetch, what comes from a disk, and to which places of the tier.
        unscored: of requests that ask for log-probabilities of their prompts, the positions that were not computed yet.
        late_tokens: sampled for requests that had ended. put_back: requests that a broken step before theirs cost
            their slot. misled: those that found blocks of a step one of whose chunks was not computed. waited: how
            often nothing was planned before the tokens of the step under way. forced: tokens that requests got without
            sampling them. damaged: loads of what was not stored. unforced: how often there was no room for such.
    """

    def __init__(
        self,
        *,
        max_num_seqs: int = SMALL.capacity.max_num_seqs,
        max_num_batched_tokens: int = SMALL.capacity.max_num_batched_tokens,
        lookahead: bool = False,
        events: list[BlockEvent] | None = None,
        **fields: Any,
    ) -> None:
        config = replace(SMALL, capacity=Limits(max_num_seqs, max_num_batched_tokens), **fields)
        self.config = config
        self.scheduler = Scheduler(config, make_pool=partial(BlockPool, events=events))
        self.runner = ModelRunner(max_num_seqs, config.num_blocks, config.block_size, config.num_host_blocks)
        self.rules = Rules(config, self.runner)
        self.outputs: dict[int, list[int]] = {}
        self.finished: dict[int, FinishReason] = {}
        self.admission_order: list[int] = []
        self.slot_owner: dict[int, int] = {}
        self.expected: dict[int, list[int]] = {}
        self.plan: StepPlan | None = None
        self.plans: list[StepPlan] = []
        self.lookahead = lookahead
        self.now = 0.0
        self.under_way: Launched | None = None
        self.late_tokens = self.put_back = self.misled = self.waited = self.forced = self.unforced = self.damaged = 0
        self.coming: dict[int, tuple[list[list[int]], list[int]]] = {}
        self.num_fetches = 0
        self.unscored: dict[int, set[int]] = {}
        self._domains: dict[tuple[str, str] | int, int] = {}

    def add(
        self,
        request_id: int,
        prompt: Sequence[int],
        max_tokens: int,
        stop: tuple[int, ...] = (),
        *,
        scored: bool = False,
        generated: int = 0,
        **fields: Any,
    ) -> Request:
        """`scored`: it asks for log-probabilities of its prompt. `generated`: tokens of its output with which it comes,
        at most all but the last. `fields`: of `Request`, such as `arrival_time` (0 unless given), `priority`,
        `tenant`."""
        sampling = SamplingParams(max_tokens=max_tokens, stop_token_ids=stop, prompt_logprobs=1 if scored else None)
        expected = reference_output(prompt, max_tokens, stop)
        output = expected[: min(generated, len(expected) - 1)]
        request = Request(request_id, np.array(prompt, np.int32), sampling, **{"arrival_time": 0.0, **gathered(fields)})
        request.output_token_ids = np.array(output, np.int32)
        self.scheduler.add(request)
        shared = (request.scheduling.tenant, request.scheduling.cache_salt)
        domain = self._domains.setdefault(request_id if scored else shared, len(self._domains))
        if scored:
            self.unscored[request_id] = set(range(1, len(prompt)))
        self.runner.add(request_id, [*prompt, *output], domain)
        self.rules.added(request)
        waits = self.scheduler.longest_wait(request, self.now)
        assert waits == self.rules.longest_wait(request, self.now), "the longest wait of a request is wrong"
        self.outputs[request_id] = output
        self.expected[request_id] = expected
        return request

    def set_limits(self, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        self.scheduler.limits = self.rules.limits = Limits(max_num_seqs, max_num_batched_tokens)

    def set_rates(self, rates: LoadRates | None) -> None:
        self.scheduler.offload.rates = self.rules.rates = rates

    def set_prefill_cost(self, cost: CostModel | None) -> None:
        self.scheduler.deadlines.cost = self.rules.prefill_cost = cost

    def set_class_weights(self, weights: dict[str, float]) -> None:
        self.scheduler.set_class_weights(weights)
        self.rules.queues.class_weights.update(weights)
        assert self.scheduler.class_weights == self.rules.queues.class_weights

    def cancel(self, request_id: int, reason: FinishReason = FinishReason.ABORT) -> bool:
        known = self.scheduler.cancel(request_id, reason)
        assert known == (request_id in self.rules.requests), "cancel says wrongly whether the request was there"
        if known:
            self._end(request_id, reason)
            self.rules.check_counters(self.scheduler)
        return known

    def fetch(self, request_id: int) -> int:
        """Blocks of a request's tokens begin to come from a disk; returns the number of the fetch."""
        number = self.num_fetches
        self.num_fetches += 1
        hashes = self.rules.requests[request_id].request.block_hashes
        size = self.config.block_size
        contents = self.runner.sequences[request_id].stamps[size - 1 :: size][: len(hashes)]
        indices, places = self.scheduler.offload.fetch(number, hashes)
        self.rules.tier.fetch(number, contents, indices, places.tolist())
        stamps = self.runner.sequences[request_id].stamps
        self.coming[number] = [stamps[at * size : (at + 1) * size] for at in indices], places.tolist()
        self.rules.check_counters(self.scheduler)
        return number

    def fetched(self, number: int, count: int) -> None:
        """So many blocks of a fetch have come; the places of the rest have anything."""
        for at, (stamps, place) in enumerate(zip(*self.coming.pop(number), strict=True)):
            self.runner.host_memory[place][:] = stamps if at < count else [UNWRITTEN] * len(stamps)
        self.scheduler.offload.fetched(number, count)
        self.rules.tier.fetched(number, count)
        self.rules.check_counters(self.scheduler)

    def sleep(self) -> bool:
        """Forget the cache, as an engine without requests does; False: there are some."""
        if self.rules.requests or self.under_way is not None:
            return False
        self.scheduler.forget_cache()
        self.rules.forget_cache()
        for block in [*self.runner.memory, *self.runner.host_memory]:
            block[:] = [UNWRITTEN] * len(block)
        self.rules.check_counters(self.scheduler)
        return True

    def step(
        self,
        fails: Fails = never,
        meanwhile: Callable[[], None] = nothing,
        failing_slots: FailingSlots = no_slots,
        forces: Forces = no_tokens,
        damaged: FailingSlots = no_slots,
    ) -> StepPlan | None:
        """Runs an iteration and returns its plan: with lookahead the next one is launched before it is taken in.

        Where `fails` says so the runner breaks in a step, and the requests that it was for end: it breaks when it is
        launched, and with lookahead every other time when its tokens are collected. `meanwhile` happens while steps are
        under way. `failing_slots`: slots that a step has no memory for, where it does not break. `forces`: how many
        tokens must follow one that was sampled. `damaged`: slots for which a step loads something else than was stored.
        """
        self.plans = []
        step = self.under_way or self._launch(fails, ahead=False)
        self.under_way = None
        if step is None:
            return None
        if self.lookahead and not step.breaks_in_launch:
            self.rules.counted(step.plan)
            self.under_way = self._launch(fails, ahead=True)
        meanwhile()
        self._take_in(step, failing_slots, forces, damaged)
        return step.plan

    def _launch(self, fails: Fails, *, ahead: bool) -> Launched | None:
        self.rules.queues.now = self.now
        plan = self.plan = self.scheduler.schedule(self.now)
        if plan is None:
            self.rules.nothing_planned(ahead=ahead)
            self.waited += bool(self.rules.requests)
            return None
        self.rules.before(plan, ahead=ahead)
        decoding = set(plan.decode_slots.tolist())
        attended = sum(len(each.stamps) for each in self.runner.running if each.slot in decoding)
        assert self.scheduler.num_attended_tokens == attended, "num_attended_tokens is wrong"
        breaks = fails(plan)
        token_ids, written = None, []
        self.plans.append(plan)
        if breaks and not (self.lookahead and plan.step % 2):
            self.runner.fail(plan)
            self.rules.failed(plan)
        else:
            token_ids = self.runner.execute(plan)
            written = list(self.runner.written)
            self.rules.after(plan)
        for start in plan.starts:
            self.slot_owner[start.slot] = start.request_id
            self.admission_order.append(start.request_id)
        computing = plan.decode_slots.tolist() + [chunk.slot for chunk in plan.prefills]
        owners = {slot: self.slot_owner[slot] for slot in computing}
        return Launched(plan, owners, token_ids, written, self.runner.computed, breaks)

    def _take_in(self, step: Launched, failing_slots: FailingSlots, forces: Forces, damaged: FailingSlots) -> None:
        plan = step.plan
        left = {slot for slot, request_id in step.owners.items() if request_id in self.finished} | step.put_back
        assert self.scheduler.discarded_slots(plan) & step.owners.keys() == left, "discarded_slots is not who has ended"
        if step.breaks:
            self._fail(step)
            return
        assert step.token_ids is not None
        failing = failing_slots(plan)
        if failing:
            self._fail_slots(step, failing)
        starts = [start for start in plan.starts if start.host_block_ids and start.slot in damaged(plan)]
        if starts:
            self._fail_loads(step, starts)
        left |= failing | step.put_back
        complete = set()
        for chunk in plan.prefills:
            if chunk.slot not in left:
                # A token is scored with the one before it.
                computed = range(chunk.start + 1, chunk.start + chunk.length + 1)
                self.unscored.get(step.owners[chunk.slot], set()).difference_update(computed)
        for slot, token in zip(plan.sampled_slots.tolist(), step.token_ids.tolist(), strict=True):
            if slot in left:
                self.late_tokens += 1
                continue
            request_id = step.owners[slot]
            assert not self.unscored.get(request_id), (
                f"request {request_id} has tokens, and not all of its prompt is scored"
            )
            output, expected = self.outputs[request_id], self.expected[request_id]
            assert token == expected[len(output)], f"request {request_id} generates another token than alone"
            output.append(token)
            if len(output) == len(expected):
                complete.add(request_id)
        self.rules.confirmed(plan)
        ended = set()
        for request in self.scheduler.update(plan, step.token_ids):
            assert request.finish_reason is not None
            ended.add(request.request_id)
            stopped = self.outputs[request.request_id][-1] in request.sampling.stop_token_ids
            assert request.finish_reason == (FinishReason.STOP if stopped else FinishReason.LENGTH)
            self._end(request.request_id, request.finish_reason)
        assert ended == complete, "requests must end with their last token, and no others"
        self._force([slot for slot in plan.sampled_slots.tolist() if slot not in left], step.owners, forces)
        self.rules.check_counters(self.scheduler)

    def _force(self, slots: list[int], owners: dict[int, int], forces: Forces) -> None:
        """Some requests that sampled a token get those that follow, as alone, up to one that ends them."""
        runs = []
        for slot in slots:
            output, expected = self.outputs[owners[slot]], self.expected.get(owners[slot], [])
            request = self.rules.requests[owners[slot]].request if expected else None
            stops = () if request is None else request.sampling.stop_token_ids
            follow = [each for each in expected[len(output) :][: forces()] if each not in stops]
            if follow:
                runs.append(ForcedRun(slot, np.array(follow, np.int32), ends=False))
        tables = {run.slot: len(self.runner.sequences[owners[run.slot]].blocks) for run in runs}
        taken, full = self.scheduler.force(runs)
        lengths = {run.slot: len(run.token_ids) for run in taken}
        assert [*lengths] == [run.slot for run in runs if run.slot in lengths], "runs are taken out of order"
        for run in runs:
            request_id, tokens = owners[run.slot], run.token_ids.tolist()
            output = self.outputs[request_id]
            num_known = self.rules.requests[request_id].request.num_prompt_tokens + len(output)
            if run.slot not in lengths:
                self.rules.check_not_extended(request_id, num_known, len(tokens))
                self.unforced += 1
                continue
            assert lengths[run.slot] == len(tokens), "a run is cut though the request is longer"
            output += tokens
            self.forced += len(tokens)
            if len(output) == self.rules.requests[request_id].request.sampling.max_tokens:
                known = self.rules.requests[request_id]
                assert known.request in full, "a request goes on beyond its length"
                self._end(request_id, FinishReason.LENGTH)
                self.rules.queues.generated(known, len(tokens))
                continue
            blocks = self.scheduler.running.table.table(run.slot)[tables[run.slot] :].tolist()
            self.rules.extended(request_id, num_known, tokens, blocks)
            if self.under_way is not None and self.under_way.owners.get(run.slot) == request_id:
                self.under_way.put_back.add(run.slot)
        assert len(full) == sum(owners[slot] in self.finished for slot in lengths), "requests end that are not complete"

    def _fail_slots(self, step: Launched, failing: Set[int]) -> None:
        """There is no memory for these slots: what their chunks should have written holds nothing, and what was
        computed from that is worth nothing."""
        steps = [step] if self.under_way is None else [step, self.under_way]
        slots = [slot for slot in step.owners if slot in failing]
        failed = [step.owners[slot] for slot in slots if slot not in step.put_back]
        failed = [request_id for request_id in failed if request_id not in self.finished]
        returned = self.scheduler.fail_slots(step.plan, slots)
        assert [request.request_id for request in returned] == failed, "fail_slots does not return who ends"
        assert all(request.finish_reason is FinishReason.OUT_OF_MEMORY for request in returned)
        for request_id in failed:
            self._end(request_id, FinishReason.OUT_OF_MEMORY)
        failed_chunks = {chunk.slot for chunk in step.plan.prefills} & failing
        if failed_chunks:
            self._lose_chunks(steps, {step.owners[slot] for slot in failed_chunks - step.put_back})

    def _fail_loads(self, step: Launched, starts: list[SlotStart]) -> None:
        """These loaded something else than was stored, and what was computed from that is worth nothing."""
        self.scheduler.fail_loads(step.plan, [start.slot for start in starts])
        for start in starts:
            self.rules.load_failed(start)
        self.damaged += len(starts)
        self._lose_chunks([step] if self.under_way is None else [step, self.under_way], frozenset(), starts)

    def _lose_chunks(self, steps: list[Launched], failed: Set[int], damaged: Sequence[SlotStart] = ()) -> None:
        """Chunks of these requests were not computed, or loads were `damaged`. All that found blocks of a step under
        way start anew."""
        planned = self.rules.chunks_failed([each.plan for each in steps])
        misled = [each.request_id for each in damaged if not self._left(each, steps[0])]
        for each in steps:
            for start in each.plan.starts:
                num_found = start.num_computed_tokens // self.config.block_size
                left = start.request_id in misled or self._left(start, each)
                if not left and not planned.isdisjoint(start.block_ids[:num_found].tolist()):
                    misled.append(start.request_id)
        spoiled = set(failed)
        lost: set[tuple[int, int]] = set()
        for each in steps:
            for start in each.plan.starts:  # A copy from host memory fills a block before anything is computed.
                copied = start.loaded(self.config.block_size).tolist()
                lost = {entry for entry in lost if entry[0] not in copied}
                if start in damaged:
                    lost |= {(block, offset) for block in copied for offset in range(self.config.block_size)}
            for computed in each.computed:
                if computed.slot in each.put_back:  # by a failure before this one
                    lost |= computed.written
                elif computed.request_id in spoiled or not lost.isdisjoint(computed.read):
                    spoiled.add(computed.request_id)
                    lost |= computed.written
                else:
                    lost -= computed.written
        assert spoiled <= {*misled, *self.finished}, "a request goes on that has read what was not computed"
        self.runner.lose(lost)
        for each in steps:
            each.put_back |= {slot for slot, request_id in each.owners.items() if request_id in misled}
        for request_id in misled:
            self.rules.put_back(request_id)
            self.runner.put_back(request_id)
        self.misled += len(misled)

    def _left(self, start: SlotStart, step: Launched) -> bool:
        return start.request_id in self.finished or start.slot in step.put_back

    def _fail(self, step: Launched) -> None:
        """The step breaks, and the one that was launched after it with it."""
        plan, later = step.plan, self.under_way
        self.under_way = None
        owners = [request_id for slot, request_id in step.owners.items() if slot not in step.put_back]
        lost = [each for each in owners if each not in self.finished]
        assert [request.request_id for request in self.scheduler.fail(plan)] == lost, (
            "fail does not return what a failed step may have left without its keys and values"
        )
        for each in (later, step):
            if each is not None:
                if each.token_ids is not None:
                    self.runner.spoil(each.plan, each.written)
                self.rules.broken(each.plan)
        if later is not None:
            for request_id in later.owners.values():
                if request_id not in self.finished and request_id not in lost:
                    self.rules.put_back(request_id)
                    self.runner.put_back(request_id)
                    self.put_back += 1
        for request_id in lost:
            self.cancel(request_id, FinishReason.ERROR)

    def check_uncomputed(self) -> None:
        """Unless a step has broken that the scheduler believes to be under way."""
        if self.under_way is None or not self.under_way.breaks_in_launch:
            self.rules.check_uncomputed(self.scheduler)

    def run(self, most_steps: int = 10_000) -> int:
        """Steps until nothing is left."""
        for steps in range(most_steps):
            if self.step() is None:
                return steps
        raise AssertionError(f"not done after {most_steps} steps")

    def _end(self, request_id: int, reason: FinishReason) -> None:
        self.finished[request_id] = reason
        self.rules.ended(request_id)
        del self.expected[request_id]
