"""Every small step has a shape that holds it, with bounded padding; and there are not too many of them."""

from hypothesis import given
from hypothesis import strategies as st

from inflight_engine.execution.step_shapes import chunk_shapes, decode_shapes, fitting_shape


@given(st.integers(1, 2000), st.data())
def test_every_batch_of_decodes_has_a_shape_with_little_padding(max_num_seqs, data):
    shapes = decode_shapes(max_num_seqs)
    assert list(shapes) == sorted(set(shapes))
    assert all(shape.decodes_only for shape in shapes)
    assert shapes[-1].num_tokens == max_num_seqs
    num_decodes = data.draw(st.integers(1, max_num_seqs))
    shape = fitting_shape(shapes, num_decodes, num_decodes, decodes_only=True)
    assert shape == min(each for each in shapes if each.num_tokens >= num_decodes)
    assert shape.num_tokens - num_decodes <= (7 if num_decodes <= 56 else 15 if num_decodes <= 256 else 31)


@given(st.integers(1, 600), st.integers(1, 9000), st.data())
def test_every_small_step_with_chunks_has_a_shape(max_num_seqs, max_num_batched_tokens, data):
    shapes = sorted(decode_shapes(max_num_seqs) + chunk_shapes(max_num_seqs, max_num_batched_tokens))
    num_tokens = data.draw(st.integers(1, min(max_num_batched_tokens, 512)))
    num_sequences = data.draw(st.integers(1, min(num_tokens, max_num_seqs)))
    shape = fitting_shape(shapes, num_tokens, num_sequences, decodes_only=False)
    if shape is None:
        assert num_sequences == num_tokens == min(max_num_batched_tokens, 512), "each chunk has one token"
        return
    assert not shape.decodes_only
    assert num_tokens <= shape.num_tokens <= min(max_num_batched_tokens, 512)
    assert num_sequences <= shape.num_sequences <= max_num_seqs
    if num_sequences < num_tokens:
        assert shape.num_tokens < max(17, 2 * num_tokens)
        assert shape.num_tokens - num_tokens < (16 if num_tokens < 17 else 64)


def test_larger_steps_have_none():
    shapes = decode_shapes(256) + chunk_shapes(256, 8192)
    assert fitting_shape(shapes, 513, 1, decodes_only=False) is None
    assert fitting_shape(shapes, 257, 257, decodes_only=True) is None


def test_the_numbers_that_are_documented():
    assert len(decode_shapes(256)) == 23
    assert len(chunk_shapes(256, 8192)) == 28
    assert [shape.num_tokens for shape in decode_shapes(1)] == [1]
    assert [shape.num_tokens for shape in decode_shapes(20)] == [1, 2, 4, 8, 16, 20]
    assert chunk_shapes(256, 8192)[:4] == ((16, 8), (16, 15), (32, 8), (32, 16))
    assert chunk_shapes(256, 8192)[-2:] == ((512, 64), (512, 256))
    assert chunk_shapes(1, 8192)[0] == (16, 1)
    assert chunk_shapes(4, 1) == ()
