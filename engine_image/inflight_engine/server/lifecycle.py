"""Lifecycle of the process: load, serve, drain or fail."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from inflight_contract.errors import ApiError
from inflight_contract.limits import initial_limits
from inflight_engine.messages import EngineReady
from inflight_engine.models.checkpoints.source import ModelSourceError
from inflight_engine.models.version import Rollout, digest_of
from inflight_engine.server.engine.phase import Phase
from inflight_engine.server.engine.process import EngineProcess, describe_exit
from inflight_engine.server.engine.session import MOST_RESTARTS, WINDOW_SECONDS
from inflight_engine.server.engine.spare import Spare
from inflight_engine.server.engine.supervisor import Supervisor
from inflight_engine.server.http.middleware import OpenResponses
from inflight_engine.server.service import Service

if TYPE_CHECKING:
    from inflight_engine.models.tokens.tokenizer import Tokenizer  # imports the tokenizers library

log = logging.getLogger(__name__)

LAST_WORDS_SECONDS = 5.0
"""Time for errors to reach their clients before the process ends."""

RELAYED_DELAY_SECONDS = 1.0
RELAYED_ONLY_SECONDS = 60.0
"""A drain takes new requests no longer than the first where all requests of the latest minute came from relays: these
send a request that is refused elsewhere."""

AGREE_SECONDS = 5.0
"""Seconds between two looks for the version that the first pod of this rollout has."""

ENGINE_EXIT_SECONDS = 5.0
"""Time for the engine process to leave its loop after the current step; then it is killed."""

_WHEN = {
    Phase.LOADING: " while it loaded the model",
    Phase.RESTARTING: " while it loaded the model again",
    Phase.READY: f", after {MOST_RESTARTS} restarts in {WINDOW_SECONDS / 60:g} minutes",
}


class Lifecycle:
    """Life of the process, from start to exit: `run`."""

    def __init__(self, service: Service, process: EngineProcess, responses: OpenResponses) -> None:
        self._service = service
        spare = Spare(service.config.spare_process, service.session)
        service.metrics.spare_pid = lambda: spare.pid
        self._supervisor = Supervisor(service.session, service.config.engine, process, spare)
        self._responses = responses
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()
        self._agreeing: asyncio.Task[None] | None = None
        self._why: str | None = None

    def drain(self) -> None:
        """Start to drain; idempotent."""
        if not self._stop.is_set():
            self._service.draining = True
            self._service.session.started.set()
            self._stop.set()

    def signal(self) -> None:
        """SIGTERM or SIGINT: drain; a second one ends at once."""
        if self._stop.is_set():
            self._stop_now.set()
        self.drain()

    async def run(self) -> str | None:
        """Run until everything except the HTTP server has ended. None: drained; else the failure as a sentence."""
        tasks = [asyncio.create_task(self._load()), asyncio.create_task(self._supervisor.run())]
        try:
            await self._first(self._stop.wait())
            if not self._service.session.failure.done():
                await self._drain()
            if self._service.session.failure.done():
                return await self._fail(self._service.session.failure.result())
            if self._stop_now.is_set():
                return await self._end_now()
            return self._why
        finally:
            for task in [*tasks, *([] if self._agreeing is None else [self._agreeing])]:
                task.cancel()
            await self._end_engine()

    async def _load(self) -> None:
        service = self._service
        try:
            tokenizer, digest = await _in_daemon_thread(service)
            ready = await service.session.first_ready
            if service.session.failure.done():  # The engine died while the tokenizer was still loading.
                return
            source = service.config.engine.model
            if digest != ready.runner.digest:
                raise ValueError(f"model source {source} changed while it was loaded: start the server again")
            rollout = Rollout(service.config.limits_file)
            agreed = rollout.agrees(source, digest)
            await service.open(tokenizer, initial_limits(service.config.limits_file, ready.capacity))
        except (ValueError, OSError) as error:
            service.session.fail(str(error))
        except Exception as error:
            log.exception("start-up failed")
            service.session.fail(f"start-up failed: {error}")
        else:
            self._supervisor.start_seconds = time.monotonic() - self._supervisor.process.started
            gc.freeze()  # Imported objects stay; scanning them for garbage would delay all streams.
            self._log_facts(ready, self._supervisor.start_seconds)
            if not agreed and service.config.limits_file is not None:
                self._agreeing = asyncio.create_task(self._agree(rollout, digest))
            config = service.config
            if config.engine.policy == "fair" and not service.tenants.known:
                log.warning(
                    "policy fair is fcfs without --tenant-key-file or --trust-tenant-header: all requests are of one "
                    "tenant"
                )

    async def _agree(self, rollout: Rollout, digest: str) -> None:
        """Wait until it is known which pod of this rollout was the first; if that has another version, drain: started
        again, this pod finds it in the file."""
        source = self._service.config.engine.model
        try:
            agreed = False
            while not agreed:
                await asyncio.sleep(AGREE_SECONDS)
                agreed = rollout.agrees(source, digest)
        except ModelSourceError as error:
            self._why = str(error)
            log.error("%s", error)
            self.drain()

    def _log_facts(self, ready: EngineReady, seconds: float) -> None:
        service, runner = self._service, ready.runner
        limits = service.session.runtime.limits
        assert limits is not None
        log.info(
            "ready after %.1f s (the model's loading took %.1f s): model %s as %s, %s on %s (%s attention), at most %d "
            "tokens a request; KV cache %d blocks of %d, %d tokens, %d bytes a token; max_num_seqs %d of %d, "
            "max_num_batched_tokens %d of %d, revision %d",
            seconds,
            runner.load_seconds,
            service.config.engine.model,
            service.config.served_model_name,
            runner.dtype,
            runner.device,
            runner.attention_backend,
            runner.max_model_len,
            runner.num_blocks,
            runner.block_size,
            runner.num_cache_tokens,
            runner.kv_bytes_per_token,
            limits.max_num_seqs,
            ready.capacity.max_num_seqs,
            limits.max_num_batched_tokens,
            ready.capacity.max_num_batched_tokens,
            service.session.runtime.revision,
        )

    async def _drain(self) -> None:
        service, config = self._service, self._service.config
        if service.session.phase in (Phase.READY, Phase.RESTARTING):
            service.heartbeats.leave()
            delay = self._delay()
            log.info("draining: requests are taken for another %g s", delay)
            await self._first(self._stop_now.wait(), seconds=delay)
        service.registry.admitting = False
        if service.session.failure.done() or self._stop_now.is_set():
            return
        log.info("draining: running requests have %g s to finish", config.drain_timeout)
        await self._first(self._stop_now.wait(), self._responses.none_left(), seconds=config.drain_timeout)
        if service.session.failure.done() or self._stop_now.is_set():
            return
        ended = service.registry.end_all(
            ApiError(
                503,
                "this replica shut down before the request was complete: it still ran at the end of the drain, after "
                f"{config.drain_timeout:g} s (--drain-timeout)",
                code="drain_timeout",
            )
        )
        if ended:
            log.warning("drain timeout: %d requests were ended with an error", ended)
            await self._last_words()
        await self._first(self._stop_now.wait(), service.handover.settled())
        log.info("drained")

    def _delay(self) -> float:
        """Seconds for which new requests are taken after the drain begins."""
        registry, delay = self._service.registry, self._service.config.drain_delay
        relayed_only = registry.relayed_at > time.monotonic() - RELAYED_ONLY_SECONDS > registry.direct_at
        return min(delay, RELAYED_DELAY_SECONDS) if relayed_only else delay

    async def _end_now(self) -> str | None:
        self._service.registry.admitting = False
        error = ApiError(503, "this replica was told to end at once", code="shutdown")
        ended = self._service.registry.end_all(error)
        if not ended:
            return None
        await self._last_words()
        return f"told twice to stop: {ended} requests were ended before they were complete"

    async def _fail(self, why: str) -> str:
        service = self._service
        service.registry.admitting = False
        service.registry.end_lost()
        await self._last_words()
        if why:
            return why
        status = await asyncio.to_thread(self._supervisor.process.wait, ENGINE_EXIT_SECONDS)
        return f"the engine process {describe_exit(status)}{_WHEN[service.session.failed_while]}"

    async def _last_words(self) -> None:
        await asyncio.wait([asyncio.ensure_future(self._responses.none_left())], timeout=LAST_WORDS_SECONDS)

    async def _end_engine(self) -> None:
        process = self._supervisor.process
        self._supervisor.spare.end()
        if self._service.session.link.open and not self._stop_now.is_set():
            self._service.session.shut_down()
            await asyncio.to_thread(process.wait, ENGINE_EXIT_SECONDS)
        process.kill()

    async def _first(self, *waits: Coroutine[Any, Any, object], seconds: float | None = None) -> None:
        """Wait until one of `waits` is done, the engine failed, or `seconds` passed."""
        tasks: list[asyncio.Future[Any]] = [asyncio.ensure_future(wait) for wait in waits]
        await asyncio.wait(
            [*tasks, self._service.session.failure], timeout=seconds, return_when=asyncio.FIRST_COMPLETED
        )
        for task in tasks:
            task.cancel()


async def _in_daemon_thread(service: Service) -> tuple[Tokenizer, str]:
    """Load the tokenizer; a download that hangs must not keep the process from ending, so no executor."""
    loaded: Future[tuple[Tokenizer, str]] = Future()
    loaded.set_running_or_notify_cancel()  # who waits for it may be cancelled, it is not

    def load() -> None:
        try:
            loaded.set_result(_load_tokenizer(service))
        except Exception as error:
            loaded.set_exception(error)

    threading.Thread(target=load, name="load-tokenizer", daemon=True).start()
    return await asyncio.wrap_future(loaded)


def _load_tokenizer(service: Service) -> tuple[Tokenizer, str]:
    """Returns the tokenizer, and the version of the model. From here on peers can read what the engine has loaded."""
    from inflight_engine.models.checkpoints.source import resolve_configured
    from inflight_engine.models.tokens.tokenizer import load_tokenizer

    config = service.config
    files = resolve_configured(config.engine)
    if files.remote is not None and config.engine.peers_file is not None:
        from inflight_engine.models.remote.sharing import SharedBlocks

        service.shared_blocks = SharedBlocks(files.remote)
    return load_tokenizer(files, config.generation_config, config.chat_template), digest_of(files)
