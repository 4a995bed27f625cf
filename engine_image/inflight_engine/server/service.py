"""The API process's state and what can be done with it: take requests, and end them."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from enum import StrEnum

import numpy as np

from inflight_engine.messages import (
    AddRequest,
    CancelRequest,
    Configured,
    EngineFailed,
    EngineReady,
    FromEngine,
    RecordFlushed,
    Shutdown,
    StepReport,
    ToEngine,
)
from inflight_engine.request import FinishReason
from inflight_engine.scheduling.limits import Limits
from inflight_engine.server.admission import AdmissionQueue
from inflight_engine.server.config import ServerConfig
from inflight_engine.server.dispatch import Dispatcher
from inflight_engine.server.engine_calls import EngineCalls
from inflight_engine.server.engine_client import EngineClient
from inflight_engine.server.errors import ApiError
from inflight_engine.server.generation import Generation, GenerationRequest, Inbox
from inflight_engine.server.metrics import NO_STATS, EngineMetrics, Gauges
from inflight_engine.server.prepare import ModelFacts, Tokenizer
from inflight_engine.server.runtime_config import RuntimeConfig

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
        self.metrics = EngineMetrics(config.served_model_name, config.engine.classes, self._gauges)
        self.client = EngineClient(self._on_message, self._on_lost)
        self.calls = EngineCalls(self._send)
        self.runtime = RuntimeConfig(config.engine.classes, self.calls)
        self._tokenizer: Tokenizer | None = None
        self._facts: ModelFacts | None = None
        self._queue = AdmissionQueue(config.bounds, config.engine.classes)
        self._dispatcher = Dispatcher(
            self.metrics,
            on_admitted=self._on_admitted,
            on_stop_string=lambda generation: self.end(generation, FinishReason.STOP),
            on_finished=self._on_finished,
        )
        self._request_ids = itertools.count()
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
        assert self._facts is not None
        return self.tokenizer, self._facts

    @property
    def tokenizer(self) -> Tokenizer:
        """Of the loaded model."""
        assert self._tokenizer is not None
        return self._tokenizer

    def new_request_id(self) -> int:
        return next(self._request_ids)

    def refuse_if_full(self, service_class: str, num_requests: int) -> None:
        """Before prompts are tokenized: no work for what cannot be taken.

        Raises:
            ApiError: as `submit`.
        """
        self._check_admitting()
        self._check_bounds(service_class, num_requests, 0)

    def submit(self, requests: Sequence[GenerationRequest], arrived: float, inbox: Inbox) -> list[Generation]:
        """Send requests of one class to the engine, all or none. `inbox` gets the news of what they become.

        Raises:
            ApiError: 503 when the queue is full or no requests are taken; 400 when they could never be.
        """
        tokenizer, _ = self.model
        service_class = requests[0].scheduling.service_class
        self._check_bounds(service_class, len(requests), sum(len(request.prompt_token_ids) for request in requests))
        # First of all, so that requests that cannot be sent take no place.
        self._send(*(_message(request, arrived) for request in requests))
        if not self.has_work:
            self.last_progress = time.monotonic()
        generations = []
        for request in requests:
            generation = Generation(request, tokenizer.detokenizer(request.prompt_token_ids), arrived, inbox)
            self._queue.enter(service_class, len(request.prompt_token_ids))
            self._dispatcher.add(generation)
            generation.timer = asyncio.get_running_loop().call_later(
                self.config.queue_timeout, self._timed_out, generation, "queue", self.config.queue_timeout
            )
            generations.append(generation)
        return generations

    def end(self, generation: Generation, reason: FinishReason, error: ApiError | None = None) -> None:
        """End a request from this side, and in the engine; no-op when it has ended already."""
        if generation.done:
            return
        if reason is not FinishReason.STOP:
            self.metrics.cancelled += 1
        self._finish(generation, reason, error)
        self._send(CancelRequest(generation.request.request_id, reason))

    def end_all(self, error: ApiError) -> int:
        """End everything that runs or waits with an error that clients see; how many there were."""
        generations = self._dispatcher.unfinished()
        for generation in generations:
            self.end(generation, FinishReason.ABORT, error)
        return len(generations)

    async def open(self, tokenizer: Tokenizer, limits: Limits) -> None:
        """Begin to take requests: the model is loaded."""
        ready = self.engine_ready.result()
        await self.runtime.start(limits, ready.capacity)
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
            case Configured():
                self.runtime.applied(message)
                self.calls.answered(message)
            case RecordFlushed():
                self.calls.answered(message)
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
            self.calls.fail(self.not_ready())

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
        generation.finish(reason, time.monotonic(), error)
        self.metrics.ended(generation)

    def _leave_queue(self, generation: Generation) -> None:
        request = generation.request
        self._queue.leave(request.scheduling.service_class, len(request.prompt_token_ids))

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
            raise self.not_ready()
        if not self.admitting:
            self.metrics.rejections["draining"] += 1
            raise ApiError(
                503,
                "this replica is shutting down and takes no new requests; try again to reach another",
                code="draining",
                retry_after=RETRY_AFTER_DRAINING,
            )

    def not_ready(self) -> ApiError:
        """What to say while there is no engine, or none any more."""
        if self.phase is Phase.FAILED:
            return ApiError(503, "the engine process is gone and this server is ending", code="engine_failed")
        return ApiError(503, "the model is still loading", code="loading", retry_after=RETRY_AFTER_LOADING)

    def _check_bounds(self, service_class: str, num_requests: int, num_tokens: int) -> None:
        predicted = self.metrics.predicted_queue_seconds(self.stats, self._queue.tokens)
        refusal = self._queue.refusal(service_class, num_requests, num_tokens, min(predicted, LONGEST_RETRY_AFTER))
        if refusal is not None:
            reason, error = refusal
            self.metrics.rejections[reason] += 1
            raise error

    def _send(self, *messages: ToEngine) -> None:
        self.client.send(*messages)

    def _gauges(self) -> Gauges:
        return Gauges(
            stats=self.stats,
            limits=self.runtime.limits,
            ready=self.engine,
            waiting=self.num_waiting,
            queued_by_class=self._queue.by_class,
            queued_tokens=self._queue.tokens,
            draining=self.draining,
        )


def _message(request: GenerationRequest, arrived: float) -> AddRequest:
    scheduling, sampling = request.scheduling, request.sampling
    predicted = scheduling.predicted_tokens
    return AddRequest(
        request_id=request.request_id,
        prompt_token_ids=np.array(request.prompt_token_ids, np.dtype("<i4")).tobytes(),
        sampling=sampling,
        arrival_time=arrived,
        priority=scheduling.priority,
        service_class=scheduling.service_class,
        tenant=scheduling.tenant,
        cache_salt=scheduling.cache_salt,
        # More than it may generate, it will not.
        predicted_tokens=None if predicted is None else min(predicted, sampling.max_tokens),
    )
