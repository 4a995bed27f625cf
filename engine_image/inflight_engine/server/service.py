"""The API process's state and what can be done with it: take a request, end one, change the limits."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from enum import StrEnum

import numpy as np

from inflight_engine.messages import (
    AddRequest,
    CancelRequest,
    EngineFailed,
    EngineReady,
    FromEngine,
    LimitsApplied,
    SetLimits,
    Shutdown,
    StepReport,
    ToEngine,
)
from inflight_engine.request import FinishReason
from inflight_engine.scheduling.limits import Limits, changed_limits
from inflight_engine.server.admission import AdmissionQueue
from inflight_engine.server.config import ServerConfig
from inflight_engine.server.dispatch import Dispatcher
from inflight_engine.server.engine_client import EngineClient
from inflight_engine.server.errors import ApiError
from inflight_engine.server.generation import Generation, GenerationRequest
from inflight_engine.server.metrics import NO_STATS, EngineMetrics, Gauges
from inflight_engine.server.prepare import ModelFacts, Tokenizer, seed_for

log = logging.getLogger(__name__)

LIMITS_TIMEOUT = 60.0
"""Seconds for new limits to take force: between two steps, and a step is far shorter."""

RETRY_AFTER_LOADING = 5.0
RETRY_AFTER_DRAINING = 1.0
"""Seconds. A client that tries again reaches another replica, or the one that comes after this."""

LONGEST_RETRY_AFTER = 60.0


class Phase(StrEnum):
    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"


class Service:
    """One per process. All methods run in the event loop.

    Attributes:
        draining: told to stop; responses close their connections, and /ready fails.
        admitting: new requests are still taken (for `drain_delay` seconds also while draining).
        failure: once it is set, why the engine cannot go on.
        last_progress: seconds, monotonic: latest step report, or when work came to an idle engine.
    """

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.started = time.monotonic()
        self.created = int(time.time())
        self.phase = Phase.LOADING
        self.draining = False
        self.admitting = True
        self.failure: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.engine_ready: asyncio.Future[EngineReady] = asyncio.get_running_loop().create_future()
        self.last_progress = self.started
        self.stats = NO_STATS
        self.limits: Limits | None = None
        self.metrics = EngineMetrics(config.served_model_name, self._gauges)
        self.client = EngineClient(self._on_message, self._on_lost)
        self._tokenizer: Tokenizer | None = None
        self._facts: ModelFacts | None = None
        self._queue = AdmissionQueue(config.bounds)
        self._dispatcher = Dispatcher(
            self.metrics,
            on_admitted=self._on_admitted,
            on_stop_string=lambda generation: self.end(generation, FinishReason.STOP),
            on_finished=self._on_finished,
        )
        self._request_ids = itertools.count()
        self._call_ids = itertools.count()
        self._calls: dict[int, asyncio.Future[Limits]] = {}
        self._changing_limits = asyncio.Lock()
        self._shut_down = False

    # What endpoints ask.

    @property
    def num_waiting(self) -> int:
        """Requests without a slot: what the engine knows and what is on its way to it, less what runs."""
        return max(0, len(self._dispatcher) - self.stats.num_running)

    @property
    def has_work(self) -> bool:
        return len(self._dispatcher) > 0

    @property
    def engine(self) -> EngineReady | None:
        """What the engine said when it was loaded."""
        return self.engine_ready.result() if self.engine_ready.done() else None

    @property
    def model(self) -> tuple[Tokenizer, ModelFacts]:
        """The loaded model.

        Raises:
            ApiError: 503 while it loads, while draining, or after the engine failed.
        """
        self._check_admitting()
        assert self._tokenizer is not None
        assert self._facts is not None
        return self._tokenizer, self._facts

    def new_request_id(self) -> int:
        return next(self._request_ids)

    def default_seed(self, request_id: int) -> int:
        return seed_for(self.config.engine.seed, request_id)

    def refuse_if_full(self) -> None:
        """Before a prompt is tokenized: no work for what cannot be taken.

        Raises:
            ApiError: 503.
        """
        self._check_admitting()
        self._check_bounds(0)

    def submit(self, request_id: int, request: GenerationRequest, arrived: float) -> Generation:
        """Send a request to the engine.

        Raises:
            ApiError: 503 when the queue is full or no requests are taken; 400 when it could never be.
        """
        tokenizer, _ = self.model
        num_tokens = len(request.prompt_token_ids)
        self._check_bounds(num_tokens)
        generation = Generation(request_id, request, tokenizer.detokenizer(request.prompt_token_ids), arrived)
        prompt = np.array(request.prompt_token_ids, np.dtype("<i4")).tobytes()
        # First of all, so that a request that cannot be sent takes no place.
        self._send(AddRequest(request_id, prompt, request.sampling, arrived))
        self._queue.enter(num_tokens)
        if not self.has_work:
            self.last_progress = time.monotonic()
        self._dispatcher.add(generation)
        generation.timer = asyncio.get_running_loop().call_later(
            self.config.queue_timeout, self._timed_out, generation, "queue", self.config.queue_timeout
        )
        return generation

    def end(self, generation: Generation, reason: FinishReason, error: ApiError | None = None) -> None:
        """End a request from this side, and in the engine; no-op when it has ended already."""
        if generation.done:
            return
        if reason is not FinishReason.STOP:
            self.metrics.cancelled += 1
        self._finish(generation, reason, error)
        self._send(CancelRequest(generation.request_id, reason))

    def end_all(self, error: ApiError) -> int:
        """End everything that runs or waits with an error that clients see; how many there were."""
        generations = self._dispatcher.unfinished()
        for generation in generations:
            self.end(generation, FinishReason.ABORT, error)
        return len(generations)

    async def change_limits(
        self,
        *,
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int | None = None,
        revision: int | None = None,
    ) -> Limits:
        """The limits in force after the engine applied the change.

        Raises:
            LimitError, StaleRevisionError: see `changed_limits`; nothing changed.
            ApiError: 503 while the model loads or after the engine failed, 504 when the engine does not answer.
        """
        async with self._changing_limits:
            if self.limits is None or self.phase is Phase.FAILED:
                raise self._not_ready()
            wanted = changed_limits(
                self.limits,
                self.engine_ready.result().capacity,
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_batched_tokens,
                revision=revision,
            )
            return await self._apply(wanted)

    async def open(self, tokenizer: Tokenizer, limits: Limits) -> None:
        """Begin to take requests: the model is loaded."""
        ready = self.engine_ready.result()
        if limits != ready.capacity:
            await self._apply(limits)
        self.limits = limits
        self._tokenizer = tokenizer
        self._facts = ModelFacts(tokenizer.eos_token_ids, ready.vocab_size, ready.max_model_len)
        self.phase = Phase.READY

    def shut_down_engine(self) -> None:
        """After a drain: its connection ends then, and that is no failure."""
        self._shut_down = True
        self._send(Shutdown())

    # What the engine says.

    def _on_message(self, message: FromEngine) -> None:
        match message:
            case StepReport():
                now = time.monotonic()
                self.stats = message.stats
                self.last_progress = now
                self._dispatcher.report(message, now)
            case LimitsApplied():
                self.limits = message.limits
                call = self._calls.pop(message.call_id, None)
                if call is not None and not call.done():
                    call.set_result(message.limits)
            case EngineReady():
                self._dispatcher.start(message.capacity.max_num_seqs)
                self.engine_ready.set_result(message)
            case EngineFailed():
                self.fail(message.message)

    def _on_lost(self, why: str | None) -> None:
        if not self._shut_down:
            self.fail(why or "")

    def fail(self, why: str) -> None:
        """The engine cannot go on; `why` is a sentence, or empty where only the process's exit status tells."""
        if not self.failure.done():
            self.phase = Phase.FAILED
            self.failure.set_result(why)
            for call in self._calls.values():
                if not call.done():
                    call.set_exception(self._not_ready())

    def _on_admitted(self, generation: Generation) -> None:
        self._leave_queue(generation)
        if generation.timer is not None:
            generation.timer.cancel()
        generation.timer = asyncio.get_running_loop().call_later(
            self.config.request_timeout, self._timed_out, generation, "run", self.config.request_timeout
        )

    def _on_finished(self, generation: Generation, reason: FinishReason, error: ApiError | None) -> None:
        self._finish(generation, reason, error)

    # Shared.

    def _finish(self, generation: Generation, reason: FinishReason, error: ApiError | None) -> None:
        if generation.waiting:
            self._leave_queue(generation)
        now = time.monotonic()
        generation.finish(reason, now, error)
        metrics, timings, count = self.metrics, generation.timings, len(generation.token_ids)
        metrics.finished[reason] += 1
        if reason in (FinishReason.STOP, FinishReason.LENGTH):
            metrics.end_to_end.observe(now - timings.arrived)
            if timings.first_token is not None and count > 1:
                metrics.time_per_output_token.observe((now - timings.first_token) / (count - 1))

    def _leave_queue(self, generation: Generation) -> None:
        self._queue.leave(len(generation.request.prompt_token_ids))

    def _timed_out(self, generation: Generation, what: str, seconds: float) -> None:
        message = (
            f"waited {seconds:g} s for a slot, the most that --queue-timeout allows"
            if what == "queue"
            else f"ran for {seconds:g} s, the most that --request-timeout allows"
        )
        self.end(generation, FinishReason.TIMEOUT, ApiError(504, f"the request {message}", code=f"{what}_timeout"))

    def _check_admitting(self) -> None:
        if self.phase is not Phase.READY:
            self.metrics.rejections["not_ready"] += 1
            raise self._not_ready()
        if not self.admitting:
            self.metrics.rejections["draining"] += 1
            raise ApiError(
                503,
                "this replica is shutting down and takes no new requests; try again to reach another",
                code="draining",
                retry_after=RETRY_AFTER_DRAINING,
            )

    def _not_ready(self) -> ApiError:
        if self.phase is Phase.FAILED:
            return ApiError(503, "the engine process is gone and this server is ending", code="engine_failed")
        return ApiError(503, "the model is still loading", code="loading", retry_after=RETRY_AFTER_LOADING)

    def _check_bounds(self, num_tokens: int) -> None:
        predicted = self.metrics.predicted_queue_seconds(self.stats, self._queue.tokens)
        refusal = self._queue.refusal(num_tokens, min(predicted, LONGEST_RETRY_AFTER))
        if refusal is not None:
            reason, error = refusal
            self.metrics.rejections[reason] += 1
            raise error

    async def _apply(self, limits: Limits) -> Limits:
        call_id = next(self._call_ids)
        call = self._calls[call_id] = asyncio.get_running_loop().create_future()
        try:
            self._send(SetLimits(call_id, limits))
            return await asyncio.wait_for(call, LIMITS_TIMEOUT)
        except TimeoutError:
            raise ApiError(504, f"the engine did not apply the limits within {LIMITS_TIMEOUT:g} s") from None
        finally:
            self._calls.pop(call_id, None)

    def _send(self, message: ToEngine) -> None:
        self.client.send(message)

    def _gauges(self) -> Gauges:
        return Gauges(
            stats=self.stats,
            limits=self.limits,
            ready=self.engine,
            waiting=self.num_waiting,
            queued_tokens=self._queue.tokens,
            draining=self.draining,
        )
