"""Continuous batching on a virtual clock: the engine's own scheduler decides, a cost model says how long it takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from inflight_engine.request import DEFAULT_CLASS, Request, SamplingParams
from inflight_engine.scheduling.config import SchedulerConfig, SwapRates
from inflight_engine.scheduling.plan import PrefillChunk, SlotStart, StepPlan
from inflight_engine.scheduling.scheduler import CannotFitError, Scheduler
from inflight_simulator.arrivals import Arrival, prompt_token_ids
from inflight_simulator.cost import Cost, StepWork, prefill_context
from inflight_simulator.outcome import NEVER, Outcome, Phase, Refusal, Run, Span
from inflight_simulator.passes import Pass, Passes, mixed


class _Decode(NamedTuple):
    """Where a slot's decode began: when, and with how many tokens known."""

    start_s: float
    num_tokens: int


def simulate_continuous(
    arrivals: Sequence[Arrival],
    config: SchedulerConfig,
    cost: Cost,
    passes: Passes = mixed,
    rates: SwapRates | None = None,
) -> Run:
    """Run all of `arrivals`, which must be in order of arrival.

    A request is seen by the first step that starts after it came, as in the engine. Its output has `output_tokens`
    tokens, of no content: a prefix that it shares with others can only be in its prompt.
    """
    return _Engine(arrivals, config, cost, passes, rates).run_all()


class _Engine:
    """A running simulation. Request ids are places in `arrivals`.

    Attributes:
        now: seconds.
        in_slot: the outcome of the request in each slot.
        context: intp [max_num_seqs]: tokens that a decoding slot's next token attends to.
        decodes: of the slots that are past their prefill.
        lost: preempted requests, with the slot that each gave up and when.
    """

    def __init__(
        self,
        arrivals: Sequence[Arrival],
        config: SchedulerConfig,
        cost: Cost,
        passes: Passes,
        rates: SwapRates | None,
    ) -> None:
        num_slots = config.capacity.max_num_seqs
        self.arrivals = arrivals
        self.cost = cost
        self.passes = passes
        self.block_size = config.block_size
        self.scheduler = Scheduler(config)
        self.scheduler.rates = rates
        self.run = Run(num_slots)
        self.now = 0.0
        self.num_arrived = 0
        self.outcomes: dict[int, Outcome] = {}
        self.slot_of: dict[int, int] = {}
        self.in_slot: list[Outcome | None] = [None] * num_slots
        self.context = np.zeros(num_slots, np.intp)
        self.decodes: dict[int, _Decode] = {}
        self.lost: dict[int, tuple[int, float]] = {}
        self.tokens = np.zeros(num_slots, np.int32)

    def run_all(self) -> Run:
        scheduler, run = self.scheduler, self.run
        while True:
            self._arrive()
            plan = scheduler.schedule()
            if plan is not None:
                self._step(plan)
            elif self.num_arrived < len(self.arrivals):
                run.series.append(self.now, 0, 0, scheduler.kv_usage)
                self.now = self.arrivals[self.num_arrived].arrival_s
            else:
                break
        run.num_preemptions, run.num_swaps = scheduler.num_preemptions, scheduler.num_swaps
        run.prefix_queries, run.prefix_hits = scheduler.prefix_queries, scheduler.prefix_hits
        return run

    def _arrive(self) -> None:
        """Hand over what has come by now."""
        while self.num_arrived < len(self.arrivals):
            request_id, arrival = self.num_arrived, self.arrivals[self.num_arrived]
            if arrival.arrival_s > self.now:
                break
            self.num_arrived += 1
            request = Request(
                request_id=request_id,
                prompt_token_ids=prompt_token_ids(arrival, request_id),
                sampling=SamplingParams(max_tokens=arrival.output_tokens),
                arrival_time=arrival.arrival_s,
                priority=arrival.priority,
                service_class=arrival.service_class or DEFAULT_CLASS,
                tenant=arrival.tenant,
            )
            try:
                self.scheduler.add(request)
            except CannotFitError as error:
                self.run.refusals.append(Refusal(request_id, arrival, str(error)))

    def _step(self, plan: StepPlan) -> None:
        scheduler, run = self.scheduler, self.run
        run.series.append(self.now, scheduler.num_running, scheduler.num_waiting, scheduler.kv_usage)
        copied_blocks = 0
        for preemption in plan.preemptions:
            copied_blocks += len(preemption.host_block_ids)
            self._lose_slot(preemption.request_id, preemption.slot)
        for start in plan.starts:
            copied_blocks += len(start.host_block_ids)
            self._take_slot(start)
        copied_tokens = copied_blocks * self.block_size
        sampled_at: dict[int, float] = {}
        for computed in self.passes(plan):
            self._compute(computed, copied_tokens)
            copied_tokens = 0
            for chunk in computed.prefills:
                if chunk.samples:
                    sampled_at[chunk.slot] = self.now
        num_sampled = len(plan.decode_slots) + len(sampled_at)
        for request in scheduler.update(plan, self.tokens[:num_sampled]):
            slot = self.slot_of[request.request_id]
            self._finish(request.request_id, slot, sampled_at.get(slot, self.now))

    def _compute(self, computed: Pass, copied_tokens: int) -> None:
        """One forward pass: the clock moves on by what it costs."""
        started = self.now
        slots = computed.decode_slots
        prefill_tokens = prefill_context_tokens = 0
        for chunk in computed.prefills:
            prefill_tokens += chunk.length
            prefill_context_tokens += prefill_context(chunk)
        read = int(self.context[slots].sum())
        work = StepWork(len(slots), prefill_tokens, read, prefill_context_tokens, copied_tokens)
        self.now = started + self.cost.seconds(work)
        self.context[slots] += 1
        self.run.num_steps += 1
        for chunk in computed.prefills:
            self._end_chunk(chunk, started)

    def _end_chunk(self, chunk: PrefillChunk, started: float) -> None:
        outcome = self._in(chunk.slot)
        self.run.timeline.append(Span(outcome.request_id, chunk.slot, Phase.PREFILL, started, self.now, chunk.length))
        if chunk.samples:
            num_tokens = self.context[chunk.slot] = chunk.start + chunk.length + 1
            self.decodes[chunk.slot] = _Decode(self.now, num_tokens)
            if outcome.first_token_s == NEVER:
                outcome.first_token_s = self.now

    def _take_slot(self, start: SlotStart) -> None:
        request_id = start.request_id
        outcome = self.outcomes.get(request_id)
        if outcome is None:
            outcome = self.outcomes[request_id] = Outcome(request_id, self.arrivals[request_id], self.now)
        else:
            slot, lost_s = self.lost.pop(request_id)
            self.run.timeline.append(Span(request_id, slot, Phase.PREEMPTED, lost_s, self.now, 0))
        self.in_slot[start.slot] = outcome
        self.slot_of[request_id] = start.slot

    def _lose_slot(self, request_id: int, slot: int) -> None:
        self._in(slot).num_preemptions += 1
        self._end_decode(slot, self.now)
        self.lost[request_id] = slot, self.now

    def _finish(self, request_id: int, slot: int, finished_s: float) -> None:
        outcome = self.outcomes.pop(request_id)
        outcome.finished_s = finished_s
        self._end_decode(slot, finished_s)
        del self.slot_of[request_id]
        self.run.outcomes.append(outcome)

    def _end_decode(self, slot: int, end_s: float) -> None:
        decode = self.decodes.pop(slot, None)
        if decode is None or decode.start_s == end_s:
            return
        tokens = int(self.context[slot]) - decode.num_tokens
        self.run.timeline.append(Span(self._in(slot).request_id, slot, Phase.DECODE, decode.start_s, end_s, tokens))

    def _in(self, slot: int) -> Outcome:
        outcome = self.in_slot[slot]
        if outcome is None:
            raise AssertionError(f"slot {slot} is empty")
        return outcome
