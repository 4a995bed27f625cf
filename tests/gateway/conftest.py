"""Fixtures with real Envoys: a gateway of processes, and stand-ins for engines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest

from tests.gateway.fake_engine import FakeEngine
from tests.gateway.gateway_stack import GatewayPods, GatewayStack


@pytest.fixture
async def engines() -> AsyncIterator[Callable[[str], Awaitable[FakeEngine]]]:
    started: list[FakeEngine] = []

    async def start(name: str, answer: str = "ok") -> FakeEngine:
        engine = await FakeEngine(name, answer).start()
        started.append(engine)
        return engine

    yield start
    for engine in started:
        await engine.stop()


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[GatewayStack]:
    """Not started: write its services first."""
    stack = GatewayStack(tmp_path)
    yield stack
    stack.stop_all()


@pytest.fixture
async def pods(tmp_path: Path) -> AsyncIterator[Callable[[int], GatewayPods]]:
    """Makes gateway pods, not started: write their services first."""
    made: list[GatewayPods] = []

    def make(count: int) -> GatewayPods:
        made.append(GatewayPods(tmp_path, count))
        return made[-1]

    yield make
    for each in made:
        each.stop_all()


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session
