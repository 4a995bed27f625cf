"""The engine process: loads the model, then alternates messages and steps until it is told to leave.

Started by the API process as `python -m inflight_engine.engine_process FD CONFIG`, where FD is an inherited socket and
CONFIG is an `EngineConfig` as JSON.
"""

from __future__ import annotations

import logging
import signal
import socket
import sys

import msgspec

from inflight_engine.channel import ChannelClosedError, EngineChannel
from inflight_engine.config import EngineConfig
from inflight_engine.engine import Engine
from inflight_engine.messages import EngineFailed, EngineReady, Shutdown
from inflight_engine.recording.recorder import Recorder
from inflight_engine.scheduling.config import SchedulerConfig
from inflight_engine.scheduling.limits import Limits
from inflight_engine.scheduling.scheduler import Scheduler
from inflight_engine.swap_rates import SwapRateMeter

log = logging.getLogger(__name__)


def load(config: EngineConfig) -> tuple[Engine, EngineReady]:
    """Load the model and size everything.

    Raises:
        ValueError: the model or a size is wrong; the message says what to do.
        OSError: the file to record to cannot be written.
    """
    from inflight_engine.execution.ranks import make_runner  # Imports torch: seconds, so not before it is needed.

    runner = make_runner(config)
    info = runner.info
    capacity = Limits(config.max_num_seqs, config.max_num_batched_tokens)
    max_model_len = min(info.max_model_len, info.num_blocks * info.block_size)
    scheduler_config = SchedulerConfig(
        capacity=capacity,
        num_blocks=info.num_blocks,
        block_size=info.block_size,
        max_model_len=max_model_len,
        kv_headroom=config.kv_headroom,
        policy=config.scheduling_policy,
        priority_aging=config.priority_aging,
        classes=config.classes,
        preemption=config.preemption,
        preemption_victim=config.preemption_victim,
        num_host_blocks=info.num_host_blocks,
        prefix_caching=config.prefix_caching,
    )
    ready = EngineReady(
        capacity=capacity,
        num_blocks=info.num_blocks,
        block_size=info.block_size,
        max_model_len=max_model_len,
        kv_bytes_per_token=info.kv_bytes_per_token,
        vocab_size=info.vocab_size,
        device=info.device,
        dtype=info.dtype,
        attention_backend=info.attention_backend,
        load_seconds=info.load_seconds,
    )
    scheduler = Scheduler(scheduler_config)
    recorder = None
    if config.record is not None:
        recorder = Recorder.to_file(config.record, scheduler_config, scheduler.is_cached)
    engine = Engine(
        scheduler,
        runner,
        recorder=recorder,
        swap_rates=None if info.copy_tokens_per_second is None else SwapRateMeter(info.copy_tokens_per_second),
    )
    return engine, ready


def serve(engine: Engine, channel: EngineChannel) -> None:
    """The loop. Returns when told to shut down."""
    while True:
        if not engine.has_work:
            engine.flush_record()  # it may be long until the next step
        for message in channel.receive(wait=not engine.has_work):
            if isinstance(message, Shutdown):
                return
            answer = engine.handle(message)
            if answer is not None:
                channel.send(answer)
        if engine.has_work:
            channel.send(engine.step())


def main() -> int:
    """Exit 0 when told to leave or left alone, 1 when the engine cannot go on."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    # A terminal's Ctrl-C reaches the whole process group; draining is the API process's decision.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    channel = EngineChannel(socket.socket(fileno=int(sys.argv[1])))
    config = msgspec.json.decode(sys.argv[2], type=EngineConfig)
    try:
        try:
            engine, ready = load(config)
        except (ValueError, OSError, MemoryError) as error:
            channel.send(EngineFailed(str(error)))
            return 1
        except Exception as error:
            log.exception("loading model %s failed", config.model)
            channel.send(EngineFailed(f"loading model {config.model} failed: {error}"))
            return 1
        channel.send(ready)
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


if __name__ == "__main__":
    sys.exit(main())
