"""Workers: one service's failures are its own, and events come before the next resync."""

import asyncio
from collections import Counter
from itertools import pairwise

import pytest

from inflight_base.manifest.keys import ServiceKey
from inflight_operator.telemetry.metrics import OperatorMetrics
from inflight_operator.workers import Busy, Workers, WorkerSettings
from tests.base.virtual_time import in_virtual_time

GOOD, BAD, SLOW = (ServiceKey("team", name) for name in ("good", "bad", "slow"))


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    monkeypatch.setattr("inflight_operator.workers.monotonic", lambda: asyncio.get_running_loop().time())


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


@in_virtual_time
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


@in_virtual_time
async def test_rounds_of_many_services_are_spread_over_the_interval():
    keys, times = {ServiceKey("team", f"service-{number}") for number in range(200)}, []

    async def reconcile(key):
        times.append(asyncio.get_running_loop().time())
        return True

    await run_for(1.3, reconcile, keys, interval=1.0)
    assert len(times) > 200
    assert max(Counter(round(one, 1) for one in times).values()) < 150


@in_virtual_time
async def test_no_two_rounds_begin_in_one_turn_of_the_loop():
    """Answers of engines and of the API server are taken between them, however many events come at once."""
    keys, turns, turn = [ServiceKey("team", f"service-{number}") for number in range(100)], [], 0

    async def reconcile(key):
        turns.append(turn)
        return True

    def count():
        nonlocal turn
        turn += 1
        asyncio.get_running_loop().call_soon(count)

    workers = Workers(reconcile, set, nothing, OperatorMetrics(), WorkerSettings(interval=60.0))
    running = asyncio.create_task(workers.run())
    await asyncio.sleep(0)
    count()
    for key in keys:
        workers.enqueue(key)
    while len(turns) < len(keys):  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert max(Counter(turns).values()) == 1
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@in_virtual_time
async def test_rounds_of_a_part_of_the_interval_are_apart():
    """Rounds together would keep the loop for long, and intervals would be stretched for it."""
    keys, times = {ServiceKey("team", f"service-{number}") for number in range(1000)}, []

    async def reconcile(key):
        times.append(asyncio.get_running_loop().time())
        return True

    await run_for(10.5, reconcile, keys, interval=5.0)
    steady = [time for time in times if time > 5.5]
    assert len(steady) == pytest.approx(len(keys), abs=10)
    assert max(Counter(int(time / 0.05) for time in steady).values()) <= 30


@in_virtual_time
async def test_an_event_comes_before_the_rounds_that_have_time():
    keys, rounds = [ServiceKey("team", f"service-{number}") for number in range(1000)], []

    async def reconcile(key):
        rounds.append(key)
        asyncio.get_running_loop().now += 0.008  # the loop is too busy for a round of each service in an interval
        if len(rounds) == 500:
            workers.enqueue(GOOD)
        return True

    workers = Workers(reconcile, lambda: set(keys), nothing, OperatorMetrics(), WorkerSettings(interval=5.0))
    running = asyncio.create_task(workers.run())
    while GOOD not in rounds:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert len(rounds) <= 502
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@in_virtual_time
async def test_a_slow_service_delays_no_other():
    rounds = Counter()

    async def reconcile(key):
        if key == SLOW:
            await asyncio.sleep(60)
        rounds[key] += 1
        return True

    await run_for(1.0, reconcile, {GOOD, SLOW}, interval=0.05, concurrency=2)
    assert rounds[GOOD] >= 3
    assert rounds[SLOW] == 0


@in_virtual_time
async def test_an_event_does_not_wait_for_the_resync():
    looked = asyncio.Event()

    async def reconcile(key):
        looked.set()
        return True

    workers = Workers(reconcile, set, nothing, OperatorMetrics(), WorkerSettings(interval=60.0))
    running = asyncio.create_task(workers.run())
    await asyncio.sleep(0.05)
    workers.enqueue(GOOD)
    await asyncio.sleep(0.01)
    assert looked.is_set()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@in_virtual_time
async def test_events_of_one_service_are_rounds_that_are_apart_and_an_urgent_one_does_not_wait():
    times, now = [], asyncio.get_running_loop().time

    async def reconcile(key):
        times.append(now())
        return True

    workers = Workers(reconcile, set, nothing, OperatorMetrics(), WorkerSettings(interval=60.0))
    running = asyncio.create_task(workers.run())
    await asyncio.sleep(0)
    until = now() + 0.9
    while now() < until:
        workers.enqueue(GOOD)
        await asyncio.sleep(0.01)
    assert 2 <= len(times) <= 4
    assert min(later - one for one, later in pairwise(times)) >= 0.24
    before = len(times)
    for _ in range(3):
        workers.enqueue(GOOD, urgent=True)
        await asyncio.sleep(0.02)
    assert len(times) == before + 3
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@in_virtual_time
async def test_what_was_asked_for_before_the_work_began_is_no_burst_at_its_begin():
    """The watches of a process that stands by ask for rounds of all services."""
    keys, rounds = [ServiceKey("team", f"service-{number}") for number in range(100)], []

    async def reconcile(key):
        rounds.append(key)
        return True

    workers = Workers(reconcile, lambda: set(keys), nothing, OperatorMetrics(), WorkerSettings(interval=60.0))
    for key in keys:
        workers.enqueue(key)
    running = asyncio.create_task(workers.run())
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(rounds) < 10
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@in_virtual_time
async def test_services_whose_first_look_finds_a_queue_come_before_the_first_rounds_of_the_others():
    keys = [ServiceKey("team", f"service-{number}") for number in range(1000)]
    queued, rounds, loop = set(keys[::10]), {}, asyncio.get_running_loop()
    begun = loop.time()

    async def look(key):
        await asyncio.sleep(0.3)
        if key == keys[5]:
            raise RuntimeError("a mistake of ours")
        return key in queued

    async def reconcile(key):
        rounds.setdefault(key, loop.time() - begun)
        loop.now += 0.02  # a round of each takes 20 s, the looks 5.3
        return True

    settings = WorkerSettings(interval=5.0)
    workers = Workers(reconcile, lambda: keys, nothing, OperatorMetrics(), settings, look=look)
    running = asyncio.create_task(workers.run())
    await asyncio.sleep(60.0)
    assert len(rounds) == len(keys)
    assert max(rounds[key] for key in queued) < 6.0
    assert max(rounds.values()) > 15.0
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@in_virtual_time
async def test_the_time_that_work_keeps_the_loop_busy_counts_without_its_waits():
    async def work():
        spin(0.05)
        await asyncio.sleep(0.2)
        spin(0.05)
        return "done"

    def spin(seconds):
        asyncio.get_running_loop().now += seconds

    busy = Busy(work())
    assert await busy == "done"
    assert busy.seconds == pytest.approx(0.1)


@in_virtual_time
async def test_an_error_and_a_cancellation_reach_the_work():
    ended = []

    async def work():
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def fails():
        await asyncio.sleep(0)
        raise ValueError("broken")

    async def timed(work):
        return await Busy(work)

    running = asyncio.create_task(timed(work()))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ended == [True]
    with pytest.raises(ValueError, match="broken"):
        await timed(fails())
