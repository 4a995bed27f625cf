"""An event loop in a thread of its own: results, errors and cancellation cross over, and it turns while the other one
does not."""

import asyncio
import threading

import pytest

from inflight_operator.loop_thread import LoopThread


async def test_work_runs_in_the_thread_and_its_result_comes_back():
    async def work():
        return threading.current_thread().name

    with LoopThread("lease") as thread:
        assert await thread.run(work()) == "lease"


async def test_an_error_of_the_work_comes_out():
    async def work():
        raise ValueError("broken")

    with LoopThread("lease") as thread, pytest.raises(ValueError, match="broken"):
        await thread.run(work())


@pytest.mark.parametrize("turns", [0, 1, 50])
async def test_on_cancellation_the_work_has_ended_before_run_does(turns):
    ended = []

    async def work():
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            ended.append(True)

    begun = asyncio.Event()

    async def noted():
        begun_here.call_soon_threadsafe(begun.set)
        await work()

    begun_here = asyncio.get_running_loop()
    with LoopThread("lease") as thread:
        running = asyncio.create_task(thread.run(noted()))
        await begun.wait()
        for _ in range(turns):
            await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert ended == [True]


async def test_work_has_ended_before_run_does_even_if_that_is_cancelled_twice():
    ended, begun = threading.Event(), threading.Event()

    async def work():
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            ended.set()

    with LoopThread("lease") as thread:
        running = asyncio.create_task(thread.run(work()))
        await asyncio.to_thread(begun.wait)
        for _ in range(2):
            running.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await running
        assert ended.is_set()


async def test_work_that_is_cancelled_before_it_began_leaves_nothing_behind():
    async def work():
        await asyncio.Event().wait()

    with LoopThread("lease") as thread:
        running = asyncio.create_task(thread.run(work()))
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


async def test_the_thread_goes_on_while_the_other_loop_is_blocked():
    turns = threading.Semaphore(0)

    async def work():
        for _ in range(5):
            turns.release()
            await asyncio.sleep(0.02)

    with LoopThread("lease") as thread:
        running = asyncio.create_task(thread.run(work()))
        await asyncio.sleep(0)
        assert all(turns.acquire(timeout=60) for _ in range(5))  # which blocks this loop
        await running
