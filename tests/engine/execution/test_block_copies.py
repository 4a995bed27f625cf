"""The copies of a GPU's blocks, on the CPU, where there are no streams: what is copied where."""

from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight_engine.execution import block_copies
from inflight_engine.execution.block_copies import StagedCopies, runs

LAYERS, BLOCKS, HOST_BLOCKS = 3, 12, 9
ids = st.integers(0, HOST_BLOCKS).flatmap(
    lambda count: st.tuples(
        st.permutations(range(BLOCKS)).map(lambda order: order[:count]),
        st.permutations(range(HOST_BLOCKS)).map(lambda order: order[:count]),
    )
)


@pytest.fixture(autouse=True, scope="module")
def _no_streams():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_copies, "_Streams", MagicMock())
        yield


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), ids), max_size=6),
    st.sampled_from([1, 2, 100]),
    st.sampled_from([(torch.bfloat16, 8), (torch.float8_e4m3fn, 4)]),
)
def test_any_copies_do_what_block_by_block_copies_do(calls, blocks_in_a_piece, layout):
    dtype, width = layout
    cache = torch.zeros((LAYERS, BLOCKS, width), dtype=dtype)
    generator = torch.Generator().manual_seed(0)
    cache.view(torch.uint8).random_(generator=generator)
    block_bytes = LAYERS * width * dtype.itemsize
    host = torch.randint(0, 256, (HOST_BLOCKS, block_bytes), dtype=torch.uint8, generator=generator)
    copies = StagedCopies(cache.movedim(1, 0), host, blocks_in_a_piece * block_bytes)
    stored = {}
    expected, expected_host = cache.view(torch.uint8).clone(), host.clone()
    for goes_out, (block_ids, host_block_ids) in calls:
        if goes_out:
            copies.copy_out(block_ids, host_block_ids)
            stored |= dict.fromkeys(host_block_ids, True)
        else:
            num_never_stored = sum(host_block_id not in stored for host_block_id in host_block_ids)
            assert int(copies.copy_in(host_block_ids, block_ids)) == num_never_stored
        for block, host_block in zip(block_ids, host_block_ids, strict=True):
            if goes_out:
                expected_host[host_block] = expected[:, block].reshape(-1)
            else:
                expected[:, block] = expected_host[host_block].view(LAYERS, -1)
    assert torch.equal(cache.view(torch.uint8), expected)
    assert torch.equal(host, expected_host)


@given(st.integers(0, 2**63), st.integers(0, HOST_BLOCKS - 1), st.integers(0, LAYERS * 16 - 1), st.integers(0, 7))
def test_one_bit_that_is_not_as_it_was_is_noticed(seed, place, byte, bit):
    cache = torch.zeros((LAYERS, BLOCKS, 16), dtype=torch.uint8).random_(generator=torch.Generator().manual_seed(seed))
    host = torch.zeros((HOST_BLOCKS, LAYERS * 16), dtype=torch.uint8)
    copies = StagedCopies(cache.movedim(1, 0), host)
    copies.copy_out([5], [place])
    assert int(copies.copy_in([place], [6])) == 0
    host[place, byte] ^= 1 << bit
    assert int(copies.copy_in([place], [6])) == 1


def test_neighbours_in_host_memory_move_in_one_transfer():
    assert runs(np.array([2, 3, 4, 7, 9, 10])) == [(0, 3), (3, 4), (4, 6)]
    assert runs(np.array([], np.int64)) == []


def test_as_many_blocks_must_be_named_on_both_sides():
    copies = StagedCopies(torch.zeros(2, 1, 8), torch.zeros(2, 32, dtype=torch.uint8))
    with pytest.raises(ValueError, match="2 blocks cannot be copied one to one to 1"):
        copies.copy_out([0, 1], [0])
