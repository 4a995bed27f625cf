"""The real model with blocks of another engine: greedy output equals that of an engine without any, whatever comes.
The network is a stand-in: the reader asks the other engine itself."""

import threading
import time

import numpy as np
import pytest

from inflight_contract.kv_blocks import KVSource
from inflight_engine.behind import Behind
from inflight_engine.cache.prefix import block_hashes, root_hash
from inflight_engine.engine_process import load
from inflight_engine.messages import AddRequest, CancelRequest, ReadBlocks
from inflight_engine.peers.reader import PeerError, PeerReader
from inflight_engine.request import FinishReason, SamplingParams
from inflight_settings.engine import EngineConfig
from tests.engine.disk.test_real_disk import BLOCK_BYTES, SIZES, check_nothing_is_held, prompts_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SOURCE = KVSource("127.0.0.1:1", "uid-1")
LENGTH, OUTPUT, SIZE = 60, 24, 4
HOST = {"preemption": "swap", "swap_space": 48 * BLOCK_BYTES}


class Engine:
    """An engine that answers one request at a time."""

    def __init__(self, **fields):
        self.woken = threading.Event()
        self.engine, ready = load(EngineConfig(**SIZES | fields), wake=self.woken.set)
        self.identity = ready.runner.kv_identity
        self.behind: Behind | None = self.engine._behind
        self.scheduler = self.engine._scheduler
        self.next_id = 0

    def answer(self, prompt, before=(), until=OUTPUT, source=None):
        """The tokens of a prompt after those that it has before, up to a number of them."""
        packed = [np.array(each, np.int32).tobytes() for each in (prompt, before)]
        sampling = SamplingParams(max_tokens=OUTPUT)
        request_id = self.next_id
        self.next_id += 1
        self.engine.handle(
            AddRequest(request_id, packed[0], sampling, time.monotonic(), output_token_ids=packed[1], kv_source=source)
        )
        output = list(before)
        while len(output) < until:
            if not self.engine.has_work:
                assert self.woken.wait(20), "nobody wakes the engine"
                self.woken.clear()
                continue
            output += np.frombuffer(self.engine.step().token_ids, np.int32).tolist()
        self.engine.handle(CancelRequest(request_id, FinishReason.ABORT))
        while self.engine.has_work:
            self.engine.step()
        return output

    def read(self, hashes):
        return self.engine.handle(ReadBlocks(0, b"".join(hashes)))


def data_of(answer):
    with open(answer.path, "rb") as file:
        return file.read(answer.num_bytes)


@pytest.fixture(scope="module")
def prompts():
    return prompts_of(31, count=3, length=LENGTH)


@pytest.fixture(scope="module")
def alone(prompts):
    engine = Engine(prefix_caching=False)
    return [engine.answer(prompt) for prompt in prompts]


@pytest.fixture(scope="module")
def first():
    return Engine(**HOST, num_kv_blocks=200)


@pytest.fixture
def second(first, monkeypatch):
    """Another engine, which reads from the first one. `change`: what becomes of the bytes of a read."""
    second = Engine(**HOST)
    second.change = bytes

    def fetch(reader, read, source, checksums):
        assert source == SOURCE
        answer = first.read(read.hashes)
        sums = np.frombuffer(answer.checksums, "<i8").tolist()
        data = second.change(data_of(answer))
        for index, place in enumerate(read.places[: len(sums)]):
            reader._memory.row(place)[:] = data[index * BLOCK_BYTES : (index + 1) * BLOCK_BYTES]
        checksums += sums

    monkeypatch.setattr(PeerReader, "_fetch", fetch)
    # Other tests run on the same cores.
    for name in ("_LEAST_PATIENCE", "_UNKNOWN_PATIENCE"):
        monkeypatch.setattr(f"inflight_engine.tier_loads.{name}", 30.0)
    yield second
    second.engine.close()


@pytest.mark.parametrize("at", [1, 4, 5, 23])
def test_an_answer_that_another_engine_began_goes_on_without_computing_it_again(first, second, prompts, alone, at):
    for prompt, tokens in zip(prompts, alone, strict=True):
        loaded = second.behind.peers.reader.num_loaded
        begun = first.answer(prompt, until=at)
        assert begun == tokens[:at]
        assert second.answer(prompt, before=begun, source=SOURCE) == tokens
        # Of its latest token nothing is computed yet, and a block has to be full.
        assert second.behind.peers.reader.num_loaded - loaded == (LENGTH + at - 1) // SIZE
    assert second.scheduler.offload.num_failed == 0
    check_nothing_is_held(second.engine, second.behind.peers)


def test_blocks_that_left_the_device_are_read_from_host_memory(first, prompts, monkeypatch):
    whole, hashes = first.answer(prompts[0]), block_hashes(np.array(prompts[0], np.int32), SIZE, root_hash("", ""))
    small = Engine(**HOST, num_kv_blocks=LENGTH // SIZE + OUTPUT // SIZE + 4)
    for prompt in prompts[:2]:
        small.answer(prompt)
    on_device = len(small.scheduler.running.pool.match(hashes))
    assert on_device < len(hashes)
    found, expected = small.read(hashes), first.read(hashes)
    assert (found.checksums, data_of(found)) == (expected.checksums, data_of(expected))
    assert found.num_bytes == len(hashes) * BLOCK_BYTES
    monkeypatch.setattr(small.engine._runner.host_cache, "_num_read", on_device + 2)
    assert small.read(hashes).num_bytes == (on_device + 2) * BLOCK_BYTES
    monkeypatch.setattr(small.scheduler.offload, "_copies", {small.scheduler.offload.copied(hashes[-1:])[0]: 0})
    assert small.read(hashes[-3:]).num_bytes == 2 * BLOCK_BYTES, "what the next plan copies is not there yet"
    assert small.answer(prompts[0]) == whole
    check_nothing_is_held(small.engine, small.behind.peers)


def test_bytes_that_are_damaged_are_computed_instead(first, second, prompts, alone):
    begun = first.answer(prompts[0], until=9)
    second.change = lambda data: data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 4]) + data[len(data) // 2 + 1 :]
    assert second.answer(prompts[0], before=begun, source=SOURCE) == alone[0]
    assert second.scheduler.offload.num_failed > 0
    check_nothing_is_held(second.engine, second.behind.peers)


def test_a_reader_that_fails_or_hangs_costs_the_time_to_compute(first, second, prompts, alone, monkeypatch):
    def fails(reader, *_):
        raise PeerError("it fails")

    for index, fault in enumerate((fails, lambda *_: time.sleep(5))):
        monkeypatch.setattr("inflight_engine.tier_loads._LEAST_PATIENCE", 0.1 if index else 30.0)
        monkeypatch.setattr(PeerReader, "_fetch", fault)
        monkeypatch.setattr(second.behind.peers.reader, "_resting", {})
        begun = first.answer(prompts[index], until=9)
        assert second.answer(prompts[index], before=begun, source=SOURCE) == alone[index]
    assert second.behind.peers.num_late == 1
    assert second.behind.peers.reader.num_loaded == 0
    check_nothing_is_held(second.engine, second.behind.peers)


def test_blocks_of_another_tenant_or_salt_are_not_found(first, prompts):
    first.answer(prompts[0])
    hashes = [bytes(16)]
    assert (first.read(hashes).checksums, first.read(hashes).num_bytes) == (b"", 0)


def test_a_read_has_as_many_blocks_as_fit(first, prompts, monkeypatch):
    first.answer(prompts[0])
    hashes = block_hashes(np.array(prompts[0], np.int32), SIZE, root_hash("", ""))
    monkeypatch.setattr(first.engine._runner.host_cache, "_num_read", 3)
    assert first.read(hashes).num_bytes == 3 * BLOCK_BYTES


def test_engines_that_compute_otherwise_have_another_identity(first):
    assert first.identity == Engine(num_kv_blocks=50).identity != ""
    assert first.identity != Engine(block_size=8).identity
    assert first.identity != Engine(dtype="bfloat16").identity
