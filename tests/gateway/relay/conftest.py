from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest
import uvloop
from aiohttp import web

from inflight_gateway.relay.budget import BudgetLimits
from inflight_gateway.relay.decide import Limits
from inflight_gateway.relay.shared import Tuning
from inflight_gateway.relay.worker import Worker
from tests.gateway.relay.fake_engine import Do, FakeEngine, Seen

QUICK = Tuning(
    silence_s=0.3,
    limits=Limits(min_pause_s=0.01, max_pause_s=0.1, max_wait_s=2.0),
    budget=BudgetLimits(burst=1e6),
)


async def eventually(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    """Wait until it holds."""
    for _ in range(int(seconds / 0.02)):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise TimeoutError


class Setup:
    """A relay with fake engines behind it, and what it reports."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.engine = FakeEngine()
        self.reports: list[dict] = []
        self.retried: list[dict] = []
        self.socket = directory / "relay-0.sock"
        self.worker: Worker
        self.session: aiohttp.ClientSession
        self._collector: web.AppRunner

    async def start(self, tuning: Tuning = QUICK) -> Setup:
        await self.engine.start(self.directory / "inner.sock")
        app = web.Application()
        app.router.add_post("/v1/finished", self._collect)
        app.router.add_post("/v1/retried", self._collect_retried)
        self._collector = web.AppRunner(app)
        await self._collector.setup()
        await web.UnixSite(self._collector, str(self.directory / "reports.sock")).start()
        self.worker = Worker(self.directory / "inner.sock", self.directory / "reports.sock", tuning)
        await self.worker.start(self.socket)
        self.session = aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(self.socket), limit=0))
        return self

    async def stop(self) -> None:
        await self.session.close()
        await self.worker.stop(0)
        await self.engine.stop()
        await self._collector.cleanup()

    async def _collect(self, request: web.Request) -> web.Response:
        self.reports += await request.json()
        return web.Response()

    async def _collect_retried(self, request: web.Request) -> web.Response:
        self.retried += await request.json()
        return web.Response()

    async def report(self, number: int = 0) -> dict:
        await eventually(lambda: len(self.reports) > number)
        return self.reports[number]

    def script(self, *steps: Do) -> None:
        """Sets the steps of the requests from now on; the last step is repeated."""
        begun = len(self.engine.seen)

        def step(number: int, _seen: Seen) -> Do:
            return steps[min(number - begun, len(steps) - 1)]

        self.engine.script = step

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

    async def begin(tuning: Tuning = QUICK) -> Setup:
        made.append(Setup(tmp_path))
        return await made[-1].start(tuning)

    yield begin
    for each in made:
        await each.stop()


@pytest.fixture
async def relay(make: Callable[..., object]) -> Setup:
    return await make()
