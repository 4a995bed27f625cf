"""The work queue: each key once, never twice at the same time, never lost."""

import asyncio

import pytest

from inflight_operator.workers import WorkQueue
from tests.base.virtual_time import in_virtual_time


async def nothing_to_take(queue):
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await queue.take()


@in_virtual_time
async def test_a_key_that_waits_is_not_added_twice():
    queue = WorkQueue()
    queue.add("a")
    queue.add("a")
    assert len(queue) == 1
    assert await queue.take() == "a"
    queue.done("a")
    await nothing_to_take(queue)


@in_virtual_time
async def test_a_key_added_while_it_is_worked_on_comes_again_afterwards():
    queue = WorkQueue()
    queue.add("a")
    await queue.take()
    queue.add("a")
    await nothing_to_take(queue)
    queue.done("a")
    assert await queue.take() == "a"


@in_virtual_time
async def test_first_come_first_served():
    queue = WorkQueue()
    for key in "abc":
        queue.add(key)
    assert [await queue.take() for _ in range(3)] == ["a", "b", "c"]


@in_virtual_time
async def test_keys_with_time_wait_for_those_without_and_not_for_later_ones(monkeypatch):
    now = 0.0
    monkeypatch.setattr("inflight_operator.workers.monotonic", lambda: now)
    queue = WorkQueue()
    queue.add("in time", within=0.05)
    queue.add("later", within=60.0)
    queue.add("now")
    queue.add("later", within=30.0)
    assert [await queue.take() for _ in range(3)] == ["now", "in time", "later"]
    queue.add("waited", within=0.01)
    now = 0.02
    queue.add("new")
    assert [await queue.take() for _ in range(2)] == ["waited", "new"]


@in_virtual_time
async def test_a_key_with_time_that_is_asked_for_at_once_is_taken_once_and_first():
    queue = WorkQueue()
    for key in "abc":
        queue.add(key, within=60.0)
    queue.add("c")
    queue.add("c", within=60.0)
    assert len(queue) == 3
    taken = [await queue.take() for _ in range(3)]
    assert taken == ["c", "a", "b"]
    for key in taken:
        queue.done(key)
    await nothing_to_take(queue)


@in_virtual_time
async def test_workers_never_share_a_key_and_lose_none():
    queue, at_work, worked = WorkQueue(), set(), []

    async def work():
        while True:
            key = await queue.take()
            assert key not in at_work
            at_work.add(key)
            await asyncio.sleep(0)
            at_work.discard(key)
            worked.append(key)
            queue.done(key)

    workers = [asyncio.create_task(work()) for _ in range(4)]
    for number in range(200):
        queue.add(number % 7)
        if number % 3 == 0:
            await asyncio.sleep(0)
    await asyncio.sleep(0.2)
    assert (len(queue), at_work) == (0, set())
    for worker in workers:
        assert not worker.done()
        worker.cancel()
    assert set(worked) == set(range(7))
