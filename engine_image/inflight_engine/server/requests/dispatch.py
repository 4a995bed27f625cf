"""Dispatch of step reports to generations. The cost depends on the size of a report, not on the number of running
requests."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from inflight_engine.messages import StepReport
from inflight_engine.output import TokenLogprobs
from inflight_engine.request import FinishReason
from inflight_engine.server.errors import ApiError
from inflight_engine.server.requests.generation import Generation
from inflight_engine.server.telemetry.metrics import EngineMetrics


class Dispatcher:
    """Tracks every request of the engine, and the request in each slot.

    Args:
        on_admitted: a request leaves the queue.
        on_stop_string: the text of a request reached a stop string.
        on_finished: the engine ended a request (not called for requests ended on this side).
    """

    def __init__(
        self,
        metrics: EngineMetrics,
        *,
        on_admitted: Callable[[Generation], None],
        on_stop_string: Callable[[Generation], None],
        on_finished: Callable[[Generation, FinishReason, ApiError | None], None],
    ) -> None:
        self._metrics = metrics
        self._on_admitted = on_admitted
        self._on_stop_string = on_stop_string
        self._on_finished = on_finished
        self._known: dict[int, Generation] = {}
        self._slots: list[Generation | None] = []
        self._last_tokens_at = math.nan
        self._resumed: list[Generation] = []
        """Have a slot again after a preemption, and no token since then."""

    def __len__(self) -> int:
        """Requests not reported as finished by the engine."""
        return len(self._known)

    def add(self, generation: Generation) -> None:
        self._known[generation.request.request_id] = generation

    def unfinished(self) -> list[Generation]:
        """Requests whose client is still waiting."""
        return [generation for generation in self._known.values() if not generation.done]

    def running(self) -> list[Generation]:
        """Requests that are receiving tokens."""
        return [generation for generation in self._slots if generation is not None and not generation.done]

    def start(self, num_slots: int) -> None:
        """A new engine process starts."""
        self._slots = [None] * num_slots
        self._resumed = []
        self._last_tokens_at = math.nan

    def forget(self, generation: Generation) -> None:
        """Removes a request without further reports: its engine process exited."""
        del self._known[generation.request.request_id]

    def engine_gone(self) -> list[Generation]:
        """Clear the slots, and the requests that ended on this side. Returns the others, in order of arrival."""
        self._slots = []
        unfinished = self.unfinished()
        self._known = {generation.request.request_id: generation for generation in unfinished}
        return unfinished

    def starting(self, request_ids: Iterable[int]) -> None:
        """Resubmitted requests take a slot in a starting step; its report arrives later, or never."""
        for request_id in request_ids:
            if request_id in self._known:
                self._known[request_id].starting = True

    def report(self, report: StepReport, now: float) -> None:
        """`now`: arrival of the report, seconds, monotonic."""
        self._metrics.step(report.stats)
        began = now - report.stats.step_seconds
        for request_id in report.preempted:
            preempted = self._known.get(request_id)
            if preempted is not None and not preempted.done:
                preempted.preempt(max(began, preempted.progress_at))
        for admission in report.admitted:
            admitted = self._known.get(admission.request_id)
            self._slots[admission.slot] = admitted
            if admitted is None:
                continue
            admitted.slot = admission.slot
            if admitted.done:
                continue
            if admitted.waiting:
                self._on_admitted(admitted)
                admitted.queued = False
            if admitted.timings.admitted is None:
                admitted.timings.admitted = max(began, admitted.timings.arrived)
                admitted.cached_tokens = min(admission.num_cached_tokens, len(admitted.request.prompt_token_ids))
                if not admitted.wait_counted:
                    admitted.wait_counted = True
                    self._metrics.queue_time.observe(admitted.timings.admitted - admitted.timings.arrived)
            elif admitted.preemptions:
                latest = admitted.preemptions[-1]
                latest.resumed = max(began, latest.began)
                self._resumed.append(admitted)
        for prompt_logprobs in report.prompt_logprobs:
            owner = self._slots[prompt_logprobs.slot]
            if owner is not None and not owner.done:
                owner.add_prompt_logprobs(prompt_logprobs)
        if report.slots:
            slots = np.frombuffer(report.slots, np.int32).tolist()
            token_ids = np.frombuffer(report.token_ids, np.int32).tolist()
            self._tokens(slots, token_ids, {logprobs.slot: logprobs for logprobs in report.logprobs}, now)
        for finished in report.finished:
            ended = self._known.pop(finished.request_id, None)
            if ended is None:
                continue
            if ended.slot >= 0 and self._slots[ended.slot] is ended:
                self._slots[ended.slot] = None  # or its tokens would stay in memory until the slot is taken again
            if not ended.done:
                self._on_finished(ended, finished.reason, _engine_error(finished.reason))

    def _tokens(
        self, slots: list[int], token_ids: list[int], logprobs: Mapping[int, TokenLogprobs], now: float
    ) -> None:
        metrics, last, owners = self._metrics, self._last_tokens_at, self._slots
        steady = count = 0
        for slot, token_id in zip(slots, token_ids, strict=True):
            generation = owners[slot]
            if generation is None or generation.done:
                continue
            count += 1
            if generation.last_token_at == last:
                steady += 1
            elif generation.last_token_at < 0:
                generation.timings.first_token = now
                if not generation.first_token_counted:
                    generation.first_token_counted = True
                    metrics.time_to_first_token.observe(now - generation.timings.arrived)
                    metrics.prompt_tokens += len(generation.request.prompt_token_ids)
            else:
                metrics.inter_token_latency.observe(now - generation.last_token_at)
            generation.last_token_at = now
            if generation.add_token(token_id, logprobs.get(slot)):
                self._on_stop_string(generation)
        if steady:
            metrics.inter_token_latency.observe(now - last, steady)
        if self._resumed:
            self._resumed = [generation for generation in self._resumed if not _caught_up(generation, now)]
        metrics.generation_tokens += count
        self._last_tokens_at = now


def _caught_up(generation: Generation, now: float) -> bool:
    """Whether tracking of a resumed request ends: its next token arrived now, or it ended or lost its slot again."""
    latest = generation.preemptions[-1] if generation.preemptions else None
    if latest is None or latest.resumed is None or generation.done:
        return True
    if generation.last_token_at != now:
        return False
    latest.next_token = now
    return True


def _engine_error(reason: FinishReason) -> ApiError | None:
    """The error for a client whose request the engine ended."""
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
