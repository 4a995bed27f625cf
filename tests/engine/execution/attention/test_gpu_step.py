"""A step's numbers for GPU backends: what lies where."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight_engine.execution.attention.base import AttentionBatch, ChunkSpan, StepShape
from inflight_engine.execution.attention.gpu_step import StepStaging, cut
from tests.engine.execution.attention.reference import make_spec

TABLE = np.array([[1, 2, 9], [0, 0, 0], [3, 4, 5], [8, 0, 0], [7, 0, 0]])
NONE = np.zeros(0, np.int64)
MIXED = AttentionBatch(
    kv_slots=np.array([37, 81, *range(128, 133), *range(0, 3)]),
    decode_slots=np.array([0, 2]),
    decode_context_lens=np.array([22, 34]),
    chunks=(ChunkSpan(3, 2, 5, 0), ChunkSpan(4, 7, 3, 16)),
    block_table=TABLE,
    changed_cells=np.arange(TABLE.size),
)
DECODES = AttentionBatch(MIXED.kv_slots[:2], MIXED.decode_slots, MIXED.decode_context_lens, (), TABLE, NONE)


def test_rows_come_before_chunks():
    step = StepStaging(make_spec(), tile_queries=4).send(MIXED, None)
    assert (step.num_rows, step.num_chunks, step.longest_chunk) == (2, 2, 5)
    assert step.context_lens.tolist() == [22, 34, 5, 19]
    assert step.slots.tolist() == [0, 2, 3, 4]
    assert step.kv_slots.tolist() == MIXED.kv_slots.tolist()
    assert step.block_table[:5, :3].tolist() == TABLE.tolist()
    assert step.chunk_starts.tolist() == [2, 7, 10]
    assert step.query_tiles.tolist() == [[4, 7, 16, 3], [3, 6, 4, 1], [3, 2, 0, 4]]


def test_padded_rows_have_no_keys_and_go_nowhere():
    step = StepStaging(make_spec(), tile_queries=4).send(DECODES, StepShape(4, 4))
    assert step.num_rows == 4
    assert step.context_lens.tolist() == [22, 34, 0, 0]
    assert step.kv_slots.tolist() == [37, 81, -1, -1]
    assert len(step.query_tiles) == len(step.chunk_starts) == 0


@pytest.mark.parametrize("decode_tiles", [False, True])
def test_a_padded_step_has_its_chunks_in_its_tiles_alone(decode_tiles):
    staging = StepStaging(make_spec(), tile_queries=4, decode_tiles=decode_tiles)
    step = staging.send(MIXED, StepShape(16, 6))
    assert (step.num_rows, step.num_chunks) == (6, 0)
    assert step.context_lens.tolist() == [22, 34, 0, 0, 0, 0]
    assert step.kv_slots.tolist() == [*MIXED.kv_slots.tolist(), *[-1] * 6]
    pieces = [[4, 7, 16, 3], [3, 6, 4, 1], [3, 2, 0, 4]]
    if decode_tiles:
        pieces = [[2, 1, 33, 1], [0, 0, 21, 1], *pieces]
    assert step.query_tiles.tolist() == pieces + [[0, 0, 0, 0]] * (16 // 4 + 6 - len(pieces))


def test_without_tiles_all_sequences_of_a_padded_step_with_chunks_count_as_chunks():
    staging = StepStaging(make_spec(), gathers=True)
    step = staging.send(MIXED, StepShape(16, 6))
    assert (step.num_rows, step.num_chunks, step.longest_chunk) == (0, 6, 16)
    assert step.chunk_starts.tolist() == [0, 1, 2, 7, 10, 10, 10]
    assert step.context_lens.tolist() == [22, 34, 5, 19, 0, 0]
    assert step.block_table[:4, :3].tolist() == TABLE[[0, 2, 3, 4]].tolist()


@st.composite
def batches(draw, max_tokens=40, max_sequences=8):
    """Batches of random lengths; the content of their blocks does not matter."""
    num_decodes = draw(st.integers(0, 5))
    lengths = draw(st.lists(st.integers(1, 20), max_size=max_sequences - num_decodes))
    firsts = np.cumsum([num_decodes, *lengths])
    chunks = tuple(
        ChunkSpan(num_decodes + i, int(first), length, draw(st.integers(0, 9)))
        for i, (first, length) in enumerate(zip(firsts, lengths, strict=False))
        if first + length <= max_tokens
    )
    num_tokens = num_decodes + sum(chunk.length for chunk in chunks)
    decodes = np.arange(num_decodes)
    return AttentionBatch(np.arange(num_tokens), decodes, decodes + 3, chunks, np.zeros((8, 3), np.int64), NONE)


@settings(deadline=None)
@given(st.lists(batches(), min_size=1, max_size=4), st.booleans(), st.integers(1, 7))
def test_steps_of_a_shape_lie_at_the_same_addresses_and_have_all_pieces(several, decode_tiles, tile_queries):
    staging = StepStaging(make_spec(), tile_queries=tile_queries, decode_tiles=decode_tiles)
    shape, places = StepShape(40, 8), set()
    for batch in several:
        step = staging.send(batch, shape)
        fixed = (step.context_lens, step.slots, step.kv_slots, step.query_tiles, step.block_table)
        places.add((step.num_rows, *((tensor.data_ptr(), tensor.shape) for tensor in fixed)))
        covered = sorted(
            (token + i, slot, position + i) for slot, token, position, n in step.query_tiles.tolist() for i in range(n)
        )
        expected = [
            (chunk.first + i, chunk.slot, chunk.start + i) for chunk in batch.chunks for i in range(chunk.length)
        ]
        if decode_tiles:
            expected = [(row, row, row + 2) for row in batch.decode_slots.tolist()] + expected
        assert covered == expected
    assert len(places) == 1


def test_a_gathered_table_has_a_row_for_each_sequence_and_is_as_wide_as_the_longest():
    staging = StepStaging(make_spec(max_model_len=100), gathers=True)
    table = staging.send(MIXED, None).block_table
    assert table.shape == (4, 7)
    assert table[:, :3].tolist() == TABLE[[0, 2, 3, 4]].tolist()
    again = staging.send(DECODES, StepShape(4, 4)).block_table
    assert again[:2, :3].tolist() == TABLE[[0, 2]].tolist()
    assert again.data_ptr() == table.data_ptr()


@pytest.mark.parametrize("length", [1, 7, 8, 9, 100])
def test_pieces_cover_each_chunk_once(length):
    chunks = (ChunkSpan(0, 3, length, 5), ChunkSpan(1, 3 + length, 2, 0))
    tiles = cut(NONE, NONE, chunks, 8)
    covered = sorted((slot, token + i, position + i) for slot, token, position, count in tiles for i in range(count))
    assert covered == [(0, 3 + i, 5 + i) for i in range(length)] + [(1, 3 + length + i, i) for i in range(2)]
    assert tiles[:, 3].max() <= 8
    assert (np.diff(tiles[:, 2]) <= 0).all()


def test_more_than_the_capacity_is_refused():
    with pytest.raises(ValueError, match="a step of 4 sequences and 10 tokens is more than the capacity, 3 and 256"):
        StepStaging(make_spec(max_num_seqs=3)).send(MIXED, None)
    with pytest.raises(ValueError, match="a step of 4 sequences and 10 tokens is more than the capacity, 8 and 9"):
        StepStaging(make_spec(max_num_batched_tokens=9)).send(MIXED, None)


def test_a_shape_that_does_not_hold_the_step_is_refused():
    staging = StepStaging(make_spec(), tile_queries=4)
    for shape in (StepShape(9, 5), StepShape(16, 3)):
        with pytest.raises(ValueError, match="a step of 4 sequences and 10 tokens is more than"):
            staging.send(MIXED, shape)
    with pytest.raises(ValueError, match="a shape of decodes only"):
        staging.send(MIXED, StepShape(16, 16))


def test_the_largest_step_fits():
    spec = make_spec(max_num_seqs=8, max_num_batched_tokens=64, max_model_len=64)
    chunks = tuple(ChunkSpan(slot, 8 * slot, 8, 0) for slot in range(8))
    batch = AttentionBatch(np.zeros(64, np.int64), NONE, NONE, chunks, np.zeros((8, 4), np.int64), NONE)
    for gathers in (False, True):
        staging = StepStaging(spec, tile_queries=1, decode_tiles=True, gathers=gathers)
        assert len(staging.send(batch, None).query_tiles) == 64
        assert len(staging.send(batch, StepShape(64, 8)).query_tiles) == 72
