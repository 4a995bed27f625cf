"""Continuous batching on a virtual clock: decisions of the engine's scheduler, durations by the cost model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from inflight_cost.model import StepWork
from inflight_engine.cache.loading import LoadRates
from inflight_engine.request import Request, SamplingParams, Scheduling
from inflight_engine.scheduling.config import SchedulerConfig
from inflight_engine.scheduling.plan import PrefillChunk, SlotStart, StepPlan
from inflight_engine.scheduling.scheduler import CannotFitError, Scheduler
from inflight_settings.scheduling import DEFAULT_CLASS
from inflight_simulator.arrivals import OUTPUT_TOKEN, Arrival, prompt_token_ids
from inflight_simulator.cost import Cost, prefill_cost
from inflight_simulator.outcome import NEVER, Outcome, Phase, Refusal, Run, Span
from inflight_simulator.passes import Pass, Passes, mixed, prefill_work


def simulate_continuous(
    arrivals: Sequence[Arrival],
    config: SchedulerConfig,
    cost: Cost,
    passes: Passes = mixed,
    rates: LoadRates | None = None,
) -> Run:
    """Run all of `arrivals`, which must be in order of arrival.

    A request is scheduled from the first step that starts after its arrival, as in the engine. Its output has
    `output_tokens` tokens, of no content: a prefix that it shares with others can only be in its prompt.
    """
    return _Engine(arrivals, config, cost, passes, rates).run_all()


@dataclass(slots=True)
class _Admitted:
    """A request from its first slot to its end.

    Attributes:
        slot: the one it holds, or held last.
        lost_s: when it lost its slot; NEVER while it holds one.
        decoding_s, decoding_from: when its decode began (NEVER: it does not decode), and with how many tokens known.
        last_token_s: of its last token before it lost its slot.
    """

    outcome: Outcome
    slot: int
    lost_s: float = NEVER
    decoding_s: float = NEVER
    decoding_from: int = 0
    last_token_s: float = NEVER


class _Engine:
    """A running simulation. Request ids are places in `arrivals`.

    Attributes:
        now: seconds.
        admitted: by request id.
        in_slot: request that holds each slot, or held it last.
        context: intp [max_num_seqs]: tokens that a decoding slot's next token attends to.
        last_token, longest_gap: float64 [max_num_seqs]: of decoding slots, time of the last token, and the longest time
            between two tokens.
    """

    def __init__(
        self,
        arrivals: Sequence[Arrival],
        config: SchedulerConfig,
        cost: Cost,
        passes: Passes,
        rates: LoadRates | None,
    ) -> None:
        num_slots = config.capacity.max_num_seqs
        self.arrivals = arrivals
        self.cost = cost
        self.passes = passes
        self.block_size = config.block_size
        self.scheduler = Scheduler(config)
        self.scheduler.offload.rates = rates
        self.scheduler.deadlines.cost = prefill_cost(cost)
        self.run = Run(num_slots)
        self.now = 0.0
        self.num_arrived = 0
        self.admitted: dict[int, _Admitted] = {}
        self.in_slot: dict[int, _Admitted] = {}
        self.context = np.zeros(num_slots, np.intp)
        self.last_token = np.zeros(num_slots)
        self.longest_gap = np.zeros(num_slots)
        self.tokens = np.full(num_slots, OUTPUT_TOKEN, np.int32)

    def run_all(self) -> Run:
        scheduler, run = self.scheduler, self.run
        while True:
            self._arrive()
            plan = scheduler.schedule(self.now)
            if plan is not None:
                self._step(plan)
            elif self.num_arrived < len(self.arrivals):
                run.series.append(self.now, 0, scheduler.kv_usage)
                self.now = self.arrivals[self.num_arrived].arrival_s
            else:
                break
        run.num_preemptions, run.num_loaded = scheduler.preemptor.num_preemptions, scheduler.offload.num_loaded
        run.prefix_queries, run.prefix_hits = scheduler.admission.prefix_queries, scheduler.admission.prefix_hits
        return run

    def _arrive(self) -> None:
        """Submit requests that have arrived by now."""
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
                scheduling=Scheduling(arrival.service_class or DEFAULT_CLASS, arrival.priority, arrival.tenant),
            )
            try:
                self.scheduler.add(request)
            except CannotFitError as error:
                self.run.refusals.append(Refusal(request_id, arrival, str(error)))

    def _step(self, plan: StepPlan) -> None:
        scheduler = self.scheduler
        self.run.series.append(self.now, scheduler.num_running, scheduler.kv_usage)
        copied_blocks = 0 if plan.stores is None else len(plan.stores.block_ids)
        for preemption in plan.preemptions:
            self._lose_slot(self.admitted[preemption.request_id])
        for start in plan.starts:
            copied_blocks += len(start.host_block_ids)
            self._take_slot(start)
        copied_tokens = copied_blocks * self.block_size
        num_sampled = len(plan.decode_slots)
        for computed in self.passes(plan):
            started = self.now
            self._compute(computed, copied_tokens)
            if len(plan.decode_slots) > len(computed.decode_slots):
                self.run.stalls.append((started, self.now))
            copied_tokens = 0
            num_sampled += sum(chunk.samples for chunk in computed.prefills)
        for request in scheduler.update(plan, self.tokens[:num_sampled]):
            self._finish(self.admitted.pop(request.request_id))

    def _compute(self, computed: Pass, copied_tokens: int) -> None:
        """Runs a forward pass, which advances the clock by its cost."""
        started = self.now
        slots = computed.decode_slots
        prefill_tokens, prefill_context = prefill_work(computed.prefills)
        read = int(self.context[slots].sum())
        work = StepWork(len(slots), prefill_tokens, read, prefill_context, copied_tokens)
        now = self.now = started + self.cost.seconds(work)
        self.run.num_steps += 1
        self.context[slots] += 1
        self.longest_gap[slots] = np.maximum(self.longest_gap[slots], now - self.last_token[slots])
        self.last_token[slots] = now
        for chunk in computed.prefills:
            self._end_chunk(chunk, started)

    def _end_chunk(self, chunk: PrefillChunk, started: float) -> None:
        slot, now = chunk.slot, self.now
        admitted = self.in_slot[slot]
        outcome = admitted.outcome
        self._add_span(admitted, Phase.PREFILL, started, now, chunk.length)
        if not chunk.samples:
            return
        if outcome.first_token_s == NEVER:
            outcome.first_token_s = now
        else:
            # Resumed: the time for a slot and for recomputation lies between two of its tokens, too.
            outcome.longest_gap = max(outcome.longest_gap, now - admitted.last_token_s)
        admitted.decoding_s, admitted.decoding_from = now, chunk.start + chunk.length + 1
        self.context[slot] = admitted.decoding_from
        self.last_token[slot] = now
        self.longest_gap[slot] = outcome.longest_gap

    def _take_slot(self, start: SlotStart) -> None:
        admitted = self.admitted.get(start.request_id)
        if admitted is None:
            outcome = Outcome(start.request_id, self.arrivals[start.request_id], self.now)
            admitted = self.admitted[start.request_id] = _Admitted(outcome, start.slot)
        else:
            self._add_span(admitted, Phase.PREEMPTED, admitted.lost_s, self.now, 0)
            admitted.slot, admitted.lost_s = start.slot, NEVER
        self.in_slot[start.slot] = admitted

    def _lose_slot(self, admitted: _Admitted) -> None:
        admitted.outcome.num_preemptions += 1
        admitted.lost_s = self.now
        self._end_decode(admitted)

    def _finish(self, admitted: _Admitted) -> None:
        admitted.outcome.finished_s = self._end_decode(admitted)
        self.run.outcomes.append(admitted.outcome)

    def _end_decode(self, admitted: _Admitted) -> float:
        """Returns the time of its last token."""
        if admitted.decoding_s != NEVER:
            slot = admitted.slot
            last_token_s = admitted.last_token_s = float(self.last_token[slot])
            admitted.outcome.longest_gap = float(self.longest_gap[slot])
            tokens = int(self.context[slot]) - admitted.decoding_from
            if tokens:
                self._add_span(admitted, Phase.DECODE, admitted.decoding_s, last_token_s, tokens)
            admitted.decoding_s = NEVER
        return admitted.last_token_s

    def _add_span(self, admitted: _Admitted, phase: Phase, start_s: float, end_s: float, tokens: int) -> None:
        span = Span(admitted.outcome.request_id, admitted.slot, phase, start_s, end_s, tokens)
        self.run.timeline.append(span)
