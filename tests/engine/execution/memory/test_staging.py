"""Arrays arrive as they were, at addresses that depend only on the lengths before them."""

import numpy as np
import pytest
import torch

from inflight_engine.execution.memory.staging import Staging, staged_bytes, upload

CPU = torch.device("cpu")


def arrays(length, seed):
    rng = np.random.default_rng(seed)
    return [
        rng.integers(0, 9, length),
        rng.integers(0, 9, (length, 3)).astype(np.int32)[:, :2],  # not contiguous
        rng.random(length + 1) < 0.5,
        np.empty(0, np.int64),
        rng.random(5).astype(np.float32),
    ]


@pytest.mark.parametrize("copies", [True, False])
def test_contents_shapes_and_dtypes_arrive(copies):
    staging = Staging(1024, CPU, copies=copies)
    for seed in range(4):
        given = arrays(3 + seed, seed)
        for array, tensor in zip(given, staging.send(*given), strict=True):
            assert np.array_equal(array, tensor.numpy())
            assert array.dtype == tensor.numpy().dtype


def test_equal_lengths_give_equal_addresses_whatever_follows_them():
    staging = Staging(1024, CPU, copies=True)
    first = [tensor.data_ptr() for tensor in staging.send(*arrays(7, 1))]
    again = [tensor.data_ptr() for tensor in staging.send(*arrays(7, 2), np.ones(3))]
    assert first == again[:-1]
    assert all(address % 16 == 0 for address in again)


def test_the_host_buffers_take_turns():
    staging = Staging(64, CPU, copies=True)
    staging.send(np.array([1]))
    staging.send(np.array([2]))
    assert [int(host.view(torch.int64)[0]) for host in staging._hosts] == [2, 1]


def test_more_than_fits_is_refused():
    room = staged_bytes(8, 8)
    assert room == 32
    staging = Staging(room, CPU, copies=True)
    staging.send(np.array([1]), np.array([2]))
    with pytest.raises(ValueError, match="48 bytes to stage, but there is room for 32"):
        staging.send(np.array([1]), np.array([2]), np.array([3]))


def test_a_read_only_array_is_uploaded_without_a_warning(recwarn):
    array = np.arange(3)
    array.flags.writeable = False
    assert upload(array, CPU).tolist() == [0, 1, 2]
    assert not recwarn.list
