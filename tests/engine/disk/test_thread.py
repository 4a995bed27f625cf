"""The thread of the disk: what it writes is what a step has copied, and a disk that fails costs nothing else."""

import threading
from dataclasses import replace

import numpy as np
import pytest

from inflight_engine.block_events import DISK, BlocksRemoved, BlocksStored
from inflight_engine.cache.tiers import Content
from inflight_engine.disk.store import DiskStore
from inflight_engine.disk.thread import DiskThread
from inflight_engine.disk.work import MOST_WRITES
from inflight_engine.scheduling.scheduler import Scheduler
from inflight_engine.tier_loads import Done, Read
from tests.engine.scheduling.driver import SMALL

BLOCK = 64
NAMES = [b"name %011d" % number for number in range(9)]


class Memory:
    """Host memory: stand-in for that of the runner. `contents`: by place."""

    def __init__(self):
        self.rows = np.zeros((9, BLOCK), np.uint8)
        self.contents = {}
        self.before_checksums = None

    def put(self, place, name):
        self.rows[place] = NAMES.index(name) + 1
        self.contents[place] = Content(name, 1)

    def row(self, place):
        return self.rows[place].data

    def checksums(self, places):
        if self.before_checksums is not None:
            self.before_checksums()
        return [int(self.rows[place].sum()) for place in places]


@pytest.fixture
def memory():
    return Memory()


@pytest.fixture
def open_thread(tmp_path, memory):
    threads = []

    def opened(slots=4, events=False, content=memory.contents.get, **fields):
        woken = threading.Semaphore(0)
        thread = DiskThread(
            lambda: DiskStore(tmp_path, slots * 8192, BLOCK, b"k" * 32),
            memory,
            content=content,
            wake=woken.release,
            events=events,
            **fields,
        )
        thread.woken = woken
        thread.start()
        threads.append(thread)
        until(lambda: thread._store is not None)
        return thread

    yield opened
    for thread in threads:
        thread.close()


def until(condition):
    done = threading.Event()
    for _ in range(2000):
        if condition():
            return
        done.wait(0.005)
    raise AssertionError("it never is so")


def written(thread, place, name):
    thread.store([place], [Content(name, 1)])
    until(lambda: not thread._writes and thread.num_stored + thread.num_dropped)


def test_what_is_written_is_read_to_another_place(open_thread, memory):
    thread = open_thread()
    memory.put(0, NAMES[3])
    written(thread, 0, NAMES[3])
    until(lambda: thread.finds(None, NAMES[3]))
    thread.load(Read(5, [NAMES[3], NAMES[4]], [7, 8]))
    assert thread.woken.acquire(timeout=10)
    assert thread.take() == [Done(5, [4 * BLOCK])], "the second is not there"
    assert memory.rows[7].tolist() == [4] * BLOCK
    assert (thread.num_loaded, thread.num_failed) == (1, 0)


def test_a_place_that_has_other_content_by_now_is_not_written(open_thread, memory):
    """A plan ahead gives it to other content before its bytes come."""
    thread = open_thread()
    memory.put(0, NAMES[0])
    memory.contents[0] = Content(NAMES[1], 2)
    thread.store([0], [Content(NAMES[0], 1)])
    memory.put(2, NAMES[2])
    written(thread, 2, NAMES[2])
    until(lambda: thread.num_stored == 1)
    assert [name for name in NAMES if thread.finds(None, name)] == [NAMES[2]]


def test_a_place_that_gets_its_content_again_is_not_written_before_the_copy_that_brings_it(open_thread, memory):
    """While the disk hung, it had other content: what is there is not what it has by the plan."""
    scheduler = Scheduler(replace(SMALL, num_host_blocks=1, preemption="swap"))
    offload, evict = scheduler.offload, scheduler.running.pool.offload
    thread = open_thread(content=offload.content)
    offload.stored = thread.store
    reached, holds = threading.Event(), threading.Event()

    def hang():
        reached.set()
        assert holds.wait(20)

    memory.before_checksums = hang
    for step, name in enumerate((NAMES[0], NAMES[1], NAMES[0])):
        evict(np.array([step]), [name])
        offload.plan(step)
        if step < 2:
            memory.put(0, name)
            offload.take_in(step)
            assert reached.wait(20)
    holds.set()
    until(lambda: not thread._writes)
    assert not thread.finds(None, NAMES[0])
    memory.put(0, NAMES[0])
    offload.take_in(2)
    until(lambda: thread.num_stored == 1)
    assert thread.finds(None, NAMES[0])


def test_a_place_that_gets_other_content_while_it_is_written_is_not_found(open_thread, memory, monkeypatch):
    thread = open_thread(events=True)
    write = DiskStore.write

    def changing(store, block_hash, block, checksum):
        memory.put(0, NAMES[1])
        return write(store, block_hash, block, checksum)

    monkeypatch.setattr(DiskStore, "write", changing)
    memory.put(0, NAMES[0])
    thread.store([0], [Content(NAMES[0], 1)])
    memory.put(2, NAMES[2])
    thread.store([2], [Content(NAMES[2], 1)])
    until(lambda: thread.num_stored == 1)
    assert not thread.finds(None, NAMES[0])


def test_blocks_beyond_the_bound_of_the_queue_are_dropped_and_counted(open_thread, memory):
    thread = open_thread()
    holds, reached = threading.Event(), threading.Event()

    def wait():
        reached.set()
        holds.wait()

    memory.before_checksums = wait
    memory.put(0, NAMES[0])
    thread.store([0], [Content(NAMES[0], 1)])
    assert reached.wait(10)
    thread.store([0] * (MOST_WRITES + 3), [Content(NAMES[0], 1)] * (MOST_WRITES + 3))
    assert thread.num_dropped == 3
    holds.set()
    until(lambda: not thread._writes)


def test_a_block_that_is_used_again_stays_when_others_need_room(open_thread, memory):
    thread = open_thread(slots=2)
    for place, name in enumerate(NAMES[:2]):
        memory.put(place, name)
        written(thread, place, name)
    until(lambda: thread.usage() == 2)
    thread.touch([NAMES[0], NAMES[8]])
    until(lambda: not thread._used)
    memory.put(2, NAMES[2])
    thread.store([2], [Content(NAMES[2], 1)])
    until(lambda: thread.num_stored == 3)
    assert [name for name in NAMES if thread.finds(None, name)] == [NAMES[0], NAMES[2]]


def test_until_the_disk_is_open_nothing_is_found_or_written_and_no_read_waits(tmp_path, memory):
    opens = threading.Event()

    def open_store():
        assert opens.wait(10)
        return DiskStore(tmp_path, 4 * 8192, BLOCK, b"k" * 32)

    thread = DiskThread(open_store, memory, content=memory.contents.get, wake=lambda: None)
    thread.start()
    memory.put(0, NAMES[0])
    thread.store([0], [Content(NAMES[0], 1)])
    thread.touch([NAMES[0]])
    thread.load(Read(1, [NAMES[0]], [1]))
    assert (thread.finds(None, NAMES[0]), thread.usage(), thread.take()) == (False, 0, [Done(1, [])])
    assert not thread.wait_open(0.01), "a disk that takes long is not waited for"
    opens.set()
    assert thread.wait_open(10)
    written(thread, 0, NAMES[0])
    until(lambda: thread.num_stored == 1)
    thread.close()


def test_events_tell_what_is_on_the_disk_after_a_restart_too(open_thread, memory):
    thread = open_thread(slots=2, events=True)
    for place, name in enumerate(NAMES[:3]):
        memory.put(place, name)
        thread.store([place], [Content(name, 1)])
    until(lambda: thread.num_stored == 3)
    stored = [BlocksStored(name, b"", b"", b"", DISK) for name in NAMES[:3]]
    until(lambda: len(thread._events) == 4)
    assert thread.take_events() == [*stored[:2], BlocksRemoved(NAMES[0], DISK), stored[2]]
    thread.close()
    again = open_thread(slots=2, events=True)
    assert again.take_events() == [BlocksStored(NAMES[1] + NAMES[2], b"", b"", b"", DISK)]


def test_after_a_write_that_fails_none_is_tried_for_a_while(open_thread, memory, monkeypatch):
    now = [100.0]
    thread = open_thread(clock=lambda: now[0])
    with monkeypatch.context() as patched:
        patched.setattr(DiskStore, "write", fails)
        memory.put(0, NAMES[0])
        thread.store([0], [Content(NAMES[0], 1)])
        until(lambda: thread.num_dropped == 1)
    thread.store([0], [Content(NAMES[0], 1)])
    until(lambda: thread.num_dropped == 2)
    now[0] += 60
    thread.store([0], [Content(NAMES[0], 1)])
    until(lambda: thread.num_stored == 1)


def fails(*_):
    raise OSError(28, "No space left on device")


def test_a_store_that_cannot_be_opened_is_no_store(memory):
    thread = DiskThread(fails, memory, content=memory.contents.get, wake=lambda: None)
    thread.start()
    assert thread.wait_open(10), "nobody waits for a disk that cannot be opened"
    thread.store([0], [Content(NAMES[0], 1)])
    assert (thread.finds(None, NAMES[0]), thread.usage(), thread.num_dropped) == (False, 0, 0)


def test_of_a_disk_that_hangs_the_block_is_known_and_reads_that_are_not_begun_can_be_given_up(
    open_thread, memory, monkeypatch
):
    now = [1000.0]
    thread = open_thread(clock=lambda: now[0])
    memory.put(0, NAMES[0])
    written(thread, 0, NAMES[0])
    begun, hangs = threading.Event(), threading.Event()
    read = DiskStore.read

    def hanging(store, block_hash, into):
        begun.set()
        hangs.wait(20)
        return read(store, block_hash, into)

    monkeypatch.setattr(DiskStore, "read", hanging)
    assert thread.stalled == 0
    for number in range(3):
        thread.load(Read(number, [NAMES[0]], [1 + number]))
    assert begun.wait(20)
    now[0] += 70
    assert thread.stalled == 70
    thread.give_up()
    assert sorted(thread.take()) == [Done(1, []), Done(2, [])]
    hangs.set()
    until(lambda: thread.ready)
    assert thread.take() == [Done(0, [BLOCK])]
    until(lambda: thread.stalled == 0)
