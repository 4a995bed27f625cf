"""Workers: one service's failures are its own, and events come before the next resync."""

import asyncio
from collections import Counter

import pytest

from inflight_operator.apply.kube import KubeApiError
from inflight_operator.metrics import OperatorMetrics
from inflight_operator.observe.cache import ServiceKey
from inflight_operator.workers import Workers, WorkerSettings

GOOD, BAD, SLOW = (ServiceKey("team", name) for name in ("good", "bad", "slow"))


async def run_for(seconds, round_for, services, **settings):
    workers = Workers(round_for, lambda: services, OperatorMetrics(), WorkerSettings(**settings))
    running = asyncio.create_task(workers.run())
    await asyncio.sleep(seconds)
    assert not running.done()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@pytest.mark.parametrize("error", [KubeApiError("PATCH /x", 403, "forbidden"), RuntimeError("a mistake of ours")])
async def test_a_service_that_fails_rests_longer_and_longer_while_others_go_on(error):
    rounds = Counter()

    async def round_for(key):
        rounds[key] += 1
        if key == BAD:
            raise error

    await run_for(1.5, round_for, {GOOD, BAD}, interval=0.05, longest_backoff=60.0)
    assert rounds[GOOD] >= 10
    assert 2 <= rounds[BAD] <= 5  # after 0.1, 0.2, 0.4, 0.8 s


async def test_a_service_that_recovers_no_longer_rests():
    rounds = Counter()

    async def round_for(key):
        rounds[key] += 1
        if rounds[key] == 1:
            raise RuntimeError("once")

    await run_for(1.5, round_for, {BAD}, interval=0.05)
    assert rounds[BAD] >= 8


async def test_a_slow_service_delays_no_other():
    rounds = Counter()

    async def round_for(key):
        if key == SLOW:
            await asyncio.sleep(60)
        rounds[key] += 1

    await run_for(0.5, round_for, {GOOD, SLOW}, interval=0.05, concurrency=2)
    assert rounds[GOOD] >= 3
    assert rounds[SLOW] == 0


async def test_an_event_does_not_wait_for_the_resync():
    looked = asyncio.Event()

    async def round_for(key):
        looked.set()

    workers = Workers(round_for, set, OperatorMetrics(), WorkerSettings(interval=60.0))
    running = asyncio.create_task(workers.run())
    await asyncio.sleep(0.05)
    await workers.look_at(GOOD)
    async with asyncio.timeout(1):
        await looked.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
