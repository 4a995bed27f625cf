"""The engine process: loads the model, then alternates messages and steps until shutdown.

Started by the API process as `python -m inflight_engine.engine_process FD`, where FD is an inherited socket; what to
load, an `EngineConfig` as JSON, comes on standard input a little later. SIGINT and SIGTERM are blocked. With a second
argument, `spare`, it comes when the process takes over from another one.
"""

from __future__ import annotations

import gc
import logging
import os
import select
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial

import msgspec
from llguidance import LLTokenizer

from inflight_engine import logs
from inflight_engine import placement as placing
from inflight_engine.block_events import BlockEvent
from inflight_engine.cache.block_pool import BlockPool
from inflight_engine.channel import ChannelClosedError, EngineChannel
from inflight_engine.engine import Engine
from inflight_engine.grammars.compiled import Grammars
from inflight_engine.grammars.waiting import CompilingRequests
from inflight_engine.load_rates import LoadRateMeter
from inflight_engine.messages import (
    EngineFailed,
    EngineReady,
    Imported,
    Loading,
    LongStep,
    Shutdown,
    Starting,
    WeightsRead,
)
from inflight_engine.models.checkpoints.source import is_remote, resolve_configured
from inflight_engine.models.reading_progress import READING
from inflight_engine.native.kept_weights import inherited
from inflight_engine.recording.recorder import Recorder
from inflight_engine.scheduling.config import SchedulerConfig
from inflight_engine.scheduling.scheduler import Scheduler
from inflight_engine.step_times import StepTimes
from inflight_engine.torch_environment import let_segments_grow, let_threads_sleep
from inflight_engine.warm_up import reach_kernels, warm_up
from inflight_settings.engine import EngineConfig

log = logging.getLogger(__name__)

_POLL_MILLISECONDS = 200
"""Interval at which the thread that watches for the end of the API process checks whether the model is loaded."""

_COMPILE_SECONDS = 20.0
"""Time on a GPU that the first step of a size may spend on compiling kernels."""

_WARM_UP_TOKENS_CPU = 32
_WARM_UP_TOKENS_GPU = 512
"""Number of tokens in the step that is measured before requests come; it should take some ten milliseconds."""

_REPORT_SECONDS = 1.0
"""Time between two reports of the bytes of weights that were read."""

_PATIENT = 19
"""The lowest priority."""

_QUIET_SECONDS = 0.5
"""Time without work after which more may come late by what `Engine.prepare` takes."""


def load(
    config: EngineConfig,
    announce: Callable[[LongStep | Starting], None] = lambda step: None,
    wake: Callable[[], None] = lambda: None,
) -> tuple[Engine, EngineReady]:
    """Load the model and size everything. `announce`: as in `Engine`; `wake`: as in `CompilingRequests`.

    Raises:
        ValueError: the model or a size is wrong; the message says what to do.
        OSError: the file to record to cannot be written.
    """
    # These import torch: seconds, so not before it is needed.
    from inflight_engine.behind import make_behind
    from inflight_engine.execution.device import device_failed
    from inflight_engine.execution.parallel.ranks import make_runner

    grammars = Grammars(lambda: _vocabulary(config, runner.info.vocab_size))
    runner = make_runner(config, grammars)
    info = runner.info
    on_cpu = info.device == "cpu"
    capacity = config.capacity("cpu" if on_cpu else "cuda")
    scheduler_config = SchedulerConfig(
        capacity=capacity,
        num_blocks=info.num_blocks,
        block_size=info.block_size,
        max_model_len=info.max_model_len,
        num_host_blocks=info.num_host_blocks,
        **config.scheduling,
    )
    block_events: list[BlockEvent] | None = [] if config.block_events else None
    scheduler = Scheduler(scheduler_config, make_pool=partial(BlockPool, events=block_events))
    memory = runner.host_cache if scheduler_config.has_tier else None
    recorder = None
    if config.record is not None:
        recorder = Recorder.to_file(config.record, scheduler_config, scheduler.is_cached, info.kv_bytes_per_token)
    if not on_cpu:
        reach_kernels(runner, info, capacity)
    num_tokens = min(
        capacity.max_num_batched_tokens, info.max_model_len, _WARM_UP_TOKENS_CPU if on_cpu else _WARM_UP_TOKENS_GPU
    )
    step_times = StepTimes(0.0 if on_cpu else _COMPILE_SECONDS, warm_up(runner, num_tokens, info.block_size))
    engine = Engine(
        scheduler,
        runner,
        recorder=recorder,
        step_times=step_times,
        announce=announce,
        block_events=block_events,
        compiling=CompilingRequests(grammars, wake),
        make_behind=None if memory is None else partial(make_behind, config, info, memory, scheduler, wake),
        device_failed=device_failed,
        load_rates=None if info.copy_tokens_per_second is None else LoadRateMeter(info.copy_tokens_per_second),
    )
    if memory is not None:
        memory.touch_ahead()
    return engine, EngineReady(capacity, info, _weights_read(config))


def _weights_read(config: EngineConfig) -> WeightsRead | None:
    if config.peers_file is None:
        return None
    from inflight_engine.models.remote.peers import peers_in

    counts = peers_in(config.peers_file).counts
    log.info(
        "weights: %.2f GB from peers, %.2f GB from the source; peers failed %d times",
        counts.peer_bytes / 1e9,
        counts.source_bytes / 1e9,
        counts.failures,
    )
    return WeightsRead(counts.peer_bytes, counts.source_bytes, counts.failures)


def _vocabulary(config: EngineConfig, vocab_size: int) -> LLTokenizer:
    from inflight_engine.models.tokens.tokenizer import load_tokenizer  # imports the tokenizers library

    tokenizer = load_tokenizer(resolve_configured(config))
    num_tokens = max(vocab_size, tokenizer.vocab_size)
    eos_token_ids = [each for each in tokenizer.eos_token_ids if 0 <= each < num_tokens]  # some models' files name -1
    return LLTokenizer(tokenizer.serialized(), num_tokens, eos_token=eos_token_ids or None)


def serve(engine: Engine, channel: EngineChannel) -> None:
    """Alternate messages and steps until the message `Shutdown`."""
    prepared = False
    while True:
        idle = not engine.has_work
        if idle:
            engine.flush()  # it may be long until the next step
            if not prepared and channel.quiet(_QUIET_SECONDS):
                engine.prepare()
                prepared = True
        for message in channel.receive(wait=idle):
            if isinstance(message, Shutdown):
                return
            answer = engine.handle(message)
            if answer is not None:
                channel.send(answer)
        if engine.has_work:
            channel.send(engine.step())
            changed = engine.blocks_changed()
            if changed is not None:
                channel.send(changed)


def start(channel: EngineChannel, *, spare: bool = False) -> Engine | None:
    """Load the model that standard input names; None: loading failed, and the API process has the reason.

    Args:
        spare: it names one later, and until then others need the CPUs.

    Raises:
        ChannelClosedError: the API process is gone.
    """
    gc.disable()  # In the next seconds a million objects are made, and hardly one is garbage.
    what = "the engine"
    try:
        received = _receive_in_thread()
        if spare:
            thread = threading.Thread(target=_import_patiently, name="import")
            thread.start()
            thread.join()
            channel.send(Imported())
        with _reporting(channel):
            _import_modules()  # Takes longest, so not after the configuration has come.
            config = received.result()
            logs.configure(config.log_format, config.log_level, process="engine")
            what = f"model {config.model}"
            placement = placing.here(config.num_threads)
            if placement is not None:
                placing.bind(placement.engine)
            engine, ready = load(config, channel.send, channel.wake)
    except ChannelClosedError:
        raise
    except (ValueError, OSError, MemoryError) as error:
        channel.send(EngineFailed(str(error)))
        return None
    except Exception as error:
        log.exception("loading %s failed", what)
        channel.send(EngineFailed(f"loading {what} failed: {error}"))
        return None
    channel.send(ready)
    gc.freeze()  # What was imported stays; to look through it for garbage again and again would be long pauses.
    gc.enable()
    return engine


@contextmanager
def _reporting(channel: EngineChannel) -> Iterator[None]:
    """Report how much of the weights is read, while nothing else sends messages."""
    done = threading.Event()

    def report() -> None:
        while not done.wait(_REPORT_SECONDS):
            read, total, seconds = READING.now
            if total:
                try:
                    channel.send(Loading(read, total, seconds))
                except ChannelClosedError:
                    return  # the main thread finds it out, too

    thread = threading.Thread(target=report, name="report", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _import_modules() -> None:
    """Import what loading needs: torch, above all. Nothing of it touches a GPU."""
    import inflight_engine.behind
    import inflight_engine.execution.parallel.ranks  # noqa: F401


def _import_patiently() -> None:
    """Import when nobody else wants the CPUs. Linux's threads have priorities of their own, and a low one cannot be
    raised again: so this thread's, and not that of the main thread, which may have to serve."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _PATIENT)
    _import_modules()


def _receive_in_thread() -> Future[EngineConfig]:
    """Read the configuration from standard input. The weights of a remote model begin to come before this is done.

    Raises, by the result:
        ChannelClosedError: the API process is gone.
        ModelSourceError: the remote model cannot be read.
    """
    received: Future[EngineConfig] = Future()

    def receive() -> None:
        try:
            text = sys.stdin.buffer.read()
            if not text:
                raise ChannelClosedError("the API process is gone")
            config = msgspec.json.decode(text, type=EngineConfig)
            kept = inherited()
            if config.tensor_parallel_size == 1 and is_remote(config.model) and not (kept and kept.sealed):
                from inflight_engine.models.remote.reading import read_early

                snapshot = resolve_configured(config).remote
                assert snapshot is not None
                read_early(snapshot)
            received.set_result(config)
        except BaseException as error:
            received.set_exception(error)

    threading.Thread(target=receive, name="receive", daemon=True).start()
    return received


def main() -> int:
    """Exit 0 after shutdown or when the API process is gone, 1 when the engine cannot go on."""
    let_threads_sleep()
    let_segments_grow()
    logs.hold()
    with socket.socket(fileno=int(sys.argv[1])) as sock:
        return _run(sock, spare=sys.argv[2:] == ["spare"])


def _run(sock: socket.socket, *, spare: bool) -> int:
    channel, started = EngineChannel(sock), threading.Event()
    threading.Thread(target=_leave_if_alone, args=[sock, started], daemon=True).start()
    try:
        try:
            engine = start(channel, spare=spare)
        finally:
            if logs.holding():
                logs.configure(process="engine")
        started.set()
        if engine is None:
            return 1
        try:
            serve(engine, channel)
        finally:
            engine.close()
    except ChannelClosedError:
        log.info("the API process is gone; leaving")
    except Exception as error:
        log.exception("the engine stops")
        channel.send(EngineFailed(f"a step failed: {error}"))
        return 1
    return 0


def _leave_if_alone(sock: socket.socket, started: threading.Event) -> None:
    """End the process when the other end of the socket is closed, whatever loading waits for, until the loop reads the
    socket."""
    poll = select.poll()
    poll.register(sock, 0)  # no events: poll still reports a hang-up
    while not started.is_set():
        if poll.poll(_POLL_MILLISECONDS) and not started.is_set():
            os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
