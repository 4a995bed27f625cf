from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest
import uvloop

from inflight_gateway.relay.budget import BudgetLimits
from inflight_gateway.relay.decide import Limits
from inflight_gateway.relay.run import listen
from inflight_gateway.relay.shared import Tuning
from inflight_gateway.relay.worker import Worker
from tests.gateway.relay.fake_engine import Do, FakeEngine
from tests.gateway.relay.fake_picker import FakePicker
from tests.gateway.relay.front import Front

QUICK = Tuning(
    silence_s=0.3,
    limits=Limits(min_pause_s=0.01, max_pause_s=0.1, max_wait_s=2.0),
    budget=BudgetLimits(burst=1e6),
)


async def eventually(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until it holds."""
    for _ in range(int(seconds / 0.02)):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise TimeoutError


class Setup:
    """A relay between fake engines, a fake picker and a stand-in for Envoy. Attributes: socket: for clients.
    h2_socket: the relay's own."""

    def __init__(self, directory: Path, engine: FakeEngine | None = None) -> None:
        self.engine = engine or FakeEngine()
        self.picker = FakePicker(self.engine)
        self.socket, self.h2_socket = directory / "front.sock", directory / "relay-0.sock"
        self.front = Front(self.h2_socket)
        self.worker: Worker
        self.session: aiohttp.ClientSession
        self._picker_socket = directory / "picker.sock"

    async def start(self, tuning: Tuning = QUICK, engines: int = 4) -> Setup:
        await self.engine.start(engines)
        await self.picker.start(self._picker_socket)
        self.worker = Worker(self._picker_socket, tuning)
        await self.worker.start(listen(self.h2_socket))
        await eventually(lambda: self.shared.catalog.complete)
        await self.front.start(self.socket)
        self.session = aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(self.socket), limit=0))
        return self

    async def stop(self) -> None:
        await self.session.close()
        await self.front.stop()
        await self.worker.stop(0)
        await self.engine.stop()
        await self.picker.stop()

    @property
    def shared(self):
        return self.worker._shared

    @property
    def clients(self):
        """The relay's streams."""
        return [client for connection in self.worker._connections for client in connection._clients.values()]

    @property
    def reports(self) -> list[dict]:
        return self.picker.reports

    async def report(self, number: int = 0) -> dict:
        await eventually(lambda: len(self.reports) > number)
        return self.reports[number]

    async def configure(self, **changes) -> None:
        """Changes the service."""
        self.picker.configure(**changes)
        await eventually(lambda: self.shared.catalog.services[self.picker.config.key] == self.picker.config)

    def script(self, *steps: Do) -> None:
        """Sets the steps of the attempts from now on; the last step is repeated."""
        begun = self.engine.turn
        self.engine.script = lambda turn: steps[min(turn - begun, len(steps) - 1)]

    async def post(self, asked: dict, path: str = "/v1/chat/completions", **more) -> tuple[int, dict[str, str], bytes]:
        """Status, headers in lower case and body of an answer."""
        async with self.session.post(f"http://svc.ns{path}", json=asked, **more) as response:
            body = await response.read()
            return response.status, {name.lower(): value for name, value in response.headers.items()}, body


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that the program runs on: its transports differ from asyncio's."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Callable[..., object]]:
    made: list[Setup] = []

    async def begin(
        tuning: Tuning = QUICK, engines: int = 4, *, engine: FakeEngine | None = None, of_engines=None, **changes
    ) -> Setup:
        made.append(Setup(tmp_path, engine))
        setup = await made[-1].start(tuning, engines)
        changes |= {"engine": of_engines} if of_engines else {}
        if changes:
            await setup.configure(**changes)
        return setup

    yield begin
    for each in made:
        await each.stop()


@pytest.fixture
async def relay(make: Callable[..., object]) -> Setup:
    return await make()
