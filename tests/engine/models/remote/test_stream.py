"""Tensors that are read ahead: whole, in bounded memory, in whatever order they are taken."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight_engine.models.reading_progress import READING
from inflight_engine.models.remote import stream as streams
from inflight_engine.models.remote.stores import RemoteFile
from inflight_engine.models.remote.stream import Stream, cut_pieces, read_range
from inflight_engine.models.remote.tensors import StoredTensor, reading_order


class MemoryStore:
    """Files of numbers by name. `at_most`: highest number of bytes that were read and not taken."""

    def __init__(self, sizes):
        rng = np.random.default_rng(0)
        self.files = {name: rng.integers(0, 256, size, np.uint8) for name, size in sizes.items()}
        self.num_read = self.num_taken = self.at_most = 0
        self.error_at = None
        self._lock = threading.Lock()

    def read(self, file, start, end):
        with self._lock:
            self.num_read += end - start
            self.at_most = max(self.at_most, self.num_read - self.num_taken)
        if self.error_at is not None and start <= self.error_at < end:
            raise ValueError("refused")
        return memoryview(self.files[file.name][start:end].tobytes())

    def taken(self, tensor):
        with self._lock:
            self.num_taken += tensor.end - tensor.start


def tensors_in(files):
    """`files`: sizes of tensors by the file's name, in their order there."""
    found = []
    for name, sizes in files.items():
        file, start = RemoteFile(name, sum(sizes), None), 0
        for size in sizes:
            found.append(StoredTensor(f"{name}.{len(found)}", file, "U8", (size,), start, start + size))
            start += size
    return found


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(streams, "PIECE", 10)


SIZES = st.lists(st.integers(0, 45), min_size=1, max_size=12)


@settings(max_examples=60)
@given(files=st.lists(SIZES, min_size=1, max_size=3), window=st.integers(1, 200), data=st.data())
def test_every_tensor_arrives_whole_in_any_order(files, window, data):
    tensors = tensors_in({f"f{at}": sizes for at, sizes in enumerate(files)})
    store = MemoryStore({tensor.file.name: tensor.file.size for tensor in tensors})
    expected, taken_in = data.draw(st.permutations(tensors)), data.draw(st.permutations(tensors))
    stream = Stream(store, expected, window)
    for tensor in taken_in:
        taken = stream.take(tensor)
        assert taken.tobytes() == store.files[tensor.file.name][tensor.start : tensor.end].tobytes()
        assert stream.take(tensor) is None
    assert store.num_read == sum(tensor.file.size for tensor in {t.file.name: t for t in tensors}.values())
    read, total, _ = READING.now
    assert read == total == sum(tensor.end - tensor.start for tensor in tensors)


@settings(max_examples=40)
@given(sizes=SIZES, window=st.integers(10, 100))
def test_what_waits_is_bounded_by_the_window_and_one_tensor(sizes, window):
    tensors = tensors_in({"f": sizes})
    store = MemoryStore({"f": sum(sizes)})
    stream = Stream(store, tensors, window)
    for tensor in tensors:
        stream.take(tensor)
        store.taken(tensor)
    # A piece of the tensor that is taken has bytes of the next one too.
    assert store.at_most <= window + max(sizes) + streams.PIECE


@given(sizes=SIZES)
def test_pieces_are_the_bytes_of_the_tensors_once(sizes):
    tensors = tensors_in({"f": sizes})
    pieces = cut_pieces(tensors)
    assert [byte for piece in pieces for byte in range(piece.start, piece.end)] == list(range(sum(sizes)))
    assert all(piece.end - piece.start <= streams.PIECE for piece in pieces)
    for tensor in tensors:
        covered = sum(
            min(tensor.end, piece.end) - max(tensor.start, piece.start) for piece in pieces if tensor in piece.tensors
        )
        assert covered == tensor.end - tensor.start


def test_a_read_that_fails_reaches_the_model_that_waits():
    tensors = tensors_in({"f": [10, 10, 10]})
    store = MemoryStore({"f": 30})
    store.error_at = 25
    stream = Stream(store, tensors)
    with pytest.raises(ValueError, match="refused"):
        stream.take(tensors[2])


def test_a_stream_that_is_closed_reads_no_more():
    tensors = tensors_in({"f": [10] * 100})
    store = MemoryStore({"f": 1000})
    stream = Stream(store, tensors, window=20)
    stream.take(tensors[0])
    stream.close()
    for thread in threading.enumerate():
        if thread.name.startswith("weights-"):
            thread.join(10)
            assert not thread.is_alive()
    assert store.num_read <= 40


def test_a_range_is_read_in_pieces():
    store = MemoryStore({"f": 95})
    assert read_range(store, RemoteFile("f", 95, None), 3, 91).tobytes() == store.files["f"][3:91].tobytes()


NAMES = """model.embed_tokens.weight model.layers.0.input_layernorm.weight model.layers.0.self_attn.q_proj.weight
    model.layers.0.mlp.down_proj.weight model.layers.2.input_layernorm.weight model.layers.10.input_layernorm.weight
    model.norm.weight lm_head.weight""".split()


def test_tensors_come_as_a_decoder_reads_them_wherever_they_lie():
    file = RemoteFile("f", 100, None)
    tensors = [
        StoredTensor(name, file, "U8", (10,), 10 * at, 10 * at + 10)
        for at, name in enumerate(sorted(NAMES, reverse=True))
    ]
    assert [tensor.name for tensor in reading_order(tensors, 0)] == NAMES


def test_a_small_layer_is_read_as_it_lies_in_the_file():
    tensors = tensors_in({"f": [10, 10]})
    named = [
        StoredTensor(f"model.layers.0.{name}.weight", each.file, each.dtype, each.shape, each.start, each.end)
        for name, each in zip(["down_proj", "input_layernorm"], tensors, strict=True)
    ]
    assert reading_order(named, 20) == named
    assert reading_order(named, 19) == named[::-1]
