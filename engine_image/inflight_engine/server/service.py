"""State of the API process, with methods to accept and to end requests."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from fastapi import Depends, Request

from inflight_engine.messages import (
    CancelRequest,
    Configured,
    EngineFailed,
    EngineReady,
    FromEngine,
    LongStep,
    RecordFlushed,
    Shutdown,
    Starting,
    StepCost,
    StepReport,
    ToEngine,
)
from inflight_engine.models.generation_config import SamplingDefaults
from inflight_engine.request import FinishReason
from inflight_engine.server.admission.bounds import AdmissionQueue
from inflight_engine.server.admission.shedding import Shedding
from inflight_engine.server.answers.heartbeats import Heartbeats
from inflight_engine.server.engine.calls import EngineCalls
from inflight_engine.server.engine.link import EngineLink, add_request
from inflight_engine.server.engine.phase import Phase, engine_failed, engine_restarting, no_engine, shutting_down
from inflight_engine.server.engine.progress import KILL_GRACE_SECONDS, Progress
from inflight_engine.server.engine.restarts import Restarts
from inflight_engine.server.engine.runtime_config import RuntimeConfig
from inflight_engine.server.errors import ApiError
from inflight_engine.server.requests.dispatch import Dispatcher
from inflight_engine.server.requests.generation import Generation, GenerationRequest
from inflight_engine.server.requests.inbox import Deliveries, Inbox
from inflight_engine.server.requests.prepare import ModelFacts, Tokenizer
from inflight_engine.server.requests.tenants import Tenants
from inflight_engine.server.requests.timeouts import Timeouts
from inflight_engine.server.settings.config import ServerConfig
from inflight_engine.server.telemetry.exchange import RequestSpans
from inflight_engine.server.telemetry.metrics import NO_STATS, EngineMetrics, Gauges
from inflight_settings.limits import LimitsInForce

MAX_TRIES = 2
"""Of a request: one with a slot in two engine processes that died may have caused the crashes."""

LONGEST_RETRY_AFTER = 60.0

log = logging.getLogger(__name__)


class Service:
    """One per process. All methods run in the event loop.

    Attributes:
        draining: shutting down; responses close their connections, and /ready fails.
        admitting: new requests are still accepted (for `drain_delay` seconds also while draining).
        failure: once set, why the engine cannot continue.
        failed_while: the phase before that.
        engine_ready: the first engine process has loaded the model.
        engine: report of the latest engine process after loading.
        engine_lost: set when a new engine process has to be started.
        deliveries: updates of generations, to the writers of their responses.
        heartbeats: of responses that report their progress.
        tenants: determines the tenant of a request.
        lost_at: when the latest engine process was lost, seconds on the monotonic clock.
        record: file of the scheduling record; None: no recording.
        spans: creates the traces of requests; None: no tracing.
    """

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.started = time.monotonic()
        self.created = int(time.time())
        self.phase = Phase.LOADING
        self.draining = False
        self.admitting = True
        self.failure: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.failed_while = Phase.LOADING
        self.engine_ready: asyncio.Future[EngineReady] = asyncio.get_running_loop().create_future()
        self.engine: EngineReady | None = None
        self.engine_lost = asyncio.Event()
        self.lost_at = 0.0
        self.record = None if config.engine.record is None else Path(config.engine.record)
        self.progress = Progress(self.started)
        self.stats = NO_STATS
        self.metrics = EngineMetrics(
            config.served_model_name,
            config.engine.classes,
            self._gauges,
            lambda: self._dispatcher.running(),
            config.engine.ttft_per_token,
        )
        self.link = EngineLink(self._on_message, self.lose_engine)
        self.calls = EngineCalls(self._send)
        self.deliveries = Deliveries()
        self.heartbeats = Heartbeats(lambda: self.stalled)
        self.tenants = Tenants(trusted=config.trust_tenant_header, key_file=config.tenant_key_file)
        self.spans: RequestSpans | None = None
        self.runtime = RuntimeConfig(config.engine.classes, self.calls)
        self._tokenizer: Tokenizer | None = None
        self._facts: ModelFacts | None = None
        self._queue = AdmissionQueue(config)
        self._shedding = Shedding(
            config.engine.classes,
            config.shed_after,
            config.engine.ttft_targets,
            self._seconds_for,
            config.engine.ttft_per_token,
        )
        self._dispatcher = Dispatcher(
            self.metrics,
            on_admitted=self._on_admitted,
            on_stop_string=lambda generation: self.end(generation, FinishReason.STOP),
            on_finished=self._finish,
        )
        self._timeouts = Timeouts(
            config.queue_timeout,
            config.request_timeout,
            config.engine.classes,
            lambda generation, error: self.end(generation, FinishReason.TIMEOUT, error),
        )
        self._restarts = Restarts()
        self._request_ids = itertools.count()
        self._shut_down = False

    # Queries of endpoints.

    @property
    def num_waiting(self) -> int:
        """Requests without a slot: those at the engine or on their way to it, minus running ones."""
        return max(0, len(self._dispatcher) - self.stats.num_running)

    @property
    def has_work(self) -> bool:
        return len(self._dispatcher) > 0 or self.calls.waiting

    @property
    def stalled(self) -> bool:
        """The engine has work, and its step is overdue."""
        return self._overdue > 0

    @property
    def hung(self) -> bool:
        """It has stalled for so long that it should be killed."""
        return self._overdue > KILL_GRACE_SECONDS

    @property
    def _overdue(self) -> float:
        """Seconds."""
        if self.phase is not Phase.READY or not self.has_work:
            return 0.0
        return self.progress.overdue(time.monotonic())

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
    def sampling_defaults(self) -> SamplingDefaults | None:
        """Of requests; None while the model loads."""
        return None if self._facts is None else self._facts.defaults

    @property
    def tokenizer(self) -> Tokenizer:
        """Of the loaded model."""
        assert self._tokenizer is not None
        return self._tokenizer

    def new_request_id(self) -> int:
        return next(self._request_ids)

    def refuse_if_full(self, service_class: str, num_requests: int) -> None:
        """Called before prompts are tokenized: no work for requests that cannot be accepted.

        Raises:
            ApiError: as `submit`.
        """
        self._check_admitting()
        self._check_bounds(service_class, num_requests)

    def submit(self, requests: Sequence[GenerationRequest], arrived: float, inbox: Inbox) -> list[Generation]:
        """Send requests of one class to the engine, all or none; while it restarts they wait for the next one. Requests
        that another replica has finished are not sent. `inbox` receives their updates.

        Raises:
            ApiError: 503 when the queue is full or no requests are taken; 400 when they could never be.
        """
        tokenizer, _ = self.model
        service_class = requests[0].scheduling.service_class
        generations = [
            Generation(request, tokenizer.detokenizer(request.prompt_token_ids), arrived, inbox) for request in requests
        ]
        unfinished, now = [generation for generation in generations if not generation.done], time.monotonic()
        if not unfinished:
            return generations
        self._check_bounds(service_class, len(unfinished), [each.num_known_tokens for each in unfinished])
        # First, so that requests that cannot be sent are not counted.
        self._send(
            *(
                add_request(each.request, arrived, each.token_ids, announce_start=each.request.relayed)
                for each in unfinished
            )
        )
        for generation in unfinished:
            self._enter_queue(generation)
            self._dispatcher.add(generation)
            self.metrics.arrived(generation.num_known_tokens)
            self._timeouts.waits(generation, now)
        return generations

    def end(self, generation: Generation, reason: FinishReason, error: ApiError | None = None) -> None:
        """End a request from this side, and in the engine; no-op when it has ended already."""
        if generation.done:
            return
        if reason is not FinishReason.STOP:
            self.metrics.cancelled += 1
        self._finish(generation, reason, error)
        if self.link.open:
            self._send(CancelRequest(generation.request.request_id, reason))
        else:
            self._dispatcher.forget(generation)

    def end_all(self, error: ApiError) -> int:
        """Abort all running and waiting requests with an error for their clients; returns their number."""
        generations = self._dispatcher.unfinished()
        for generation in generations:
            self.end(generation, FinishReason.ABORT, error)
        return len(generations)

    def end_lost(self) -> None:
        """The engine process is gone, and there will be no other one."""
        for generation in self._dispatcher.unfinished():
            waited = generation.request.relayed and not _had_slot(generation)
            lost = engine_restarting if waited else engine_failed
            message = "the engine process is gone and the request is lost; try again"
            self.end(generation, FinishReason.ABORT, lost(message))

    async def open(self, tokenizer: Tokenizer, limits: LimitsInForce) -> None:
        """Start accepting requests: the model is loaded."""
        ready = self.engine_ready.result()
        await self.runtime.start(limits, ready.capacity)
        self._tokenizer = tokenizer
        self._facts = ModelFacts.of(tokenizer, ready)
        self.phase = Phase.READY

    def shut_down_engine(self) -> None:
        """After a drain: its connection ends then, and that is no failure."""
        self._shut_down = True
        self._send(Shutdown())
        self.calls.fail(shutting_down())

    # Messages of the engine.

    def _on_message(self, message: FromEngine) -> None:
        now = time.monotonic()
        match message:
            case StepReport():
                self.stats = message.stats
                self.progress.reported(message.step, now)
                self._dispatcher.report(message, now)
            case LongStep():
                self.progress.announced(message, now)
            case StepCost():
                self.metrics.step_cost = message
            case Starting():
                self._dispatcher.starting(message.request_ids)
            case Configured():
                self.progress.made(now)
                self.runtime.applied(message)
                self.calls.answered(message)
            case RecordFlushed():
                self.progress.made(now)
                self.calls.answered(message)
            case EngineReady():
                self._on_ready(message)
            case EngineFailed():
                self.lose_engine(message.message)

    def _on_ready(self, ready: EngineReady) -> None:
        self.engine = ready
        self.progress = Progress(time.monotonic())
        self._dispatcher.start(ready.capacity.max_num_seqs)
        self.link.open = True
        if self.phase is Phase.RESTARTING:
            self._resume(ready)
        elif not self.engine_ready.done():
            self.engine_ready.set_result(ready)

    # Loss of the engine process.

    def lose_engine(self, why: str | None) -> None:
        """It died, or has to be killed; `why`: a sentence, None if only the exit status is known.

        A new one is started, if this one was loaded and there were not too many restarts recently.
        """
        if self._shut_down:
            return
        self.link.cut()
        now = time.monotonic()
        if self.phase is not Phase.READY or not self._restarts.begin(now):
            self.fail(why or "")
            return
        log.error("%s; another one is started", why or "the engine process is gone")
        self.phase, self.lost_at = Phase.RESTARTING, now
        self.calls.fail(self.not_ready())
        self.metrics.engine_gone(self.stats)
        self.stats = NO_STATS
        for generation in self._dispatcher.engine_gone():
            self._keep_or_end(generation)
        self.engine_lost.set()

    def _keep_or_end(self, generation: Generation) -> None:
        """Keep a request, with its tokens so far, for the next engine process, unless a relay can continue it at
        another replica at once, or it may have caused the crash.

        Only a request with a slot can cause a crash. Where the start is announced, it is known whether a request took a
        slot in the step of the crash: of resubmitted requests, and of relayed ones, whose relay counts the crashes. Of
        others that are submitted for the first time it is unknown.
        """
        had_slot = _had_slot(generation)
        if had_slot or generation.tries == 0:
            generation.tries += 1
        suspect = had_slot and generation.tries >= MAX_TRIES
        if generation.request.relayed:
            lost = engine_failed if had_slot else engine_restarting
            self.end(generation, FinishReason.ERROR, lost("the engine process was lost; try again"))
            return
        if suspect:
            why = "the engine process was lost for the second time while it computed this request; try again"
            self.end(generation, FinishReason.ERROR, engine_failed(why))
            return
        was_waiting, now = generation.waiting, time.monotonic()
        generation.requeue(now)
        if not was_waiting:
            self._enter_queue(generation)
            self._timeouts.waits(generation, now)

    def _resume(self, ready: EngineReady) -> None:
        """A new engine process is loaded: sends the configuration in force first, then the requests in order of
        arrival."""
        self._facts = ModelFacts.of(self.tokenizer, ready)
        self.calls.resume()
        self.runtime.restore()
        waiting = self._dispatcher.unfinished()
        self.metrics.resubmitted += sum(generation.tries > 0 for generation in waiting)
        self._send(
            *(
                add_request(each.request, each.timings.arrived, each.token_ids, announce_start=each.tries > 0)
                for each in waiting
            )
        )
        self.metrics.engine_restarts += 1
        self.phase = Phase.READY
        log.info("the engine process was restarted; %d requests are submitted to it", len(waiting))

    def fail(self, why: str) -> None:
        """The engine cannot continue; `why` is a sentence, or empty if only the exit status is known."""
        if not self.failure.done():
            self.failed_while, self.phase = self.phase, Phase.FAILED
            self.failure.set_result(why)
            self.calls.fail(self.not_ready())

    # Outcome of requests.

    def _on_admitted(self, generation: Generation) -> None:
        self._leave_queue(generation)
        self._timeouts.runs(generation, time.monotonic())

    def _finish(self, generation: Generation, reason: FinishReason, error: ApiError | None) -> None:
        if generation.waiting:
            self._leave_queue(generation)
        generation.finish(reason, time.monotonic(), error)
        self.metrics.ended(generation)

    def _enter_queue(self, generation: Generation) -> None:
        request, arrived = generation.request, generation.timings.arrived
        name, num_tokens = request.scheduling.service_class, generation.num_known_tokens
        self._queue.enter(name, num_tokens)
        self._shedding.enter(name, request.request_id, arrived, num_tokens)

    def _leave_queue(self, generation: Generation) -> None:
        request = generation.request
        self._shedding.leave(request.scheduling.service_class, request.request_id)
        self._queue.leave(request.scheduling.service_class, generation.num_known_tokens)

    def _check_admitting(self) -> None:
        if self.phase not in (Phase.READY, Phase.RESTARTING):
            self.metrics.rejections["not_ready"] += 1
            raise self.not_ready()
        if not self.admitting:
            self.metrics.rejections["draining"] += 1
            raise shutting_down()

    def not_ready(self) -> ApiError:
        """The error while no engine is running."""
        return no_engine(self.phase)

    def _check_bounds(self, service_class: str, num_requests: int, num_tokens: Sequence[int] = ()) -> None:
        """`num_tokens`: of each prompt; empty before they are known."""
        now = self._gauges()
        uncomputed = now.waiting_tokens
        predicted = self.metrics.seconds_for(uncomputed, now.waiting, now)
        refusal = self._queue.refusal(service_class, num_requests, sum(num_tokens), min(predicted, LONGEST_RETRY_AFTER))
        if refusal is not None:
            reason, error = refusal
            self.metrics.rejections[reason] += 1
            raise error
        # The engine's last message may be older than the end of its requests.
        uncomputed = uncomputed if len(self._dispatcher) else 0
        # All are accepted or none: the shortest prompt has the least time.
        shortest = min(num_tokens, default=None)
        weights = self.runtime.class_weights
        shed = self._shedding.refusal(service_class, time.monotonic(), uncomputed, weights, shortest)
        if shed is not None:
            self.metrics.rejections["shed"] += 1
            raise shed

    def _seconds_for(self, num_tokens: float, num_requests: float) -> float:
        """Seconds until a number of waiting requests have a slot, and a number of prompt tokens are computed."""
        return self.metrics.seconds_for(num_tokens, num_requests, self._gauges()) if len(self._dispatcher) else 0.0

    def _send(self, *messages: ToEngine) -> None:
        if not self.has_work:
            self.progress.made(time.monotonic())
        self.link.send(*messages)

    def _gauges(self) -> Gauges:
        return Gauges(
            stats=self.stats,
            limits=self.runtime.limits,
            revision=self.runtime.revision,
            ready=self.engine,
            waiting=self.num_waiting,
            queued_by_class=self._queue.by_class,
            queued_tokens=self._queue.tokens,
            draining=self.draining,
        )


def _had_slot(generation: Generation) -> bool:
    """In the engine process that was lost, as far as it is known."""
    return generation.starting or not generation.waiting


async def _service(request: Request) -> Service:
    # async: FastAPI runs plain functions in a thread, which costs more than the call itself and loses the order of
    # requests.
    service: Service = request.app.state.service
    return service


ServiceOf = Annotated[Service, Depends(_service)]
