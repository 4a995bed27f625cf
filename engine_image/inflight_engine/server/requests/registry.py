"""The registry of requests: each from its submission to its end at the engine, over losses of the engine process."""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from inflight_contract.errors import ApiError, bad_request
from inflight_engine.messages import (
    AddRequest,
    Admission,
    CancelRequest,
    EngineReady,
    Finished,
    Starting,
    StepCost,
    StepReport,
    StepStats,
)
from inflight_engine.request import FinishReason
from inflight_engine.server.admission.admission import QueueAdmission
from inflight_engine.server.admission.demand import Load
from inflight_engine.server.admission.step_costs import StepCosts
from inflight_engine.server.engine.phase import Phase, engine_failed, engine_restarting, shutting_down
from inflight_engine.server.engine.session import EngineSession
from inflight_engine.server.requests.counts import Counts
from inflight_engine.server.requests.generation import Generation, GenerationRequest
from inflight_engine.server.requests.inbox import Inbox
from inflight_engine.server.requests.phases import RequestPhase
from inflight_engine.server.requests.slots import Slots
from inflight_engine.server.requests.timeouts import Timeouts
from inflight_engine.server.settings.config import ServerConfig

if TYPE_CHECKING:
    from inflight_engine.models.tokens.tokenizer import Tokenizer  # imports the tokenizers library

MAX_TRIES = 2
"""Attempts at a request: one with a slot in two engine processes that died may have caused the crashes."""

log = logging.getLogger(__name__)


class RequestRegistry:
    """Listens to the session. All methods run in the event loop.

    Attributes:
        admitting: new requests are accepted (also for a time while draining).
        relayed_at, direct_at: when the latest request came from a relay, and from others; seconds, monotonic.
    """

    def __init__(self, config: ServerConfig, session: EngineSession, admission: QueueAdmission, counts: Counts) -> None:
        self.admitting = True
        self.relayed_at = self.direct_at = -math.inf
        self._session = session
        self._admission = admission
        self._counts = counts
        self._requests: dict[int, Generation] = {}
        """Requests that the engine has not reported as finished, in order of arrival."""
        self._slots = Slots(counts)
        self._timeouts = Timeouts(config.queue_timeout, config.request_timeout, config.engine.classes, self._time_out)
        self._request_ids = itertools.count()
        self._step_costs = StepCosts(self._cost_found)
        session.listener = self

    def __len__(self) -> int:
        """Number of requests whose end the engine has not reported."""
        return len(self._requests)

    def unfinished(self) -> list[Generation]:
        """Requests whose client is still waiting, in order of arrival."""
        return [generation for generation in self._requests.values() if not generation.done]

    def new_request_id(self) -> int:
        return next(self._request_ids)

    def check_admitting(self) -> None:
        """Check that new requests are accepted.

        Raises:
            ApiError: 503 while the model loads, after the drain delay, or after the engine failed.
        """
        if self._session.phase not in (Phase.READY, Phase.RESTARTING):
            self._counts.rejections["not_ready"] += 1
            raise self._session.not_ready()
        if not self.admitting:
            self._counts.rejections["draining"] += 1
            raise shutting_down()

    def share(self, service_class: str) -> int:
        """Returns how many requests of one body may be in the queue at once, where the others can follow."""
        return self._admission.share(service_class)

    def check_room(self, service_class: str, num_requests: int, field: str, num_tokens: Sequence[int] = ()) -> None:
        """Check that requests of one class may wait now, all or none.

        Args:
            num_requests: that enter the queue at once.
            field: of the body that makes so many, or has the prompts.
            num_tokens: tokens of each prompt of the body; empty before they are known.

        Raises:
            ApiError: as `check_admitting`; 503 the queue is full or the wait too long; 400 they can never wait.
        """
        self.check_admitting()
        weights = self._session.runtime.class_weights
        refusal = self._admission.refusal(service_class, num_requests, num_tokens, self.load(), weights, field)
        if refusal is not None:
            reason, error = refusal
            self._counts.rejections[reason] += 1
            raise error

    def load(self) -> Load:
        """Present values for admission and metrics."""
        demand, now = self._admission.demand, time.monotonic()
        if now >= demand.estimate_at:
            self.count_outputs()
            demand.estimate(now)
        session, num_queued_tokens = self._session, self._admission.waiting.num_tokens
        return Load(session.stats, session.runtime.limits, session.ready, len(self), num_queued_tokens)

    def count_outputs(self) -> None:
        """Count the tokens of running requests in the estimate of output lengths."""
        for generation in self._requests.values():
            if generation.phase is RequestPhase.RUNNING:
                self._count_output(generation)

    def submit(
        self,
        requests: Sequence[GenerationRequest],
        tokenizer: Tokenizer,
        arrived: float,
        inbox: Inbox,
        field: str,
        at_once: int | None = None,
    ) -> list[Generation]:
        """Send requests of one class to the engine, all or none; while it restarts they wait for the next one. Requests
        that another replica has finished are not sent. `inbox` receives their updates.

        Args:
            field: of the body that has the prompts.
            at_once: most of them that enter the queue at once; each that gets its first slot leaves its place to the
                next one, and all end with the first one that fails. None: all.

        Raises:
            ApiError: as `check_room`.
        """
        self.check_admitting()
        generations = [
            Generation(request, tokenizer.detokenizer(request.prompt_token_ids, request.shown_ids), arrived, inbox)
            for request in requests
        ]
        unfinished = [generation for generation in generations if not generation.done]
        if not unfinished:
            return generations
        if requests[0].relayed:
            self.relayed_at = arrived
        else:
            self.direct_at = arrived
        service_class = requests[0].scheduling.service_class
        first = unfinished[:at_once]
        later = deque(unfinished[len(first) :])
        self.check_room(service_class, len(first), field, [each.num_known_tokens for each in unfinished])
        self._enqueue(first)
        if later:
            for generation in unfinished:
                generation.later = later
            self._admission.waiting.hold(service_class, sum(each.num_known_tokens for each in later))
        return generations

    def end(self, generation: Generation, reason: FinishReason, error: ApiError | None = None) -> None:
        """End a request from this side, and in the engine; no-op when it has ended already."""
        if generation.done:
            return
        if generation.phase is RequestPhase.NEW:
            self._drop_later(generation, reason, error)
            return
        if reason is not FinishReason.STOP:
            self._counts.cancelled += 1
        self._finish(generation, reason, error)
        if self._session.link.open:
            self._session.send(CancelRequest(generation.request.request_id, reason))
        else:
            self._forget(generation)

    def end_all(self, error: ApiError) -> int:
        """Abort all running and waiting requests with an error for their clients; returns their number."""
        generations = self.unfinished()
        for generation in generations:
            self.end(generation, FinishReason.ABORT, error)
        return len(generations)

    def end_lost(self) -> None:
        """The engine process is gone, and there will be no other one."""
        for generation in self.unfinished():
            lost = engine_restarting if generation.request.relayed and not generation.had_slot else engine_failed
            message = "the engine process is gone and the request is lost; try again"
            self.end(generation, FinishReason.ABORT, lost(message))

    # Events of the session.

    def received(self, message: StepReport | Starting, now: float) -> None:
        match message:
            case StepReport():
                self._report(message, now)
            case Starting():
                for request_id in message.request_ids:
                    generation = self._requests.get(request_id)
                    if generation is not None and generation.phase is RequestPhase.QUEUED:
                        self._move(generation, RequestPhase.STARTING)

    def engine_lost(self, stats: StepStats) -> None:
        """Keep requests for the next engine process, or end them. Those that have ended leave."""
        self._counts.engine_lost(stats)
        self._slots = Slots(self._counts)
        for generation in [*self._requests.values()]:
            if generation.done:
                self._forget(generation)
            else:
                self._keep_or_end(generation)

    def engine_ready(self, ready: EngineReady, *, restarted: bool) -> None:
        """Submit all requests to another engine process, in order of arrival."""
        self._slots = Slots(self._counts, ready.capacity.max_num_seqs)
        self._step_costs.engine_ready(ready)
        if not restarted:
            return
        waiting, now = self.unfinished(), time.monotonic()
        for generation in waiting:
            self._timeouts.waits(generation, now)
        self._session.send(*_messages([(each, each.tries > 0) for each in waiting]))
        self._counts.engine_restarts += 1
        self._counts.resubmitted += sum(generation.tries > 0 for generation in waiting)
        log.info("the engine process was restarted; %d requests are submitted to it", len(waiting))

    def _keep_or_end(self, generation: Generation) -> None:
        """Keep a request, with its tokens so far, for the next engine process, unless a relay can continue it at
        another replica at once, or it may have caused the crash.

        Only a request with a slot can cause a crash. Where the start is announced, it is known whether a request took a
        slot in the step of the crash: of resubmitted requests, and of relayed ones, whose relay counts the crashes. Of
        others that are submitted for the first time it is unknown.
        """
        had_slot = generation.had_slot
        if had_slot or generation.tries == 0:
            generation.tries += 1
        if generation.request.relayed:
            lost = engine_failed if had_slot else engine_restarting
            self.end(generation, FinishReason.ERROR, lost("the engine process was lost; try again"))
        elif had_slot and generation.tries >= MAX_TRIES:
            why = "the engine process was lost for the second time while it computed this request; try again"
            self.end(generation, FinishReason.ERROR, engine_failed(why))
        else:
            generation.requeue(time.monotonic())
            if generation.phase is not RequestPhase.QUEUED:
                self._move(generation, RequestPhase.QUEUED)
            self._timeouts.stop(generation)

    def _report(self, report: StepReport, now: float) -> None:
        """Take in a report that arrived at `now`."""
        demand = self._admission.demand
        demand.step(report.stats)
        self._counts.step(report.stats, None if demand.step_cost is None else demand.step_cost.model)
        began = now - report.stats.step_seconds
        for request_id in report.preempted:
            preempted = self._requests.get(request_id)
            if preempted is not None and not preempted.done:
                preempted.preempt(max(began, preempted.progress_at))
        for admission in report.admitted:
            self._admitted(admission, began)
        self._slots.add_prompt_logprobs(report)
        self._slots.add_pooled(report)
        self._slots.add_tokens(report, now, lambda generation: self.end(generation, FinishReason.STOP))
        for finished in report.finished:
            self._finished(finished)
        self._step_costs.observe(report, now)

    def _cost_found(self, cost: StepCost) -> None:
        self._admission.demand.step_cost = cost
        self._session.send(cost)

    def _admitted(self, admission: Admission, began: float) -> None:
        """A request took a slot in a step that began at that time."""
        generation = self._requests.get(admission.request_id)
        self._slots.take(admission.slot, generation)
        if generation is None or generation.done:
            return
        timings = generation.timings
        if generation.waiting:
            self._move(generation, RequestPhase.RUNNING)
            self._timeouts.runs(generation, time.monotonic())
        if timings.admitted is None:
            timings.admitted = max(began, timings.arrived)
            generation.cached_tokens = min(admission.num_cached_tokens, len(generation.request.prompt_token_ids))
            if not generation.wait_counted:
                generation.wait_counted = True
                self._counts.queue_time.observe(timings.admitted - timings.arrived)
                self._follow(generation)
        elif generation.preemptions:
            latest = generation.preemptions[-1]
            latest.resumed = max(began, latest.began)
            self._slots.resume(generation)

    def _finished(self, finished: Finished) -> None:
        """The engine ended a request."""
        generation = self._requests.get(finished.request_id)
        if generation is None:
            return
        self._slots.free(generation)
        if not generation.done:
            self._finish(generation, finished.reason, _engine_error(finished))
        self._forget(generation)

    # Phases.

    def _finish(self, generation: Generation, reason: FinishReason, error: ApiError | None) -> None:
        self._move(generation, RequestPhase.ENDED)
        generation.finish(reason, time.monotonic(), error)
        self._count_output(generation)
        if reason in (FinishReason.STOP, FinishReason.LENGTH):
            self._admission.demand.output_lengths.ended(len(generation.token_ids))
        else:
            self._drop_later(generation, reason, error)
        self._counts.ended(generation)

    def _forget(self, generation: Generation) -> None:
        generation.move(RequestPhase.GONE)
        del self._requests[generation.request.request_id]

    def _follow(self, generation: Generation) -> None:
        """Send the next request of its call, which takes its place in the queue: nobody else can have taken it, and the
        queue holds no more than before."""
        if generation.later:
            following = generation.later.popleft()
            self._release(following)
            self._enqueue([following])

    def _enqueue(self, generations: Sequence[Generation]) -> None:
        """Send requests to the engine, all or none."""
        # First, so that requests that cannot be sent are not counted.
        self._session.send(*_messages([(each, each.request.relayed) for each in generations]))
        now = time.monotonic()
        for generation in generations:
            self._requests[generation.request.request_id] = generation
            self._move(generation, RequestPhase.QUEUED)
            self._admission.demand.arrived(generation.num_known_tokens)
            if self._session.phase is Phase.READY:
                self._timeouts.waits(generation, now)

    def _drop_later(self, generation: Generation, reason: FinishReason, error: ApiError | None) -> None:
        """End the requests of its call that were not sent."""
        while generation.later:
            later = generation.later.popleft()
            self._release(later)
            later.finish(reason, time.monotonic(), error)

    def _release(self, generation: Generation) -> None:
        """A request is no longer one of those to be sent later."""
        self._admission.waiting.hold(generation.request.scheduling.service_class, -generation.num_known_tokens)

    def _move(self, generation: Generation, phase: RequestPhase) -> None:
        """Move to another phase, with the count of waiting requests."""
        was_waiting = generation.waiting
        generation.move(phase)
        request = generation.request
        service_class = request.scheduling.service_class
        if generation.waiting and not was_waiting:
            arrived = generation.timings.arrived
            self._admission.waiting.enter(service_class, request.request_id, arrived, generation.num_known_tokens)
        elif was_waiting and not generation.waiting:
            self._admission.waiting.leave(service_class, request.request_id)

    def _time_out(self, generation: Generation, error: ApiError) -> None:
        self.end(generation, FinishReason.TIMEOUT, error)

    def _count_output(self, generation: Generation) -> None:
        length = len(generation.token_ids)
        self._admission.demand.output_lengths.generated(generation.counted_tokens, length)
        generation.counted_tokens = length


def _messages(generations: Sequence[tuple[Generation, bool]]) -> Iterator[AddRequest]:
    """The messages that submit requests, each with the tokens that it has.

    Args:
        generations: and whether the start of each is to be announced.
    """
    # Answers to one prompt share its list: packing and sending 128,000 tokens takes 5 ms.
    sent: list[int] | None = None
    for generation, announce_start in generations:
        request = generation.request
        repeated, sent = request.prompt_token_ids is sent, request.prompt_token_ids
        yield AddRequest(
            request_id=request.request_id,
            prompt_token_ids=None if repeated else _packed(request.prompt_token_ids),
            sampling=request.sampling,
            arrival_time=generation.timings.arrived,
            scheduling=request.scheduling,
            announce_start=announce_start,
            external_id=request.external_id,
            output_token_ids=_packed(generation.token_ids),
            kv_source=request.kv_source,
        )


def _packed(token_ids: Sequence[int]) -> bytes:
    return np.array(token_ids, np.dtype("<i4")).tobytes()


def _engine_error(finished: Finished) -> ApiError | None:
    """The error for a client whose request the engine ended."""
    reason = finished.reason
    if finished.refusal:
        return bad_request(
            f"the constraints of the request cannot be followed: {finished.refusal}", code="invalid_grammar"
        )
    if reason in (FinishReason.STOP, FinishReason.LENGTH):
        return None
    if reason is FinishReason.OUT_OF_MEMORY:
        return ApiError(
            503,
            "the device had no memory to compute this request; try again, and if it happens again, start the engine "
            "with a smaller --gpu-memory-utilization or --max-num-batched-tokens",
            code="out_of_memory",
            retry_after=1.0,
        )
    return ApiError(500, "the engine ended this request with an error; its log says why", code="engine_error")
