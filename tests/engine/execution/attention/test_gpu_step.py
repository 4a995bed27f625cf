"""A step's numbers for GPU backends: what lies where."""

import numpy as np
import pytest

from inflight_engine.execution.attention.base import AttentionBatch, ChunkSpan
from inflight_engine.execution.attention.gpu_step import StepStaging, cut
from tests.engine.execution.attention.reference import make_spec

MIXED = AttentionBatch(
    kv_slots=np.array([37, 81, *range(128, 133), *range(0, 3)]),
    decode_block_table=np.array([[1, 2, 9], [3, 4, 5]]),
    decode_context_lens=np.array([22, 34]),
    chunks=(ChunkSpan(2, 5, 0, np.array([8])), ChunkSpan(7, 3, 16, np.array([7, 0]))),
)
DECODES = AttentionBatch(MIXED.kv_slots[:2], MIXED.decode_block_table, MIXED.decode_context_lens, ())


def test_rows_come_before_chunks():
    step = StepStaging(make_spec(), full_table=False, tile_queries=4).send(MIXED, 0)
    assert (step.num_rows, step.num_chunks, step.longest_chunk) == (2, 2, 5)
    assert step.context_lens.tolist() == [22, 34, 5, 19]
    assert step.kv_slots.tolist() == MIXED.kv_slots.tolist()
    assert step.table_width.tolist() == [3]
    assert step.block_table.tolist() == [[1, 2, 9], [3, 4, 5], [8, 0, 0], [7, 0, 0]]
    assert step.chunk_starts.tolist() == [2, 7, 10]
    assert step.chunk_contexts.tolist() == [0, 5, 24]
    assert step.query_tiles.tolist() == [[3, 7, 16, 3], [2, 6, 4, 1], [2, 2, 0, 4]]


def test_padded_rows_have_no_keys_and_go_nowhere():
    step = StepStaging(make_spec(), full_table=False, tile_queries=4).send(DECODES, 2)
    assert step.num_rows == 4
    assert step.context_lens.tolist() == [22, 34, 0, 0]
    assert step.kv_slots.tolist() == [37, 81, -1, -1]
    assert len(step.block_table) == 4
    assert len(step.query_tiles) == len(step.chunk_starts) == len(step.chunk_contexts) == 0


def test_a_full_table_has_room_for_the_longest_sequence_in_every_row():
    spec = make_spec(max_model_len=100)
    for batch in (MIXED, DECODES):
        table = StepStaging(spec, full_table=True).send(batch, 0).block_table
        assert table.shape[1] == 7
        assert table[1].tolist() == [3, 4, 5, 0, 0, 0, 0]


def test_decodes_are_pieces_of_one_token_and_padded_rows_of_none():
    tiles = cut(np.array([22, 34, 0], np.int32), (), 3, 4)
    assert tiles.tolist() == [[1, 1, 33, 1], [0, 0, 21, 1], [2, 2, 0, 0]]


@pytest.mark.parametrize("length", [1, 7, 8, 9, 100])
def test_pieces_cover_each_chunk_once(length):
    chunks = (ChunkSpan(3, length, 5, np.array([0])), ChunkSpan(3 + length, 2, 0, np.array([1])))
    tiles = cut(np.zeros(0, np.int32), chunks, 0, 8)
    covered = sorted((row, token + i, position + i) for row, token, position, count in tiles for i in range(count))
    assert covered == [(0, 3 + i, 5 + i) for i in range(length)] + [(1, 3 + length + i, i) for i in range(2)]
    assert tiles[:, 3].max() <= 8
    assert (np.diff(tiles[:, 2]) <= 0).all()


def test_more_than_the_capacity_is_refused():
    with pytest.raises(ValueError, match="a step of 4 sequences and 10 tokens is more than the capacity, 3 and 256"):
        StepStaging(make_spec(max_num_seqs=3), full_table=False).send(MIXED, 0)
    with pytest.raises(ValueError, match="a step of 4 sequences and 10 tokens is more than the capacity, 8 and 9"):
        StepStaging(make_spec(max_num_batched_tokens=9), full_table=False).send(MIXED, 0)
    with pytest.raises(ValueError, match="only a step without chunks can be padded"):
        StepStaging(make_spec(), full_table=False).send(MIXED, 1)


def test_the_largest_step_fits():
    spec = make_spec(max_num_seqs=8, max_num_batched_tokens=64, max_model_len=64)
    blocks = np.arange(4)
    chunks = tuple(ChunkSpan(first, 8, 0, blocks) for first in range(0, 64, 8))
    nobody = np.zeros(0, np.int64)
    batch = AttentionBatch(np.zeros(64, np.int64), nobody[:, None], nobody, chunks)
    for full_table in (False, True):
        step = StepStaging(spec, full_table=full_table, tile_queries=1, decode_tiles=True).send(batch, 0)
        assert len(step.query_tiles) == 64
