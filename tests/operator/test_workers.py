"""Workers: one service's failures are its own, and events come before the next resync."""

import asyncio
from collections import Counter

import pytest

from inflight_base.manifest.keys import ServiceKey
from inflight_operator.telemetry.metrics import OperatorMetrics
from inflight_operator.workers import Workers, WorkerSettings

GOOD, BAD, SLOW = (ServiceKey("team", name) for name in ("good", "bad", "slow"))


def nothing():
    """Stands in for `round_done`, which no test needs."""


async def run_for(seconds, reconcile, services, **settings):
    workers = Workers(reconcile, lambda: services, nothing, OperatorMetrics(), WorkerSettings(**settings))
    running = asyncio.create_task(workers.run())
    await asyncio.sleep(seconds)
    assert not running.done()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_service_whose_rounds_fail_has_its_next_round_in_time_and_so_have_others():
    rounds, done = Counter(), []
    metrics = OperatorMetrics()

    async def reconcile(key):
        rounds[key] += 1
        if key == BAD:
            raise RuntimeError("a mistake of ours")
        return key == GOOD

    workers = Workers(
        reconcile, lambda: {GOOD, BAD, SLOW}, lambda: done.append(1), metrics, WorkerSettings(interval=0.1)
    )
    running = asyncio.create_task(workers.run())
    await asyncio.sleep(1.5)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert min(rounds[key] for key in (GOOD, BAD, SLOW)) >= 5
    assert len(done) == rounds.total()
    failed = metrics.registry.get_sample_value("inflight_operator_reconcile_total", {"result": "failed"})
    assert failed == rounds[BAD] + rounds[SLOW]


async def test_rounds_of_many_services_are_spread_over_the_interval():
    keys, times = {ServiceKey("team", f"service-{number}") for number in range(200)}, []

    async def reconcile(key):
        times.append(asyncio.get_running_loop().time())
        return True

    await run_for(1.3, reconcile, keys, interval=1.0)
    resynced = times[200:]
    assert len(resynced) > 100
    assert max(Counter(round(one, 1) for one in resynced).values()) < 100


async def test_a_slow_service_delays_no_other():
    rounds = Counter()

    async def reconcile(key):
        if key == SLOW:
            await asyncio.sleep(60)
        rounds[key] += 1
        return True

    await run_for(0.5, reconcile, {GOOD, SLOW}, interval=0.05, concurrency=2)
    assert rounds[GOOD] >= 3
    assert rounds[SLOW] == 0


async def test_an_event_does_not_wait_for_the_resync():
    looked = asyncio.Event()

    async def reconcile(key):
        looked.set()
        return True

    workers = Workers(reconcile, set, nothing, OperatorMetrics(), WorkerSettings(interval=60.0))
    running = asyncio.create_task(workers.run())
    await asyncio.sleep(0.05)
    workers.enqueue(GOOD)
    async with asyncio.timeout(1):
        await looked.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
