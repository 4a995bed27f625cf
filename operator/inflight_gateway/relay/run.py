"""`inflight-gateway relay`: a parent that keeps its worker processes running: one that exits is restarted."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import time
import traceback
from collections.abc import Callable

import uvloop

from inflight_gateway.relay.bodies import bodies_bytes_of_one
from inflight_gateway.relay.shared import Tuning
from inflight_gateway.relay.worker import Worker
from inflight_gateway.settings import Sockets

_log = logging.getLogger(__name__)

_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}
_PAUSE_S = 1.0
"""Minimum seconds between two starts of a worker."""
_PR_SET_PDEATHSIG = 1


def main(sockets: Sockets, processes: int, drain_s: float) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
        processes: number of workers.
        drain_s: seconds that requests in flight may take after SIGTERM.
    """

    async def serve(worker: int) -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        tuning = Tuning(max_bodies_bytes=bodies_bytes_of_one(processes))
        serving = Worker(sockets.inner, sockets.reports, tuning)
        await serving.start(sockets.relay(worker))
        await stop.wait()
        await serving.stop(drain_s)

    supervise(lambda worker: uvloop.run(serve(worker)), processes)


def supervise(work: Callable[[int], None], workers: int) -> None:
    """Run `work(N)` in processes 0..workers-1 until SIGTERM or SIGINT, which is forwarded to them, and wait for their
    end.

    The caller has one thread and no event loop: its process is forked, so that the workers share its code's memory.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    running: dict[int, tuple[int, float]] = {}
    due = dict.fromkeys(range(workers), 0.0)
    stopping = False
    while running or not stopping:
        if not stopping:
            for worker in [worker for worker, at in due.items() if at <= time.monotonic()]:
                del due[worker]
                running[_start(work, worker)] = (worker, time.monotonic())
        wait = max(0.01, min(due.values()) - time.monotonic()) if due and not stopping else 60.0
        received = signal.sigtimedwait(_SIGNALS, wait)
        if received is not None and received.si_signo in (signal.SIGTERM, signal.SIGINT):
            stopping = True
            for pid in running:
                os.kill(pid, signal.SIGTERM)
        for pid in [pid for pid in running if os.waitpid(pid, os.WNOHANG)[0] == pid]:
            worker, since = running.pop(pid)
            if not stopping:
                _log.error("relay worker %d (process %d) ended and is started again", worker, pid)
                due[worker] = max(time.monotonic(), since + _PAUSE_S)


def _start(work: Callable[[int], None], worker: int) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        # A worker does not outlive its parent.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        if os.getppid() == parent:
            work(worker)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)
