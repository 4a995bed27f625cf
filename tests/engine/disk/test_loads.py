"""Requests that wait for blocks of the disk: which do, how long, and what the scheduler finds then."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from inflight_cost.model import CostModel
from inflight_engine.cache.loading import LoadRates
from inflight_engine.request import FinishReason, Request, SamplingParams
from inflight_engine.scheduling.running import hash_blocks
from inflight_engine.scheduling.scheduler import Scheduler
from inflight_engine.tier_loads import Done, TierLoads
from inflight_settings.scheduling import ServiceClass
from tests.engine.scheduling.driver import SMALL

SIZE, PIECE = 4, 8
CONFIG = replace(SMALL, num_blocks=64, max_model_len=200, num_host_blocks=40, preemption="swap")


class Thread:
    """Stand-in for the thread of the disk. `disk`: hashes that it has. `sent`: reads."""

    def __init__(self):
        self.piece = PIECE
        self.disk = set()
        self.sent = []
        self.used = []
        self.results = []
        self.seconds_per_block = self.read_at = self.stalled = 0.0
        self.num_reads = 0

    @property
    def ready(self):
        return bool(self.results)

    @property
    def busy(self):
        return bool(self.sent or self.results)

    def finds(self, request, block_hash):
        return block_hash in self.disk

    def store(self, places, hashes):
        pass

    def drop(self, hashes):
        self.disk.difference_update(hashes)

    def touch(self, hashes):
        self.used += hashes

    def load(self, read):
        self.sent.append(read)

    def take(self):
        taken, self.results = self.results, []
        return taken

    def give_up(self):
        self.results += [Done(each.number, []) for each in self.sent[1:]]
        self.sent = self.sent[:1]

    def answer(self, count=None):
        """All that was sent comes, or so many blocks of each read."""
        self.results += [Done(each.number, [7] * len(each.hashes[:count])) for each in self.sent]
        self.sent = []


class Waiting:
    """A scheduler with loads before it."""

    def __init__(self, **fields):
        self.scheduler = Scheduler(replace(CONFIG, **fields))
        self.thread = Thread()
        offload = self.scheduler.offload
        offload.stored, offload.used, offload.damaged = self.thread.store, self.thread.touch, self.thread.drop
        self.now = 1000.0
        self.checksums = {}
        self.woken = 0
        self.loads = TierLoads(
            self.thread,
            self.scheduler.offload,
            self.scheduler.offload,
            numbers=itertools.count(),
            device_has=lambda hashes: len(self.scheduler.running.pool.match(hashes)),
            longest_wait=self.scheduler.longest_wait,
            set_checksums=lambda places, sums: self.checksums.update(zip(places, sums, strict=True)),
            block_size=SIZE,
            wake_after=lambda seconds: None,
            clock=lambda: self.now,
        )

    def request(self, request_id, num_tokens=41, first=0):
        tokens = np.arange(first, first + num_tokens, dtype=np.int32)
        request = Request(request_id, tokens, SamplingParams(max_tokens=4), arrival_time=self.now)
        hash_blocks(request, num_tokens, SIZE)
        return request

    def start(self, request):
        """How many of its blocks are loaded from host memory."""
        self.scheduler.add(request)
        plan = self.scheduler.schedule(self.now)
        (start,) = plan.starts
        assert all(self.checksums[place] == 7 for place in start.host_block_ids)
        return len(start.host_block_ids)


@pytest.fixture
def waiting():
    return Waiting()


def test_blocks_that_host_memory_has_when_the_device_evicts_them_again_count_as_used_on_the_disk(waiting):
    """They are not copied again, so the disk would give up first what is used most."""
    hashes, evict = waiting.request(0).block_hashes, waiting.scheduler.running.pool.offload
    evict(np.arange(3), hashes[:3])
    assert waiting.thread.used == []
    evict(np.arange(4), hashes[1:5])
    assert waiting.thread.used == hashes[1:3]


def test_a_request_waits_until_its_blocks_are_in_host_memory_and_loads_them(waiting):
    request = waiting.request(0)
    waiting.thread.disk.update(request.block_hashes)
    assert waiting.loads.put(request)
    assert waiting.thread.sent == [], "a step in flight may copy to these places"
    assert waiting.loads.ready
    waiting.loads.send()
    assert [len(each.hashes) for each in waiting.thread.sent] == [PIECE, 10 - PIECE]
    assert not waiting.loads.ready
    waiting.thread.answer()
    assert waiting.loads.ready
    assert waiting.loads.take() == [request]
    assert waiting.start(request) == 10


def test_of_blocks_that_could_not_be_read_the_leading_ones_are_loaded(waiting):
    request = waiting.request(0)
    waiting.thread.disk.update(request.block_hashes)
    waiting.loads.put(request)
    waiting.loads.send()
    waiting.thread.answer(3)
    assert waiting.loads.take() == [request]
    assert waiting.start(request) == 3


def test_a_request_whose_blocks_are_late_starts_without_them_and_they_come_for_others(waiting):
    waiting.scheduler.offload.rates = LoadRates(prefill=20.0, copy=1e6)
    request, other = waiting.request(0), waiting.request(1)
    waiting.thread.disk.update(request.block_hashes)
    waiting.loads.put(request)
    waiting.loads.send()
    waiting.now += 1.9
    assert not waiting.loads.ready
    waiting.now += 0.2  # 40 tokens are computed in 2 s
    assert waiting.loads.ready
    assert waiting.loads.take() == [request]
    assert waiting.loads.num_late == 1
    assert waiting.start(request) == 0
    waiting.scheduler.cancel(0, FinishReason.ABORT)
    waiting.scheduler.running.pool.unregister(range(64))
    waiting.thread.answer()
    assert waiting.loads.take() == []
    assert not waiting.loads.put(other), "all is in host memory"
    assert len(waiting.scheduler.offload._tier.match(other.block_hashes)) == 10


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({}, 2.0),  # as computing the 40 tokens takes
        # 3 s, less 2.05 s for all 41 tokens, less a fifth for others
        ({"policy": "deadline", "ttft_target": 3.0}, 0.35),
        ({"policy": "fcfs", "ttft_target": 3.0}, 0.35),
        ({"policy": "fcfs", "ttft_target": 1.0, "ttft_per_1k_tokens": 2000 / 41}, 0.35),
        ({"request_timeout": 3.0}, 0.35),
        ({"classes": (ServiceClass(request_timeout=3.0),)}, 0.35),
        ({"ttft_target": 2.0}, 2.0),  # late already, and in time with what comes
        ({"ttft_target": 2.0, "request_timeout": 3.0}, 0.35),
        ({"ttft_target": 2.0, "request_timeout": 2.0}, 2.0),
        ({"late_wait": 0.5}, 0.5),
        ({"late_wait": 0.05}, 0.05),
    ],
    ids=str,
)
@pytest.mark.parametrize("cost", [None, CostModel(0.0, 0.0, 0.05, 0.0, 0.0)], ids=["rate", "cost"])
def test_a_request_waits_no_longer_than_its_deadlines_leave_it_once_it_computes_all_of_its_prompt(
    fields, seconds, cost
):
    waiting = Waiting(**fields)
    waiting.scheduler.offload.rates, waiting.scheduler.deadlines.cost = LoadRates(prefill=20.0, copy=1e6), cost
    request = waiting.request(0)
    waiting.thread.disk.update(request.block_hashes)
    assert waiting.loads.put(request)
    waiting.loads.send()
    assert waiting.loads.wait_seconds <= seconds + 1e-9
    waiting.now += seconds - 0.01
    assert not waiting.loads.ready
    waiting.now += 0.02
    assert waiting.loads.take() == [request]
    assert waiting.start(request) == 0


def test_requests_with_one_beginning_wait_for_one_read_of_it(waiting):
    first, second = waiting.request(0), waiting.request(1, num_tokens=61)
    waiting.thread.disk.update(second.block_hashes)
    assert waiting.loads.put(first)
    assert waiting.loads.put(second)
    waiting.loads.send()
    assert sum(len(each.hashes) for each in waiting.thread.sent) == 15
    waiting.thread.answer()
    assert waiting.loads.take() == [first, second]


def test_what_comes_holds_half_of_host_memory_at_most(waiting):
    request = waiting.request(0, num_tokens=150)
    waiting.thread.disk.update(request.block_hashes)
    waiting.loads.put(request)
    waiting.loads.send()
    assert sum(len(each.hashes) for each in waiting.thread.sent) == 20
    other = waiting.request(1, first=1000)
    waiting.thread.disk.update(other.block_hashes)
    assert not waiting.loads.put(other)
    assert waiting.loads.num_full == 1
    waiting.thread.answer()
    assert waiting.loads.take() == [request]
    assert waiting.start(request) == 20


def test_a_request_that_is_cancelled_while_it_waits_never_comes(waiting):
    request = waiting.request(0)
    waiting.thread.disk.update(request.block_hashes)
    waiting.loads.put(request)
    waiting.loads.send()
    assert waiting.loads.cancel(0)
    assert not waiting.loads.cancel(0)
    waiting.thread.answer()
    assert waiting.loads.take() == []
    assert waiting.scheduler.offload._tier._pool.usage == 0


def test_blocks_are_on_their_way_until_they_are_taken_also_for_a_request_that_is_gone(waiting):
    """Host memory must not be given back before that."""
    assert not waiting.loads.busy
    request = waiting.request(0)
    waiting.thread.disk.update(request.block_hashes)
    waiting.loads.put(request)
    waiting.loads.cancel(0)
    assert waiting.loads.busy
    waiting.loads.send()
    waiting.thread.answer()
    assert waiting.loads.busy
    waiting.loads.take()
    assert not waiting.loads.busy


@pytest.mark.parametrize(
    ("num_reads", "seconds_per_block", "stalled", "seconds"),
    [(10, 0.1, 0.0, 1.0), (10, 0.1, 0.5, 1.5), (10, 100.0, 0.0, 2.0), (10, 0.1, 70.0, 2.0)],
)
def test_how_long_requests_wait_is_known_and_bounded_by_their_patience(
    waiting, num_reads, seconds_per_block, stalled, seconds
):
    waiting.scheduler.offload.rates = LoadRates(prefill=20.0, copy=1e6)
    assert waiting.loads.wait_seconds == 0
    request = waiting.request(0)
    waiting.thread.disk.update(request.block_hashes)
    assert waiting.loads.put(request)
    thread = waiting.thread
    thread.num_reads, thread.seconds_per_block, thread.stalled = num_reads, seconds_per_block, stalled
    thread.read_at = waiting.now
    assert waiting.loads.wait_seconds == pytest.approx(seconds)


def test_nobody_waits_for_what_is_not_there(waiting):
    request = waiting.request(0)
    waiting.thread.disk.update(request.block_hashes[1:])
    assert not waiting.loads.put(request)


@pytest.mark.parametrize(
    ("seconds_per_block", "num_reads", "age", "waits"),
    [(0.0, 0, 0.0, True), (0.01, 0, 0.0, True), (0.3, 0, 0.0, False), (0.01, 300, 0.0, False), (0.3, 0, 100.0, True)],
)
def test_a_request_waits_where_the_measured_disk_is_faster_than_computing(seconds_per_block, num_reads, age, waits):
    """10 blocks of 4 tokens, which are computed in 2 s. What was measured long ago is measured again."""
    waiting = Waiting(preemption="auto")
    waiting.scheduler.offload.rates = LoadRates(prefill=20.0, copy=1e6)
    thread = waiting.thread
    thread.seconds_per_block, thread.num_reads, thread.read_at = seconds_per_block, num_reads, waiting.now - age
    request = waiting.request(0)
    thread.disk.update(request.block_hashes)
    assert waiting.loads.put(request) is waits
    assert waiting.loads.num_slower == (not waits)


@pytest.mark.parametrize("preemption", ["auto", "swap"])
@pytest.mark.parametrize(("stalled", "waits"), [(0.0, True), (1.5, True), (2.5, False), (70.0, False), (1e6, False)])
def test_no_request_waits_for_a_disk_that_hangs_longer_than_computing_takes(preemption, stalled, waits):
    """Neither for blocks that it reads nor for others: 10 each, which are computed in 2 s."""
    waiting = Waiting(preemption=preemption)
    waiting.scheduler.offload.rates = LoadRates(prefill=20.0, copy=1e6)
    waiting.thread.read_at = waiting.now
    first, same, other = waiting.request(0), waiting.request(1), waiting.request(2, first=100)
    waiting.thread.disk.update(first.block_hashes + other.block_hashes)
    assert waiting.loads.put(first)
    waiting.loads.send()
    waiting.now += stalled
    waiting.thread.stalled = stalled
    assert waiting.loads.put(same) is waits
    assert waiting.loads.put(other) is waits
    assert waiting.loads.num_stalled == (0 if waits else 2)


def test_while_a_disk_hangs_only_the_read_that_it_is_at_holds_host_memory(waiting):
    request = waiting.request(0, num_tokens=150)
    waiting.thread.disk.update(request.block_hashes)
    waiting.loads.put(request)
    waiting.loads.send()
    waiting.now += 70
    waiting.thread.stalled = 70.0
    assert waiting.loads.take() == [request]
    assert waiting.loads.take() == []
    assert list(waiting.loads._reads) == [0]
    assert sum(len(places) for _, places in waiting.scheduler.offload._fetching.values()) == PIECE
    waiting.thread.stalled = 0.0
    waiting.thread.answer()
    waiting.loads.take()
    assert not waiting.scheduler.offload._fetching


def test_while_rates_are_unknown_nobody_waits():
    waiting = Waiting(preemption="auto")
    request = waiting.request(0)
    waiting.thread.disk.update(request.block_hashes)
    assert not waiting.loads.put(request)


def test_a_block_that_is_damaged_in_host_memory_is_dropped_from_the_disk_too(waiting):
    request = waiting.request(0)
    waiting.thread.disk.update(request.block_hashes)
    waiting.loads.put(request)
    waiting.loads.send()
    waiting.thread.answer()
    waiting.loads.take()
    waiting.scheduler.add(request)
    plan = waiting.scheduler.schedule(waiting.now)
    waiting.scheduler.fail_loads(plan, [plan.starts[0].slot])
    assert not waiting.thread.disk


def test_a_damaged_load_drops_nothing_that_has_come_to_its_place_meanwhile():
    waiting = Waiting(num_host_blocks=4)
    offload, request = waiting.scheduler.offload, waiting.request(0, 9)
    other = waiting.request(1, 17, first=500)
    for number, hashes in enumerate((request.block_hashes, other.block_hashes[:2])):
        offload.fetched(number, len(offload.fetch(number, hashes)[0]))
    waiting.thread.disk.update(request.block_hashes, other.block_hashes)
    waiting.scheduler.add(request)
    plan = waiting.scheduler.schedule(waiting.now)
    _, places = offload.fetch(2, other.block_hashes)
    offload.fetched(2, 2)
    assert plan.starts[0].host_block_ids == (*places[::-1],), "they have what was loaded before"
    waiting.scheduler.fail_loads(plan, [plan.starts[0].slot])
    assert all(offload.has(each) for each in other.block_hashes)
    assert waiting.thread.disk == {*other.block_hashes}
