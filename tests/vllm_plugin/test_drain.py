"""Graceful shutdown of a vLLM server."""

import asyncio

import pytest

from inflight_contract.errors import ApiError
from inflight_vllm.drain import Drain
from tests.base.virtual_time import in_virtual_time


class Exit:
    def __init__(self):
        self.times = 0

    def __call__(self):
        self.times += 1


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


@in_virtual_time
async def test_requests_are_taken_during_the_delay_and_refused_after_it():
    leave = Exit()
    drain = Drain(0.05, 5, leave)
    drain.enter()
    drain.begin()
    drain.enter()
    await asyncio.sleep(0.1)
    with pytest.raises(ApiError) as error:
        drain.enter()
    assert (error.value.status, error.value.code, error.value.all_headers()["retry-after"]) == (503, "draining", "1")
    assert (drain.running, drain.refused, leave.times) == (2, 1, 0)


@in_virtual_time
async def test_the_server_leaves_when_the_last_request_is_complete():
    leave = Exit()
    drain = Drain(0, 5, leave)
    drain.enter()
    drain.enter()
    drain.begin()
    await asyncio.sleep(0.02)
    drain.exit()
    await asyncio.sleep(0.02)
    assert leave.times == 0
    drain.exit()
    await until(lambda: leave.times == 1)


@in_virtual_time
async def test_the_server_leaves_at_the_timeout():
    leave = Exit()
    drain = Drain(0, 0.02, leave)
    drain.enter()
    drain.begin()
    await until(lambda: leave.times == 1)


@in_virtual_time
async def test_a_second_signal_ends_at_once():
    leave = Exit()
    drain = Drain(60, 60, leave)
    drain.enter()
    drain.signal()
    assert leave.times == 0
    drain.signal()
    assert leave.times == 1


@in_virtual_time
async def test_a_second_drain_changes_nothing():
    leave = Exit()
    drain = Drain(0, 5, leave)
    drain.begin()
    drain.begin()
    await until(lambda: leave.times == 1)
    await asyncio.sleep(0.02)
    assert leave.times == 1
