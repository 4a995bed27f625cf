"""The store on a disk against a dictionary: never more than its size, what is read is what was written, whatever
happens to its file."""

import errno
import fcntl
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from inflight_engine.disk import store as store_module
from inflight_engine.disk.store import PAGE, DiskStore, derive_key
from inflight_engine.disk.work import DamagedError

BLOCK = 5000
SLOT = PAGE + 2 * PAGE
NAMES = [b"name %011d" % number for number in range(9)]
KEY = derive_key(b"token", "model")


def block_of(name, version=0):
    return bytes([name[-1], version]) * (BLOCK // 2)


def make(folder, slots=4, key=KEY):
    return DiskStore(Path(folder), slots * SLOT + 100, BLOCK, key)


def read(store, name):
    into = bytearray(BLOCK)
    checksum = store.read(name, memoryview(into))
    return bytes(into), checksum


@pytest.fixture
def store(tmp_path):
    made = make(tmp_path)
    yield made
    made.close()


class StoreMachine(RuleBasedStateMachine):
    """`kept`: what was written and not given up, least recently used first."""

    SLOTS = 4

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.kept = {}
        self.version = 0
        self.lost = []
        self.store = None
        self.open()

    def open(self):
        self.store = make(self.folder.name, self.SLOTS)
        self.store.lost = self.lost.append

    @property
    def path(self):
        return Path(self.folder.name) / "blocks-0"

    @rule(name=st.sampled_from(NAMES))
    def write(self, name):
        self.version = (self.version + 1) % 256
        known = name in self.kept
        assert self.store.write(name, memoryview(block_of(name, self.version)), -self.version) is not known
        content = self.kept.pop(name) if known else (block_of(name, self.version), -self.version)
        if len(self.kept) == self.SLOTS:
            given_up = next(iter(self.kept))
            del self.kept[given_up]
            assert self.lost == [given_up]
        self.kept[name] = content
        self.lost.clear()

    @rule(name=st.sampled_from(NAMES))
    def read(self, name):
        if name in self.kept:
            self.kept[name] = self.kept.pop(name)
            assert read(self.store, name) == self.kept[name]
        else:
            with pytest.raises(KeyError):
                read(self.store, name)

    @rule(name=st.sampled_from(NAMES))
    def touch(self, name):
        self.store.touch(name)
        if name in self.kept:
            self.kept[name] = self.kept.pop(name)

    @rule(name=st.sampled_from(NAMES))
    def drop(self, name):
        self.store.drop(name)
        assert self.lost == ([name] if self.kept.pop(name, None) else [])
        self.lost.clear()

    @rule()
    def restart(self):
        """The order of use is that of the writes then: reads are not on the disk."""
        used = list(self.kept)
        self.store.close()
        self.open()
        assert sorted(self.store.hashes()) == sorted(used)
        self.kept = {name: self.kept[name] for name in self.store.hashes()}

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def damage(self, data):
        """A bit of the file: the block that had it is dropped by its next read, and none is read wrongly."""
        at = data.draw(st.integers(0, self.path.stat().st_size - 1))
        with self.path.open("r+b") as file:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 1 << data.draw(st.integers(0, 7))]))
        for name in list(self.kept):
            try:
                assert read(self.store, name) == self.kept[name]
                self.kept[name] = self.kept.pop(name)
            except DamagedError:
                del self.kept[name]
        self.lost.clear()

    @rule(part=st.floats(0, 1))
    def cut(self, part):
        """The file loses its end, as no disk but many a person does."""
        os.truncate(self.path, int(part * self.path.stat().st_size))
        for name in list(self.kept):
            try:
                assert read(self.store, name) == self.kept[name]
                self.kept[name] = self.kept.pop(name)
            except DamagedError:
                del self.kept[name]
        self.lost.clear()

    @invariant()
    def it_has_what_was_kept_and_no_more(self):
        assert self.store.hashes() == list(self.kept)
        assert self.store.usage() == len(self.kept) <= self.SLOTS
        assert [name for name in NAMES if self.store.has(name)] == [name for name in NAMES if name in self.kept]
        assert self.path.stat().st_size <= self.SLOTS * SLOT

    def teardown(self):
        self.store.close()
        self.folder.cleanup()


TestStore = StoreMachine.TestCase
TestStore.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def test_another_key_finds_nothing_and_writes_over_it(tmp_path):
    first = make(tmp_path)
    first.write(NAMES[0], memoryview(block_of(NAMES[0])), 7)
    first.close()
    second = make(tmp_path, key=derive_key(b"token", "another model"))
    assert second.hashes() == []
    second.write(NAMES[1], memoryview(block_of(NAMES[1])), 8)
    assert read(second, NAMES[1]) == (block_of(NAMES[1]), 8)
    second.close()
    assert (tmp_path / "blocks-0").stat().st_size == SLOT
    again = make(tmp_path)
    assert again.hashes() == []
    again.close()


def test_identities_whose_parts_join_to_equal_texts_have_different_keys():
    assert derive_key(b"t", "a", "bc") != derive_key(b"t", "ab", "c") != derive_key(b"u", "ab", "c")


def test_the_file_shows_neither_blocks_nor_names(tmp_path, store):
    store.write(NAMES[0], memoryview(block_of(NAMES[0])), 7)
    content = (tmp_path / "blocks-0").read_bytes()
    assert NAMES[0] not in content
    assert block_of(NAMES[0])[:16] not in content
    assert (tmp_path / "blocks-0").stat().st_mode & 0o077 == 0


def test_engines_that_share_a_folder_have_a_file_each_and_a_restarted_one_takes_a_free_one(tmp_path, store):
    second = make(tmp_path)
    second.write(NAMES[0], memoryview(block_of(NAMES[0])), 7)
    assert store.hashes() == []
    second.close()
    third = make(tmp_path)
    assert third.hashes() == [NAMES[0]]
    third.close()


def test_a_process_that_is_killed_between_a_block_and_its_name_leaves_neither(tmp_path, monkeypatch):
    """The slot had another block, which is gone too."""
    store = make(tmp_path, slots=1)
    store.write(NAMES[0], memoryview(block_of(NAMES[0])), 7)

    class Killed(BaseException):
        pass

    def killed(name):
        raise Killed

    monkeypatch.setattr(store, "_name", killed)
    with pytest.raises(Killed):
        store.write(NAMES[1], memoryview(block_of(NAMES[1])), 8)
    store.close()
    again = make(tmp_path, slots=1)
    assert again.hashes() == []
    again.close()


def test_on_a_full_disk_the_space_that_the_file_has_is_used_again(store, monkeypatch):
    for name in NAMES[:2]:
        store.write(name, memoryview(block_of(name)), 1)
    full = OSError(errno.ENOSPC, "full")

    def no_space(*_):
        raise full

    monkeypatch.setattr(store_module.os, "posix_fallocate", no_space)
    for name in NAMES[2:6]:
        assert store.write(name, memoryview(block_of(name)), 2)
    assert store.hashes() == NAMES[4:6]


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.ESTALE])
def test_a_write_that_fails_costs_its_block_only(store, monkeypatch, error):
    store.write(NAMES[0], memoryview(block_of(NAMES[0])), 1)
    with monkeypatch.context() as patched:

        def fails(*_):
            raise OSError(error, "fails")

        patched.setattr(store_module.os, "pwritev", fails)
        with pytest.raises(OSError, match="fails"):
            store.write(NAMES[1], memoryview(block_of(NAMES[1])), 1)
    assert store.hashes() == [NAMES[0]]
    for name in NAMES[1:5]:
        store.write(name, memoryview(block_of(name)), 1)
        assert read(store, name) == (block_of(name), 1)


def test_a_block_that_cannot_be_read_is_dropped(store, monkeypatch):
    store.write(NAMES[0], memoryview(block_of(NAMES[0])), 1)
    with monkeypatch.context() as patched:

        def fails(*_):
            raise OSError(errno.EIO, "gone")

        patched.setattr(store_module.os, "preadv", fails)
        with pytest.raises(OSError, match="gone"):
            read(store, NAMES[0])
    assert not store.has(NAMES[0])


def test_the_page_cache_is_passed_by_where_the_file_system_lets_it_be(tmp_path, monkeypatch, caplog):
    store = make(tmp_path)
    flags = fcntl.fcntl(store._file, fcntl.F_GETFL)
    store.close()
    try:
        os.close(os.open(tmp_path / "plain", os.O_RDWR | os.O_CREAT | os.O_DIRECT))
    except OSError:
        pytest.skip("the file system of temporary files has no direct I/O")
    assert flags & os.O_DIRECT
    call = fcntl.fcntl

    def refused(file, command, *arguments):
        if command == fcntl.F_SETFL:
            raise OSError(errno.EINVAL, "Invalid argument")
        return call(file, command, *arguments)

    monkeypatch.setattr(store_module.fcntl, "fcntl", refused)
    caplog.set_level("INFO")
    store = make(tmp_path)
    store.write(NAMES[0], memoryview(block_of(NAMES[0])), 1)
    assert read(store, NAMES[0]) == (block_of(NAMES[0]), 1)
    store.close()
    assert caplog.text.count("no direct I/O") == 1


@pytest.mark.parametrize("call", ["preadv", "pwritev"])
def test_a_file_system_that_takes_the_flag_of_direct_io_and_refuses_the_io_gets_it_through_the_page_cache(
    tmp_path, monkeypatch, caplog, call
):
    transfer = getattr(os, call)

    def refused(file, *arguments):
        if fcntl.fcntl(file, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return transfer(file, *arguments)

    monkeypatch.setattr(store_module.os, call, refused)
    caplog.set_level("INFO")
    store = make(tmp_path)
    for name in NAMES[:2]:
        store.write(name, memoryview(block_of(name)), 1)
        assert read(store, name) == (block_of(name), 1)
    assert caplog.text.count("no direct I/O") == 1
    store.close()
    again = make(tmp_path)
    assert again.hashes() == NAMES[:2]
    again.close()


def test_a_size_without_room_for_a_block_is_refused(tmp_path):
    with pytest.raises(ValueError, match="one takes 12288"):
        DiskStore(tmp_path, SLOT - 1, BLOCK, KEY)
