"""Tiles and splits of the Triton kernels."""

import pytest

from inflight_engine.execution.attention.triton_tiles import decode_tiles, prefill_tiles, split_plan

H200_MULTIPROCESSORS = 132


@pytest.mark.parametrize("shared_memory", [99 << 10, 163 << 10, 227 << 10])
@pytest.mark.parametrize("dtype_bytes", [2, 4])
@pytest.mark.parametrize("head_dim", [16, 64, 80, 128, 256])
@pytest.mark.parametrize("group", [1, 3, 7, 16, 71, 128])
def test_a_tile_has_room_for_all_heads_that_share_a_key_value_head(shared_memory, dtype_bytes, head_dim, group):
    for tiles in (
        decode_tiles(head_dim, group, dtype_bytes, shared_memory),
        prefill_tiles(head_dim, group, dtype_bytes, shared_memory),
    ):
        assert tiles.queries(group) >= 1
        for size in (tiles.rows, tiles.keys):
            assert size >= 16, "a tensor core takes no less"
            assert size & (size - 1) == 0, "Triton's shapes are powers of two"


def test_few_sequences_are_shared_by_enough_programs_to_fill_the_chip():
    plan = split_plan(1, 8, H200_MULTIPROCESSORS, 131072, 64)
    assert plan.num_splits * 8 >= 2 * H200_MULTIPROCESSORS
    assert plan.min_tiles == 1


def test_of_many_sequences_only_long_ones_are_shared():
    plan = split_plan(256, 8, H200_MULTIPROCESSORS, 131072, 64)
    assert plan.num_splits == 8
    assert plan.min_tiles * 64 == 1024


def test_short_contexts_are_not_shared_by_more_programs_than_they_have_tiles():
    assert split_plan(1, 1, H200_MULTIPROCESSORS, 100, 64).num_splits == 2
    assert split_plan(256, 8, H200_MULTIPROCESSORS, 512, 64).num_splits == 1
