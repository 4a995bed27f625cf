"""Memory of packed weights that outlives the process which packed them."""

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os

import pytest

from inflight_engine.native import kept_weights
from inflight_engine.native.kept_weights import DESCRIPTOR_VARIABLE, KeptWeights, has_huge_pages, inherited

MINE, OTHER = b"m" * 32, b"o" * 32
WEIGHTS = bytes(range(256)) * 40


@pytest.fixture
def descriptor():
    number = os.memfd_create("weights", os.MFD_ALLOW_SEALING)
    yield number
    os.close(number)


def write(address):
    ctypes.memmove(address, WEIGHTS, len(WEIGHTS))


def refuse(address):
    raise AssertionError("these weights are there already")


def test_weights_are_written_once_and_mapped_by_whoever_comes_later(descriptor):
    kept = KeptWeights(descriptor)
    assert not kept.sealed
    for fill in (write, refuse, refuse):
        mapping = kept.take(MINE, len(WEIGHTS), fill)
        assert mapping.address % 64 == 0
        assert ctypes.string_at(mapping.address, len(WEIGHTS)) == WEIGHTS
        assert kept.sealed
        del mapping


def test_sealed_weights_refuse_writes_in_every_way(descriptor):
    KeptWeights(descriptor).take(MINE, len(WEIGHTS), write)
    size = os.fstat(descriptor).st_size
    for attempt in (
        lambda: os.pwrite(descriptor, b"x", 64),
        lambda: os.ftruncate(descriptor, 0),
        lambda: os.ftruncate(descriptor, size + 1),
        lambda: mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE),
        lambda: fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, 0),
    ):
        with pytest.raises(PermissionError):
            attempt()


@pytest.mark.parametrize(("identity", "num_bytes"), [(OTHER, len(WEIGHTS)), (MINE, len(WEIGHTS) + 64)])
def test_other_weights_than_those_that_are_kept_are_not_taken_from_there(descriptor, identity, num_bytes):
    kept = KeptWeights(descriptor)
    kept.take(MINE, len(WEIGHTS), write)
    assert kept.take(identity, num_bytes, refuse) is None
    assert kept.take(MINE, len(WEIGHTS), refuse) is not None


def test_sealed_weights_are_mapped_where_linux_refuses_to_share_them_even_to_read(descriptor, monkeypatch):
    """Linux before 6.7 does so."""
    kept, real = KeptWeights(descriptor), kept_weights._libc.mmap

    def older(address, size, protection, flags, number, offset):
        if kept.sealed and flags & mmap.MAP_SHARED:
            ctypes.set_errno(errno.EPERM)
            return kept_weights._MAP_FAILED
        return real(address, size, protection, flags, number, offset)

    monkeypatch.setattr(kept_weights._libc, "mmap", older)
    for fill in (write, refuse):
        mapping = kept.take(MINE, len(WEIGHTS), fill)
        assert ctypes.string_at(mapping.address, len(WEIGHTS)) == WEIGHTS


@pytest.mark.parametrize("error", [OSError(errno.EIO, "a disk"), ValueError("a model")])
def test_weights_that_cannot_be_written_leave_no_memory_taken(descriptor, error):
    def fail(address):
        write(address)
        raise error

    with contextlib.suppress(ValueError):
        assert KeptWeights(descriptor).take(MINE, len(WEIGHTS), fail) is None
    assert os.fstat(descriptor).st_size == 0


def test_weights_that_a_process_left_unfinished_are_written_anew(descriptor):
    kept = KeptWeights(descriptor)
    os.pwrite(descriptor, OTHER + b"\xff" * (2 * len(WEIGHTS)), 0)
    assert not kept.sealed

    def check_zero(address):
        assert not any(ctypes.string_at(address, len(WEIGHTS)))
        write(address)

    mapping = kept.take(MINE, len(WEIGHTS), check_zero)
    assert ctypes.string_at(mapping.address, len(WEIGHTS)) == WEIGHTS


def test_memory_that_cannot_be_mapped_is_not_used(descriptor):
    assert KeptWeights(descriptor).take(MINE, 1 << 62, refuse) is None


def test_file_of_the_api_process_is_found_by_the_environment_and_not_passed_on(descriptor, monkeypatch):
    os.set_inheritable(descriptor, True)
    monkeypatch.setenv(DESCRIPTOR_VARIABLE, str(descriptor))
    assert not inherited().sealed
    assert not os.get_inheritable(descriptor)


@pytest.mark.parametrize("value", [None, "", "none", "999", "/dev/null"])
def test_what_is_no_file_for_weights_is_not_used(monkeypatch, value):
    monkeypatch.delenv(DESCRIPTOR_VARIABLE, raising=False)
    with open("/dev/null") as null:
        if value is not None:
            monkeypatch.setenv(DESCRIPTOR_VARIABLE, str(null.fileno()) if value == "/dev/null" else value)
        assert inherited() is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("always within_size advise [never] deny force\n", False),
        ("always within_size advise never [deny] force\n", False),
        ("always within_size [advise] never deny force\n", True),
        ("[always] within_size advise never deny force\n", True),
        ("", False),
        (None, False),
    ],
)
def test_huge_pages_of_shared_memory_are_the_systems_choice(tmp_path, text, expected):
    if text is not None:
        (tmp_path / "shmem_enabled").write_text(text)
    assert has_huge_pages(tmp_path / "shmem_enabled") is expected
