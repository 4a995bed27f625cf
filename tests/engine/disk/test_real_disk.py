"""The real model with the tier on a disk: greedy output equals that of an engine without any, whatever happens to the
disk, and a second engine on the same folder finds what the first one left."""

import os
import random
import threading
import time

import numpy as np
import pytest

from inflight_engine.disk.store import DiskStore
from inflight_engine.engine_process import load
from inflight_engine.messages import AddRequest, CancelRequest
from inflight_engine.recording.reader import Recording
from inflight_engine.recording.replay import Survey, replay
from inflight_engine.request import FinishReason, SamplingParams, Scheduling
from inflight_settings.engine import EngineConfig

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SIZES = {
    "model": "builtin://smollm2",
    "dtype": "float32",
    "block_size": 4,
    "num_kv_blocks": 40,
    "max_model_len": 128,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 128,
}
BLOCK_BYTES = 4 * 30 * 2 * 3 * 64 * 4
OUTPUT = 8


class Engine:
    """An engine, and the thread of its disk, whose reads end the waits. `logprobs`: of the latest outputs, where their
    requests asked for them: of each token, and of the likeliest ones."""

    def __init__(self, folder=None, *, host_blocks=48, disk_blocks=1000, block_bytes=BLOCK_BYTES, wait=True, **fields):
        self.woken = threading.Event()
        if folder is not None:
            fields |= {"preemption": "swap", "max_num_batched_tokens": 128, "swap_space": host_blocks * block_bytes}
            fields |= {"disk_path": str(folder), "disk_space": disk_blocks * (block_bytes + 8192)}
        self.engine, _ = load(EngineConfig(**SIZES | fields), wake=self.woken.set)
        self.scheduler = self.engine._scheduler
        self.disk = None if folder is None else self.engine._behind.disk
        self.next_id = 0
        self.logprobs = []
        if self.disk is not None and wait:
            eventually(lambda: self.disk.reader._store is not None)

    def answer(self, prompts, cancelled=(), scheduling=None, logprobs=None):
        """Outputs of prompts that come at once. `cancelled`: indices of those that are cancelled right away."""
        first = self.next_id
        for prompt in prompts:
            tokens = np.array(prompt, np.int32).tobytes()
            sampling = SamplingParams(max_tokens=OUTPUT, logprobs=logprobs)
            self.engine.handle(AddRequest(self.next_id, tokens, sampling, time.monotonic(), scheduling or Scheduling()))
            self.next_id += 1
        for index in cancelled:
            self.engine.handle(CancelRequest(first + index, FinishReason.ABORT))
        outputs, owner, ended = [[] for _ in prompts], {}, 0
        self.logprobs = [[] for _ in prompts]
        while ended < len(prompts):
            if not self.engine.has_work:
                assert self.woken.wait(20), "nobody wakes the engine"
                self.woken.clear()
                continue
            report = self.engine.step()
            ended += len(report.finished)
            owner |= {each.slot: each.request_id - first for each in report.admitted}
            slots, token_ids = np.frombuffer(report.slots, np.int32), np.frombuffer(report.token_ids, np.int32)
            for slot, token in zip(slots.tolist(), token_ids.tolist(), strict=True):
                outputs[owner[slot]].append(token)
            for each in report.logprobs:
                self.logprobs[owner[each.slot]].append((each.logprob, each.top_token_ids, each.top_logprobs))
        return outputs

    def settle(self):
        """Wait until all is written."""
        thread = self.disk.reader
        eventually(lambda: not thread._writes and not thread._reads)

    def check_nothing_is_held(self):
        check_nothing_is_held(self.engine, self.disk)

    def close(self):
        self.settle()
        self.engine.close()


def check_nothing_is_held(engine, loads):
    """No place of host memory and no block stays with a request that has ended."""
    eventually(lambda: not loads.reader._reads)
    while loads.ready:
        engine.step()
    scheduler = engine._scheduler
    assert scheduler.kv_usage == 0
    assert scheduler.offload._tier._pool.usage == 0
    assert not loads._reads
    assert not loads._number_of
    assert not loads._waiting


def eventually(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def prompts_of(seed, count=14, length=60):
    rng = random.Random(1)
    return [rng.choices(range(100, 40_000), k=length) for _ in range(count)]


@pytest.fixture(scope="module")
def prompts():
    return prompts_of(29)


@pytest.fixture(scope="module")
def alone(prompts):
    engine = Engine(prefix_caching=False)
    return [engine.answer([prompt])[0] for prompt in prompts]


def test_prompts_that_come_from_the_disk_give_the_tokens_of_those_that_are_computed(prompts, alone, tmp_path):
    """14 prompts of 15 blocks; 40 blocks on the device, 48 in host memory. The recording can be replayed."""
    record = tmp_path / "run.gz"
    engine = Engine(tmp_path / "kv", record=str(record))
    for _ in range(3):
        for first in range(0, len(prompts), 2):
            assert engine.answer(prompts[first : first + 2]) == alone[first : first + 2]
            engine.settle()
    thread = engine.disk.reader
    assert thread.num_loaded > 100
    assert (thread.num_failed, engine.scheduler.offload.num_failed) == (0, 0)
    engine.check_nothing_is_held()
    engine.close()
    recording = Recording(record)
    assert replay(recording.header.config, recording.events(), Survey(recording.events())) is None


def test_a_second_engine_on_the_folder_finds_what_the_first_wrote_for_the_same_tenant_and_salt(
    prompts, alone, tmp_path
):
    first = Engine(tmp_path)
    for prompt, answer in zip(prompts, alone, strict=True):
        assert first.answer([prompt]) == [answer]
        first.settle()
    first.close()
    second = Engine(tmp_path)
    assert second.disk.reader.usage() == first.disk.reader.num_stored > 50
    for other in (Scheduling(tenant="acme"), Scheduling(cache_salt="salt")):
        assert second.answer(prompts[:1], scheduling=other) == alone[:1]
        assert second.disk.reader.num_loaded == 0, "it is another tenant's"
    assert second.answer(prompts[:1]) == alone[:1]
    assert second.disk.reader.num_loaded > 10
    assert second.scheduler.admission.prefix_hits == 4 * second.scheduler.offload.num_loaded > 40
    second.close()


def test_another_model_or_token_finds_nothing(prompts, alone, tmp_path, monkeypatch):
    first = Engine(tmp_path)
    for prompt in prompts:
        first.answer([prompt])
        first.settle()
    first.close()
    monkeypatch.setenv("INFLIGHT_ADMIN_TOKEN", "another")
    second = Engine(tmp_path)
    assert second.disk.reader.usage() == 0
    assert second.answer(prompts[:1]) == alone[:1]
    second.close()


class Faults:
    """Faults of the disk and of host memory, drawn for each call."""

    def __init__(self, seed, patched):
        self.random = random.Random(seed)
        self.counts = dict.fromkeys(("slow", "failed", "damaged", "not_written", "host"), 0)
        self.patched = patched
        read, write = DiskStore.read, DiskStore.write

        def faulty_read(store, block_hash, into):
            chance = self.random.random()
            if chance < 0.05:
                self.counts["slow"] += 1
                time.sleep(0.3)
            elif chance < 0.1:
                self.counts["failed"] += 1
                store.drop(block_hash)
                raise OSError(5, "Input/output error")
            elif chance < 0.2:
                self.counts["damaged"] += 1
                slot = store._slots[block_hash]
                with open(f"/proc/self/fd/{store._file}", "r+b") as file:
                    file.seek(slot * store._slot_bytes + self.random.randrange(40000))
                    file.write(self.random.randbytes(9))
            return read(store, block_hash, into)

        def faulty_write(store, block_hash, block, checksum):
            if self.random.random() < 0.05:
                self.counts["not_written"] += 1
                raise OSError(28, "No space left on device")
            return write(store, block_hash, block, checksum)

        patched.setattr(DiskStore, "read", faulty_read)
        patched.setattr(DiskStore, "write", faulty_write)

    def damage(self, engine):
        """A bit of some places in host memory."""
        memory = engine.engine._runner.host_cache._blocks
        for place in range(0, len(memory), 5):
            memory[place, self.random.randrange(memory.shape[1])] ^= 1 << self.random.randrange(8)
            self.counts["host"] += 1


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_fault_of_a_tier_changes_a_token_or_leaves_anything(seed, prompts, alone, tmp_path, monkeypatch):
    """Slow, cut, corrupt and full disks, host memory that changes, and clients that leave."""
    monkeypatch.setattr("inflight_engine.disk.work._PAUSE_SECONDS", 0.0)
    monkeypatch.setattr("inflight_engine.tier_loads._LEAST_PATIENCE", 0.0)
    faults = Faults(seed, monkeypatch)
    engine = Engine(tmp_path)
    rng = random.Random(seed)
    for turn in range(24):
        if turn % 4 == 3:
            faults.damage(engine)
        some = [rng.randrange(len(prompts)) for _ in range(3)]
        gone = {rng.randrange(3)} if turn % 3 == 0 else set()
        outputs = engine.answer([prompts[each] for each in some], gone)
        assert [output for index, output in enumerate(outputs) if index not in gone] == [
            alone[each] for index, each in enumerate(some) if index not in gone
        ]
        if turn % 2:
            engine.settle()
    assert all(faults.counts.values()), faults.counts
    assert engine.disk.reader.num_loaded > 50
    engine.check_nothing_is_held()
    engine.close()


def test_a_disk_that_goes_while_blocks_are_read_from_it_costs_its_hits_only(prompts, alone, tmp_path, monkeypatch):
    engine = Engine(tmp_path)
    for prompt in prompts:
        engine.answer([prompt])
        engine.settle()
    left = iter(range(3))

    def gone(system_call):
        def call(*args):
            if next(left, None) is None:
                raise OSError(5, "Input/output error")
            return system_call(*args)

        return call

    thread, writes = engine.disk.reader, engine.disk.reader.num_stored
    for name in ("preadv", "pwritev"):
        monkeypatch.setattr(f"inflight_engine.disk.store.os.{name}", gone(getattr(os, name)))
    for first in range(0, len(prompts), 2):
        assert engine.answer(prompts[first : first + 2]) == alone[first : first + 2]
    assert 0 < thread.num_loaded <= 3
    assert thread.num_failed > 0
    assert thread.num_stored == writes
    engine.check_nothing_is_held()
    engine.close()


def test_a_disk_that_hangs_costs_a_request_no_more_time_than_computing(prompts, alone, tmp_path, monkeypatch):
    engine = Engine(tmp_path)
    for prompt in prompts:
        engine.answer([prompt])
        engine.settle()
    hangs = threading.Event()
    read = DiskStore.read

    def hanging(store, block_hash, into):
        hangs.wait()
        return read(store, block_hash, into)

    monkeypatch.setattr(DiskStore, "read", hanging)
    assert engine.answer(prompts[:2]) == alone[:2]
    assert engine.disk.reader.num_loaded == 0
    assert engine.disk._reads, "what hangs is still to come"
    hangs.set()
    engine.check_nothing_is_held()
    engine.close()


def test_without_a_disk_the_engine_goes_on(prompts, alone, tmp_path):
    path = tmp_path / "file"
    path.write_text("no folder")
    engine = Engine(path, wait=False)
    assert engine.answer(prompts[:2]) == alone[:2]
    engine.engine.close()
