from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from tests.gateway.relay.pickers.stand_ins import Pods
from tests.gateway.virtual.loop import VirtualLoop


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """A loop in virtual time: a message takes half a millisecond from host to host."""
    return {"virtual": lambda: VirtualLoop(0.0005)}


@pytest.fixture
async def make() -> AsyncIterator[Callable[..., object]]:
    made: list[Pods] = []

    async def begin(number: int = 1, **more) -> Pods:
        made.append(Pods(number, **more))
        return await made[-1].start()

    yield begin
    for pods in made:
        await pods.relay.stop()


@pytest.fixture
async def pods(make) -> Pods:
    """A single pod."""
    return await make()
