"""`inflight-gateway relay`: a parent that keeps its worker processes running: one that exits is restarted."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import signal
import socket
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import uvloop

from inflight_gateway.relay.intake.bodies import bodies_bytes_of_one
from inflight_gateway.relay.shared import Tuning
from inflight_gateway.relay.worker import BACKLOG, Worker
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
    tuning = Tuning(max_bodies_bytes=bodies_bytes_of_one(processes))

    async def serve(listener: socket.socket) -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        serving = Worker(sockets.picker, tuning)
        starting, stopping = asyncio.create_task(serving.start(listener)), asyncio.create_task(stop.wait())
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
        await stopping
        starting.cancel()
        await serving.stop(drain_s)

    paths = [sockets.relay(worker) for worker in range(processes)]
    listeners = [listen(path) for path in paths]
    gc.freeze()  # what was imported stays, and workers share its memory

    def work(worker: int) -> None:
        for number, listener in enumerate(listeners):
            if number != worker:
                listener.close()
        uvloop.run(serve(listeners[worker]))

    def stop_listening() -> None:
        for path, listener in zip(paths, listeners, strict=True):
            path.unlink(missing_ok=True)
            listener.close()

    supervise(work, processes, stop_listening)


def listen(path: Path) -> socket.socket:
    """Returns a listening UNIX socket; a stale one is replaced. It belongs to the parent of the workers, so that the
    connections of a worker that dies wait for the next one."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    # Envoy runs as another user. Only containers of this pod can access the directory.
    path.chmod(0o666)
    listener.listen(BACKLOG)
    return listener


def supervise(work: Callable[[int], None], workers: int, stop: Callable[[], None]) -> None:
    """Run `work(N)` in processes 0..workers-1 until SIGTERM or SIGINT, which is forwarded to them after a call of
    `stop`, and wait for their end.

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
            if not stopping:
                stop()
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
