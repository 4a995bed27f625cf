"""Files of a store through a cache: read once from the store by all processes together, and never with wrong bytes."""

import errno
import hashlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inflight_engine.models.checkpoints.source import ModelSourceError
from inflight_engine.models.remote import cache as caches
from inflight_engine.models.remote import cached
from inflight_engine.models.remote.cache import ModelCache, first_problem
from inflight_engine.models.remote.snapshot import take_snapshot

BLOCK, PAGE = 16 << 10, 2 << 10
SIZE = 5 * BLOCK + 1234
GENEROUS = 100 << 20


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(cached, "PIECE", BLOCK)
    monkeypatch.setattr(cached, "PAGE", PAGE)


@pytest.fixture
def content(server):
    weights = random.Random(0).randbytes(SIZE)
    server.files = {"tiny/config.json": b"{}", "tiny/model.safetensors": weights}
    return weights


@pytest.fixture
def opened(server, content, source, tmp_path):
    """A function that opens the model as another pod on the node does: `(size) -> (store, file)`."""

    def opened(size=GENEROUS):
        snapshot = take_snapshot(source("s3", "tiny"), ModelCache(tmp_path / "cache", size))
        server.num_bytes = 0
        return snapshot.store, snapshot.shards[0]

    return opened


def files_in(folder, name="data"):
    return sorted((folder / "cache/inflight-models").glob(f"*/{name}"))


def test_the_second_pod_reads_nothing_from_the_source(opened, server, content, tmp_path):
    store, file = opened()
    assert bytes(store.read(file, 0, SIZE)) == content
    assert server.num_bytes == SIZE
    again, file = opened()
    assert bytes(again.read(file, 5, SIZE - 5)) == content[5:-5]
    assert server.num_bytes == 0
    assert sum(path.stat().st_blocks for path in files_in(tmp_path)) * 512 < 1.1 * SIZE, "one copy on the disk"


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_happens_to_the_files_the_bytes_are_right(opened, content, tmp_path, data):
    pods = [opened() for _ in range(2)]
    for _ in range(data.draw(st.integers(1, 6))):
        store, file = data.draw(st.sampled_from(pods))
        start = data.draw(st.integers(0, SIZE))
        end = data.draw(st.integers(start, SIZE))
        assert bytes(store.read(file, start, end)) == content[start:end]
        for path in [*files_in(tmp_path), *files_in(tmp_path, "blocks")]:
            harm, at = data.draw(st.sampled_from(["none", "change", "cut"])), data.draw(st.integers(0, SIZE))
            at = at % max(path.stat().st_size, 1)
            if harm == "cut":
                os.truncate(path, at)
            elif harm == "change" and path.stat().st_size:
                with path.open("r+b") as opened_file:
                    opened_file.seek(at)
                    old = opened_file.read(1)
                    opened_file.seek(at)
                    opened_file.write(bytes([old[0] ^ 1]))


def test_damage_is_logged_and_mended(opened, server, content, tmp_path, caplog):
    store, file = opened()
    store.read(file, 0, SIZE)
    path = files_in(tmp_path)[0]
    path.write_bytes(content[:BLOCK] + bytes(BLOCK) + content[2 * BLOCK :])
    server.num_bytes = 0
    for _ in range(2):
        assert bytes(store.read(file, 0, SIZE)) == content
        assert server.num_bytes == BLOCK, "read once more, and kept"
    assert "a block of model.safetensors in the model cache is damaged: it is read from the source" in caplog.text
    assert "is damaged" in first_problem()
    assert path.read_bytes() == content


def test_other_content_has_another_entry(opened, server, content, tmp_path, monkeypatch):
    store, file = opened()
    store.read(file, 0, SIZE)
    changed = content[:-1] + bytes([content[-1] ^ 1])
    server.files["tiny/model.safetensors"] = changed
    monkeypatch.setenv("INFLIGHT_MODEL_FILES", str(tmp_path / "another-pod"))
    store, file = opened()
    assert bytes(store.read(file, 0, SIZE)) == changed
    assert len(files_in(tmp_path)) == 2


def test_a_store_with_the_same_etags_has_entries_of_its_own(opened, server, content, tmp_path, monkeypatch):
    store, file = opened()
    store.read(file, 0, BLOCK)
    monkeypatch.setattr(server, "etag", lambda path: file.etag)
    server.files["tiny/model.safetensors"] = other = bytes(SIZE)
    snapshot = take_snapshot(f"{server.url}/tiny", ModelCache(tmp_path / "cache", GENEROUS))
    assert bytes(snapshot.store.read(snapshot.shards[0], 0, BLOCK)) == other[:BLOCK]


def test_an_account_of_azure_has_entries_of_its_own(server, content, source, tmp_path, monkeypatch):
    """Containers of two accounts have one URL, and their files may have one etag."""
    monkeypatch.setattr(server, "etag", lambda path: '"etag"')

    def read(account):
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", account)
        monkeypatch.setenv("INFLIGHT_MODEL_FILES", str(tmp_path / account))
        snapshot = take_snapshot(source("az", "tiny"), ModelCache(tmp_path / "cache", GENEROUS))
        return bytes(snapshot.store.read(snapshot.shards[0], 0, SIZE))

    assert read("account") == content
    server.files["tiny/model.safetensors"] = bytes(SIZE)
    assert read("account") == content, "from the cache"
    assert read("another") == bytes(SIZE)


def test_a_block_that_is_damaged_in_any_page_is_filled_again(opened, server, content, tmp_path):
    store, file = opened()
    store.read(file, 0, SIZE)
    path = files_in(tmp_path)[0]
    path.write_bytes(content[: BLOCK - 1] + bytes([content[BLOCK - 1] ^ 1]) + content[BLOCK:])
    server.num_bytes = 0
    assert [store.fill(file, start) for start in range(0, SIZE, BLOCK)] == [BLOCK] * 5 + [1234]
    assert server.num_bytes == BLOCK
    assert path.read_bytes() == content


def test_a_full_disk_is_a_sentence_and_the_source_is_read(opened, server, content, caplog, monkeypatch):
    store, file = opened()
    store.read(file, 0, BLOCK)

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    assert bytes(store.read(file, 0, SIZE)) == content
    assert bytes(store.read(file, 0, SIZE)) == content
    assert (
        caplog.text.count("the model cache cannot be written: its disk is full; weights are read from the source") == 1
    )
    assert "its disk is full" in first_problem()


def test_a_cache_that_is_used_is_no_problem(opened, content):
    store, file = opened()
    assert bytes(store.read(file, 0, SIZE)) == content
    assert first_problem() == ""


def test_a_cache_that_is_too_small_is_a_sentence_and_the_source_is_read(opened, content, tmp_path, caplog):
    store, file = opened(size=SIZE - 1)
    assert bytes(store.read(file, 0, SIZE)) == content
    assert "model.safetensors is read from the source: the model cache" in caplog.text
    assert "has no room for" in caplog.text
    assert not files_in(tmp_path)


def test_what_may_change_without_notice_is_not_kept(opened, server, content, tmp_path, caplog):
    server.etags = False
    snapshot = take_snapshot(f"{server.url}/tiny", ModelCache(tmp_path / "cache", GENEROUS))
    assert bytes(snapshot.store.read(snapshot.shards[0], 0, SIZE)) == content
    assert "is not kept in the model cache: the server gives it no strong ETag" in caplog.text
    assert not (tmp_path / "cache").exists()


def test_a_file_system_without_locks_of_ranges_is_a_sentence(opened, server, content, caplog, monkeypatch):
    def refuse(*arguments):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(cached.fcntl, "fcntl", refuse)
    store, file = opened()
    assert bytes(store.read(file, 0, SIZE)) == content
    assert "the model cache has no locks of ranges: No locks available" in caplog.text


def test_a_process_that_hangs_with_a_block_is_not_waited_for_without_end(opened, content, monkeypatch):
    monkeypatch.setattr(cached, "_LOCK_SECONDS", 0.01)
    (one, file), (other, _) = opened(), opened()
    one.read(file, 0, 1)
    hanging = one._files[file]
    assert hanging.try_lock(3)
    assert bytes(other.read(file, 0, SIZE)) == content


def test_a_folder_that_another_process_keeps_locked_is_waited_for_once(opened, server, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(caches, "_LOCK_SECONDS", 0.01)
    server.files["tiny/model.safetensors.index.json"] = b'{"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}'
    server.files |= {"tiny/a.safetensors": b"aaaa", "tiny/b.safetensors": b"bbbb"}
    store, _ = opened()
    first, second = take_snapshot(store.source).shards
    cache = ModelCache(tmp_path / "cache", GENEROUS)
    cache.hold("another", 1)
    with cache._locked():
        assert bytes(store.read(first, 0, 4)) == b"aaaa"
        monkeypatch.setattr(caches, "wait_for", None)
        assert bytes(store.read(second, 0, 4)) == b"bbbb"
    assert "all is read from the source: the model cache" in caplog.text


def test_errors_of_the_store_are_those_without_a_cache(opened, server):
    store, file = opened()
    server.files["tiny/model.safetensors"] = bytes(SIZE)
    with pytest.raises(ModelSourceError, match="has changed since"):
        store.read(file, 0, SIZE)


def test_threads_and_stores_together_read_each_block_once(opened, server, content):
    pods = [opened() for _ in range(3)]
    rng = random.Random(1)
    ranges = [sorted(rng.choices(range(SIZE + 1), k=2)) for _ in range(60)] + [(0, SIZE)]

    def check(at):
        (store, file), (start, end) = pods[at % 3], ranges[at]
        return bytes(store.read(file, start, end)) == content[start:end]

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(check, range(len(ranges))))
    assert server.num_bytes == SIZE


def test_reads_in_flight_keep_the_entry_and_nothing_else_does(opened, content, tmp_path):
    store, file = opened()
    store.read(file, 0, SIZE)
    cache = ModelCache(tmp_path / "cache", SIZE + 4096)
    del store
    cache.hold("another", SIZE)
    assert not files_in(tmp_path)


CHILD = """
import hashlib, random, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from inflight_engine.models.remote import cached
from inflight_engine.models.remote.cache import ModelCache
from inflight_engine.models.remote.snapshot import take_snapshot
cached.PIECE, cached.PAGE = 16 << 10, 2 << 10
snapshot = take_snapshot(sys.argv[1], ModelCache(Path(sys.argv[2]), 100 << 20))
print("ready", flush=True)
sys.stdin.readline()
file = snapshot.shards[0]
starts = list(range(0, file.size, 20_000))
random.Random(sys.argv[3]).shuffle(starts)
with ThreadPoolExecutor(4) as pool:
    read = lambda at: bytes(snapshot.store.read(file, at, min(at + 20_000, file.size)))
    parts = dict(zip(starts, pool.map(read, starts)))
print(hashlib.sha256(b"".join(parts[at] for at in sorted(parts))).hexdigest())
"""


def test_processes_that_are_killed_neither_block_nor_spoil_the_others(server, source, tmp_path, monkeypatch):
    """A cut at any moment: the others go on, each block is read once, but those that the killed ones read."""
    weights = random.Random(0).randbytes(100 * BLOCK)
    server.files = {"tiny/config.json": b"{}", "tiny/model.safetensors": weights}
    expected, url, rng = hashlib.sha256(weights).hexdigest(), source("s3", "tiny"), random.Random(7)

    def start(name):
        monkeypatch.setenv("INFLIGHT_MODEL_FILES", str(tmp_path / f"files-{name}"))
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, url, str(tmp_path / "cache"), str(name)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout.readline() == "ready\n"
        return child

    children = [start(name) for name in range(4)]
    server.num_bytes = 0
    for child in children:
        child.stdin.write("\n")
        child.stdin.flush()
    for child in children[:2]:
        while server.num_bytes < rng.uniform(0.1, 0.4) * len(weights):
            time.sleep(0.001)
        os.kill(child.pid, signal.SIGKILL)
    assert [child.communicate()[0].strip() for child in children[2:]] == [expected] * 2
    for child in children[:2]:
        child.communicate()
    in_flight = 2 * 4 * BLOCK  # of each killed process its threads' blocks
    assert len(weights) <= server.num_bytes <= len(weights) + in_flight
    late = start("late")
    server.num_bytes = 0
    assert late.communicate("\n")[0].strip() == expected
    assert server.num_bytes == 0


def test_a_partial_fill_is_continued(opened, server, content):
    store, file = opened()
    store.read(file, 0, 4 * BLOCK)
    del store
    store, file = opened()
    assert bytes(store.read(file, 0, SIZE)) == content
    assert server.num_bytes == SIZE - 4 * BLOCK


def test_many_readers_of_one_block_ask_the_source_once(opened, server, content):
    store, file = opened()
    barrier = threading.Barrier(16)

    def read(_):
        barrier.wait()
        return bytes(store.read(file, 10, 100))

    with ThreadPoolExecutor(16) as pool:
        assert set(pool.map(read, range(16))) == {content[10:100]}
    assert server.num_bytes == BLOCK
