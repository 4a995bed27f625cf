"""A rank of tensor parallelism other than the first: computes the plans that rank 0 sends.

Started by rank 0 as `python -m inflight_engine.execution.parallel.worker RANK PLANS LIFELINE MEETING_PLACE CONFIG`: two
inherited file descriptors, a path, and an `EngineConfig` as JSON.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from inflight_engine import logs
from inflight_engine.execution.parallel.plan_frames import PlanDecoder
from inflight_engine.step_executor import StepExecutor
from inflight_engine.torch_environment import let_segments_grow, let_threads_sleep
from inflight_settings.engine import EngineConfig

log = logging.getLogger(__name__)


def serve(runner: StepExecutor, receive: Callable[[], bytes]) -> None:
    """Compute what comes, as far ahead as rank 0 does; until `receive` raises EOFError."""
    decoder = PlanDecoder()
    most_in_flight = 2 if runner.lookahead else 1
    in_flight = 0
    while True:
        try:
            frame = receive()
        except EOFError:
            return
        if in_flight == most_in_flight:
            runner.collect()
            in_flight -= 1
        runner.launch(decoder.decode(frame))
        in_flight += 1


def main() -> int:
    """Exit 0 when rank 0 has ended, 1 when something failed here."""
    let_threads_sleep()
    let_segments_grow()
    rank, plans, lifeline = (int(argument) for argument in sys.argv[1:4])
    config = msgspec.json.decode(sys.argv[5], type=EngineConfig)
    logs.configure(config.log_format, config.log_level, process=f"rank {rank}")
    # Rank 0 decides when to end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=_leave_with_rank_zero, args=[lifeline], daemon=True).start()
    try:
        from inflight_engine.execution.build import build_runner  # Imports torch, as does the next.
        from inflight_engine.execution.parallel.process_group import join

        runner = build_runner(config, join(config, rank, Path(sys.argv[4])))
        serve(runner, Connection(plans, writable=False).recv_bytes)
    except Exception:
        log.exception("this rank cannot go on")
        return 1
    return 0


def _leave_with_rank_zero(lifeline: int) -> None:
    os.read(lifeline, 1)  # Returns when the other end is closed; nothing is ever written.
    os._exit(0)  # The main thread may be blocked in a collective operation.


if __name__ == "__main__":
    sys.exit(main())
