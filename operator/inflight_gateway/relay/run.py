"""`inflight-gateway relay`: a parent that keeps its worker processes running."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass

import uvloop

from inflight_gateway.relay.bodies import bodies_bytes_of_one
from inflight_gateway.relay.shared import Tuning
from inflight_gateway.relay.supervisor import supervise
from inflight_gateway.relay.worker import Worker
from inflight_gateway.settings import Sockets


@dataclass(frozen=True, slots=True)
class Settings:
    """Attributes:
    processes: number of workers.
    drain_s: seconds that requests in flight may take after SIGTERM.
    """

    sockets: Sockets
    processes: int = 1
    drain_s: float = 300.0


def main(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit code."""
    supervise(lambda worker: uvloop.run(_serve(settings, worker)), settings.processes)
    return 0


async def _serve(settings: Settings, worker: int) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    tuning = Tuning(max_bodies_bytes=bodies_bytes_of_one(settings.processes))
    serving = Worker(settings.sockets.inner, settings.sockets.reports, tuning)
    await serving.start(settings.sockets.relay(worker))
    await stop.wait()
    await serving.stop(settings.drain_s)
