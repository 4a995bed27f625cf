"""Feeds a recording's inputs to the scheduler again and compares its plans with the recorded digests."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import NamedTuple

import numpy as np

from inflight_cost.model import StepWork
from inflight_engine.recording.lines import (
    Added,
    BlockRuns,
    BlocksFilled,
    CacheForgotten,
    Cancelled,
    Ended,
    Event,
    Fetched,
    Fetching,
    LimitsChanged,
    PlanDigest,
    PrefillCostChanged,
    RatesChanged,
    Step,
    TimePassed,
    WeightsChanged,
)
from inflight_engine.request import FinishReason, ForcedRun, Request, SamplingParams, TokenIds
from inflight_engine.scheduling.config import SchedulerConfig
from inflight_engine.scheduling.plan import StepPlan
from inflight_engine.scheduling.scheduler import Scheduler
from inflight_engine.step_work import work_of

_STOP_TOKEN = 1
"""The token that ends a request as `stop` in a replay. All other tokens are 0."""


class Survey:
    """First pass over a recording, which collects the parameters of the replay.

    Attributes:
        num_events, num_requests, num_steps: in the recording.
        blocks: for each `Added` in order, the numbers of all blocks that its request filled. A replay needs them
            before the blocks are filled; the recording has them after.
    """

    def __init__(self, events: Iterable[Event]) -> None:
        self.num_events = self.num_steps = 0
        self.blocks: list[BlockRuns] = []
        of_request: dict[int, BlockRuns] = {}
        for event in events:
            self.num_events += 1
            match event:
                case Added():
                    of_request[event.request_id] = list(event.blocks)
                    self.blocks.append(of_request[event.request_id])
                case BlocksFilled():
                    of_request.setdefault(event.request_id, []).extend(event.blocks)
                case Step():
                    self.num_steps += 1

    @property
    def num_requests(self) -> int:
        return len(self.blocks)


class Difference(NamedTuple):
    """The first decision of a replay that differs from the recorded one.

    Attributes:
        step: number of the step; for an input between two steps, of the later one.
        request_id: the request that the input names; None for a step.
        what: the kind of decision: `add`, `cancel`, `step` (there was nothing to run), `plan` or `end`.
        recorded, replayed: what was decided, in words. Of a recorded plan there is only what it computed.
    """

    step: int
    request_id: int | None
    what: str
    recorded: str
    replayed: str

    def __str__(self) -> str:
        request = "" if self.request_id is None else f", request {self.request_id}"
        return (
            f"step {self.step}{request}: another {self.what}\n  recorded: {self.recorded}\n  replayed: {self.replayed}"
        )


def replay(
    config: SchedulerConfig, events: Iterable[Event], survey: Survey, on_step: Callable[[int], None] | None = None
) -> Difference | None:
    """Return the first decision that differs from the recorded one, or None.

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
        self.num_steps = 0
        self._scheduler = Scheduler(config)
        self._digests = PlanDigest()
        self._blocks = iter(survey.blocks)
        self._requests: dict[int, Request] = {}
        self._ahead: tuple[StepPlan, StepWork] | None = None
        """The next step, planned ahead and not compared with its line yet."""
        self._now = -math.inf
        self._times: deque[TimePassed] = deque()
        """Times of steps that are not planned yet: at most of this one and the next."""

    def take(self, event: Event) -> Difference | None:
        match event:
            case Added():
                return self._add(event)
            case Cancelled():
                return self._cancel(event)
            case LimitsChanged():
                self._scheduler.limits = event.limits
            case WeightsChanged():
                self._scheduler.set_class_weights(event.weights)
            case RatesChanged():
                self._scheduler.offload.rates = event.rates
            case PrefillCostChanged():
                self._scheduler.deadlines.cost = event.cost
            case Fetching():
                self._scheduler.offload.fetch(event.number, _hashes(event.blocks))
            case Fetched():
                self._scheduler.offload.fetched(event.number, event.count)
            case CacheForgotten():
                self._scheduler.forget_cache()
            case TimePassed():
                self._times.append(event)
            case BlocksFilled():
                pass  # The survey has them.
            case Step():
                return self._step(event)
        return None

    def _add(self, event: Added) -> Difference | None:
        blocks = next(self._blocks)
        request = Request(
            request_id=event.request_id,
            prompt_token_ids=np.zeros(event.num_prompt_tokens, np.int32),
            # Where no block ever had a number, it shares none.
            sampling=SamplingParams(
                event.max_tokens, stop_token_ids=(_STOP_TOKEN,), prompt_logprobs=None if blocks else 0
            ),
            arrival_time=event.arrival_time,
            scheduling=event.scheduling,
            output_token_ids=np.zeros(event.num_output_tokens, np.int32),
            # The scheduler hashes only blocks that have no hash yet, so it does not look at the tokens.
            block_hashes=_hashes(blocks),
        )
        try:
            self._scheduler.add(request)
        except ValueError as error:
            return Difference(self.num_steps, event.request_id, "add", "queued", f"refused: {error}")
        self._requests[event.request_id] = request
        return None

    def _cancel(self, event: Cancelled) -> Difference | None:
        if not self._scheduler.cancel(event.request_id, event.reason):
            words = f"ended from outside as {event.reason}"
            return Difference(self.num_steps, event.request_id, "cancel", words, "not there")
        del self._requests[event.request_id]
        return None

    def _step(self, recorded: Step) -> Difference | None:
        number = self.num_steps
        self.num_steps += 1
        planned = self._ahead or self._schedule(number)
        if planned is None:
            return Difference(number, None, "step", _step_text(recorded), "nothing to run")
        plan, work = planned
        if self._digests.of(plan) != recorded.digest:
            return Difference(number, None, "plan", _step_text(recorded), self._plan_text(plan, work))
        self._ahead = self._schedule(number + 1) if recorded.ahead else None
        if recorded.ended is None:
            # It gave no tokens. The requests that it ended are cancelled in the lines that follow.
            self._scheduler.fail(plan)
            return None
        requests = self._scheduler.fail_slots(plan, recorded.failed_slots)
        if recorded.failed_loads:
            self._scheduler.fail_loads(plan, recorded.failed_loads)
        requests += self._scheduler.update(plan, self._tokens(plan, recorded.ended))
        if recorded.forced:
            runs = [ForcedRun(slot, np.zeros(count, np.int32), ends=False) for slot, count in recorded.forced]
            requests += self._scheduler.force(runs)[1]
        for request in requests:
            del self._requests[request.request_id]
        ended = [Ended(each.request_id, each.finish_reason) for each in requests if each.finish_reason]
        if ended != recorded.ended:
            return Difference(number, None, "end", _ends_text(recorded.ended), _ends_text(ended))
        return None

    def _schedule(self, number: int) -> tuple[StepPlan, StepWork] | None:
        while self._times and self._times[0].step <= number:
            self._now = self._times.popleft().now
        scheduler = self._scheduler
        plan = scheduler.schedule(self._now)
        if plan is None:
            return None
        return plan, work_of(plan, scheduler.num_attended_tokens, scheduler.config.block_size)

    def _tokens(self, plan: StepPlan, ended: list[Ended]) -> TokenIds:
        """Return a token for each of `plan.sampled_slots`: a stop token for the requests that ended with one."""
        tokens = np.zeros(len(plan.sampled_slots), np.int32)
        stopped = [each.request_id for each in ended if each.reason is FinishReason.STOP]
        if stopped:
            slots = [self._requests[each].slot for each in stopped if each in self._requests]
            tokens[np.isin(plan.sampled_slots, slots)] = _STOP_TOKEN
        return tokens

    def _plan_text(self, plan: StepPlan, work: StepWork) -> str:
        request_in = {request.slot: f"request {request.request_id}" for request in self._requests.values()}

        def owner(slot: int) -> str:
            return f"{request_in.get(slot, 'an ended request')} in slot {slot}"

        lines = [_work_text(work)]
        for each in plan.preemptions:
            lines.append(f"preempted: request {each.request_id} from slot {each.slot}")
        lines += [f"released: slot {slot}" for slot in plan.releases]
        for start in plan.starts:
            found = f"{start.num_computed_tokens} of {len(start.token_ids)} tokens cached"
            found += f", {len(start.host_block_ids)} blocks of them loaded" if start.host_block_ids else ""
            lines.append(f"started: request {start.request_id} in slot {start.slot} with {found}")
        for chunk in plan.prefills:
            lines.append(f"prefill: {owner(chunk.slot)}, tokens {chunk.start} to {chunk.start + chunk.length - 1}")
        lines += [f"decode: {owner(slot)}" for slot in plan.decode_slots.tolist()]
        return "\n    ".join(lines)


def _hashes(blocks: BlockRuns) -> list[bytes]:
    return [b"%d" % number for first, count in blocks for number in range(first, first + count)]


def _step_text(step: Step) -> str:
    return f"{_work_text(step.work)}; {'the step failed' if step.ended is None else _ends_text(step.ended)}"


def _work_text(work: StepWork) -> str:
    return (
        f"{work.decode_seqs:g} decodes that read {work.decode_kv_tokens:g} tokens, {work.prefill_tokens:g} prefill "
        f"tokens that attend to {work.prefill_context_tokens:g}, {work.copied_tokens:g} tokens copied"
    )


def _ends_text(ended: list[Ended]) -> str:
    words = ", ".join(f"request {each.request_id} ended as {each.reason}" for each in ended)
    return words or "no request ended"
