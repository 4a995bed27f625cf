"""Memory of packed weights that outlives the process which packed them."""

import ctypes
import fcntl
import mmap
import os

import pytest

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


def test_weights_that_a_process_left_unfinished_are_written_anew(descriptor):
    def die(address):
        ctypes.memmove(address, b"\xff" * len(WEIGHTS), len(WEIGHTS))
        raise RuntimeError("killed")

    kept = KeptWeights(descriptor)
    with pytest.raises(RuntimeError, match="killed"):
        kept.take(OTHER, len(WEIGHTS), die)
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
