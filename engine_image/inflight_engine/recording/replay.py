"""Feeds a recording's arrivals to the scheduler again and compares its decisions."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice

import numpy as np

from inflight_engine.cache.swap import SwapRates
from inflight_engine.recording.decisions import Decisions, ended_lines
from inflight_engine.recording.difference import Difference, end_difference, plan_difference
from inflight_engine.recording.lines import (
    STOP_TOKEN,
    Added,
    BlocksFilled,
    Cancelled,
    ChunksFailed,
    Ended,
    Event,
    LimitsChanged,
    PrefillCostChanged,
    RatesChanged,
    Repeated,
    Step,
    TimePassed,
    WeightsChanged,
)
from inflight_engine.recording.pseudo_tokens import PseudoTokens
from inflight_engine.recording.survey import Survey
from inflight_engine.request import FinishReason, Request, SamplingParams, Scheduling
from inflight_engine.scheduling.config import SchedulerConfig
from inflight_engine.scheduling.plan import StepPlan
from inflight_engine.scheduling.scheduler import Scheduler
from inflight_settings.limits import Limits


def replay(
    config: SchedulerConfig, events: Iterable[Event], survey: Survey, on_step: Callable[[int], None] | None = None
) -> Difference | None:
    """The first decision that differs from the recorded one, or None.

    Inputs from clients and from the runner are repeated as recorded: arrivals, cancellations, changes of limits, which
    requests sampled a stop token, and which blocks were equal. The scheduler decides everything else.

    Args:
        survey: of the same events; the replay ends where it ended, also when the file has grown since.
        on_step: called with the number of steps replayed, now and then.

    Raises:
        ValueError: there is no scheduler of this configuration, or it does not take a recorded change.
    """
    replayer = _Replayer(config, survey)
    for event in islice(events, survey.num_events):
        difference = replayer.take(event)
        if difference is not None:
            return difference
        if on_step is not None:
            on_step(replayer.num_steps)
    return None


class _Replayer:
    def __init__(self, config: SchedulerConfig, survey: Survey) -> None:
        num_slots = config.capacity.max_num_seqs
        self.num_steps = 0
        self._scheduler = Scheduler(config)
        self._decisions = Decisions(num_slots)
        self._tokens = PseudoTokens(num_slots, config.block_size)
        self._blocks = iter(survey.blocks)
        self._next: StepPlan | None = None
        """Planned ahead, not compared with its line yet."""
        self._ahead = False
        """Of the last line of a step."""
        self._now = -math.inf
        self._times: deque[TimePassed] = deque()
        """Of steps that are not planned yet: at most this one and the next."""
        self._failed_slots: list[int] = []
        """Slots without memory in the next step."""

    def take(self, event: Event) -> Difference | None:
        match event:
            case Added():
                return self._add(event)
            case Cancelled():
                return self._cancel(event)
            case LimitsChanged():
                self._scheduler.limits = Limits(event.max_num_seqs, event.max_num_batched_tokens)
            case WeightsChanged():
                self._scheduler.set_class_weights(event.weights)
            case RatesChanged():
                self._scheduler.rates = None if event.rates is None else SwapRates(*event.rates)
            case PrefillCostChanged():
                self._scheduler.prefill_cost = event.cost
            case TimePassed():
                self._times.append(event)
            case ChunksFailed():
                self._failed_slots = event.slots
            case BlocksFilled():
                pass  # Known from the survey.
            case Step():
                return self._step(event)
            case Repeated():
                for _ in event.micros:
                    difference = self._step(None)
                    if difference is not None:
                        return difference
        return None

    def _add(self, event: Added) -> Difference | None:
        num_prompt = event.num_prompt_tokens
        tokens = self._tokens.arrived(event.request_id, num_prompt + event.num_output_tokens, next(self._blocks))
        request = Request(
            request_id=event.request_id,
            prompt_token_ids=tokens[:num_prompt],
            sampling=SamplingParams(max_tokens=event.max_tokens, stop_token_ids=(STOP_TOKEN,)),
            arrival_time=event.arrival_time,
            scheduling=Scheduling(
                service_class=event.service_class,
                priority=event.priority,
                tenant=event.tenant,
                predicted_tokens=event.predicted_tokens,
            ),
            output_token_ids=tokens[num_prompt:],
        )
        try:
            self._scheduler.add(request)
        except ValueError as error:
            return Difference(self.num_steps, event.request_id, "add", "queued", f"refused: {error}")
        return None

    def _cancel(self, event: Cancelled) -> Difference | None:
        if not self._scheduler.cancel(event.request_id, event.reason):
            return Difference(
                self.num_steps, event.request_id, "cancel", f"ended from outside as {event.reason}", "not there"
            )
        self._tokens.forget(event.request_id)
        return None

    def _step(self, recorded: Step | None) -> Difference | None:
        """Replay one step; `recorded` is None for one that repeats the step before."""
        number = self.num_steps
        self.num_steps += 1
        plan = self._next or self._schedule(number)
        if plan is None:
            return Difference(number, self._someone_in(recorded), "step", "a step computed", "nothing to run")
        if recorded is not None or not self._decisions.repeats(plan):
            decoding = np.flatnonzero(self._decisions.decoding)
            recorded = recorded or _repetition(number, len(decoding), self._ahead)
            replayed = self._decisions.of(plan, recorded.micros, [], ahead=recorded.ahead)
            difference = plan_difference(recorded, replayed, self._tokens.request_in, decoding.tolist())
            if difference is not None:
                return difference
            self._tokens.place(plan)
            self._ahead = recorded.ahead
        self._next = self._schedule(number + 1) if self._ahead else None
        failed = self._scheduler.fail_slots(plan, self._failed_slots)
        self._failed_slots = []
        if recorded is None:
            return self._update(plan, number, failed, [])
        if recorded.ended is None:
            # It gave no tokens. Those whom it ended are cancelled in the lines that follow.
            self._scheduler.fail(plan)
            return None
        return self._update(plan, number, failed, recorded.ended)

    def _schedule(self, number: int) -> StepPlan | None:
        while self._times and self._times[0].step <= number:
            self._now = self._times.popleft().now
        return self._scheduler.schedule(self._now)

    def _someone_in(self, recorded: Step | None) -> int | None:
        """A request that the recorded step computed for."""
        if recorded is not None and recorded.starts:
            return recorded.starts[0].request_id
        chunks = [] if recorded is None else recorded.chunks
        slots = [chunk.slot for chunk in chunks] or np.flatnonzero(self._decisions.decoding).tolist()
        return self._tokens.request_in.get(slots[0]) if slots else None

    def _update(self, plan: StepPlan, number: int, failed: list[Request], recorded: list[Ended]) -> Difference | None:
        stopping = {each.request_id for each in recorded if each.reason is FinishReason.STOP}
        ended = failed + self._scheduler.update(plan, self._tokens.sample(plan, stopping))
        for request in ended:
            self._tokens.forget(request.request_id)
        return end_difference(number, recorded, ended_lines(ended))


def _repetition(number: int, num_decodes: int, ahead: bool) -> Step:
    """What the line of a step would say that repeats the one before."""
    return Step(number, 0, [], [], [], [], [], num_decodes, [], ahead)
