"""The program: workers, restarts, draining."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from inflight_gateway.settings import Sockets
from tests.gateway.relay.conftest import eventually
from tests.gateway.relay.fake_engine import Do, frames_for
from tests.gateway.relay.test_continue import STREAM

PROGRAM = """
import sys
from pathlib import Path
from inflight_gateway.relay.run import main
from inflight_gateway.settings import Sockets
main(Sockets(Path(sys.argv[1])), int(sys.argv[2]), float(sys.argv[3]))
"""


class Program:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.process: asyncio.subprocess.Process

    async def start(self, workers: int = 1, drain_s: float = 5.0) -> None:
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PROGRAM, str(self.directory), str(workers), str(drain_s),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )  # fmt: skip
        for worker in range(workers):
            await self.until(lambda worker=worker: self.listens(worker))
        await self.until(lambda: len(self.workers()) == workers)

    def socket(self, worker: int) -> Path:
        return Sockets(self.directory).relay(worker)

    def workers(self) -> list[int]:
        pid = self.process.pid
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def listens(self, worker: int) -> bool:
        with socket.socket(socket.AF_UNIX) as client:
            return client.connect_ex(str(self.socket(worker))) == 0

    @staticmethod
    async def until(condition) -> None:
        await eventually(condition, 30)


@pytest.fixture
async def program(tmp_path):
    running = Program(tmp_path)
    yield running
    if running.process.returncode is None:
        running.process.kill()
        await running.process.wait()


async def ask(socket: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_unix_connection(str(socket))
    body = json.dumps(STREAM).encode()
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: svc.ns\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    return reader, writer


async def test_a_worker_that_dies_is_started_again_and_all_end_on_sigterm(program):
    await program.start(workers=2)
    first = program.workers()
    assert len(first) == 2
    os.kill(first[0], signal.SIGKILL)
    await program.until(lambda: len(set(program.workers()) - set(first)) == 1)
    await program.until(lambda: program.listens(0))
    program.process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(program.process.wait(), 60) == 0
    assert not program.socket(0).exists()
    assert not program.socket(1).exists()


async def test_connections_that_wait_when_a_worker_is_killed_are_its_successors(program, relay):
    await relay.worker.stop(0)
    await program.start()
    (worker,) = program.workers()
    os.kill(worker, signal.SIGSTOP)
    reader, writer = await ask(relay.socket)
    await eventually(lambda: relay.front._relays)
    os.kill(worker, signal.SIGKILL)
    answer = await asyncio.wait_for(reader.readuntil(b"data: [DONE]"), 60)
    assert answer.startswith(b"HTTP/1.1 200 ")
    writer.close()


async def test_on_sigterm_answers_under_way_are_finished_and_nothing_new_is_taken(program, relay):
    await relay.worker.stop(0)
    await program.start()
    frames = frames_for(STREAM)
    relay.script(Do(split=len(frames) // 5, pause_s=0.3))
    reader, writer = await ask(relay.socket)
    await reader.readuntil(b"\r\n\r\n")
    program.process.send_signal(signal.SIGTERM)
    await program.until(lambda: not program.socket(0).exists())
    answer = await asyncio.wait_for(reader.readuntil(b"\r\n0\r\n\r\n"), 60)
    assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    writer.close()
    assert await asyncio.wait_for(program.process.wait(), 60) == 0


async def test_what_does_not_end_in_time_is_broken_off(program, relay):
    await relay.worker.stop(0)
    await program.start(drain_s=0.5)
    relay.script(Do(hang=600))
    reader, _ = await ask(relay.socket)
    await reader.readuntil(b"\r\n\r\n")
    program.process.send_signal(signal.SIGTERM)
    answer = await asyncio.wait_for(reader.read(), 60)
    assert not answer.endswith(b"\r\n0\r\n\r\n")
    assert await asyncio.wait_for(program.process.wait(), 60) == 0


async def test_workers_end_with_their_parent(program):
    await program.start()
    (worker,) = program.workers()
    program.process.kill()
    await program.process.wait()
    await program.until(lambda: not Path(f"/proc/{worker}").exists())
