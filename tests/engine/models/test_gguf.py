"""The GGUF reader against the gguf package: its writer made the files, its reader says what is in them."""

import gguf
import numpy as np
import pytest

from inflight_engine.models.config import UnsupportedModelError, config_from_gguf
from inflight_engine.models.gguf import GGUFError, TensorInfo, read_gguf
from inflight_engine.models.source import resolve
from inflight_engine.native.dequantize import can_dequantize, dequantize
from tests.engine.native.variants import VARIANTS, kernels

WORDS = ["eins", "zwei", "größer"]
QUANTIZED = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("a.uint", 7)
    writer.add_float64("a.double", 0.25)
    writer.add_bool("a.bool", True)
    writer.add_int64("a.negative", -5)
    writer.add_array("a.words", WORDS)
    writer.add_array("a.numbers", [1, -2, 3])
    rng = np.random.default_rng(0)
    tensors = {f"t{rows}": rng.standard_normal((rows, 64)).astype(np.float32) for rows in (1, 3, 64)}
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
        quantized = gguf.quants.quantize(tensor, gguf.GGMLQuantizationType.Q8_0)
        writer.add_tensor(f"{name}.q8", quantized, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        writer.add_tensor(f"{name}.f16", tensor.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path, tensors


def test_metadata_of_every_kind(small):
    meta = read_gguf(small[0]).metadata
    assert (meta["a.uint"], meta["a.double"], meta["a.bool"], meta["a.negative"]) == (7, 0.25, True, -5)
    words = meta["a.words"]
    assert (list(words), len(words), words[1], words[-2:]) == (WORDS, 3, "zwei", WORDS[1:])
    assert meta["a.numbers"] == [1, -2, 3]


def test_tensors_come_back_as_they_were_written(small):
    path, tensors = small
    file = read_gguf(path)
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(file.read_tensor(name), tensor)
        np.testing.assert_array_equal(file.read_tensor(f"{name}.f16"), tensor.astype(np.float16).astype(np.float32))
        np.testing.assert_allclose(file.read_tensor(f"{name}.q8"), tensor, atol=0.02)
        assert file.read_tensor(name).dtype == np.float32


@pytest.mark.slow
def test_the_builtin_models_tensors_equal_the_gguf_packages(small):
    path = resolve("builtin://smollm2").gguf
    ours, theirs = read_gguf(path), gguf.GGUFReader(path)
    for tensor in [t for t in theirs.tensors if t.name.startswith(("blk.7.", "token_embd", "output_norm"))]:
        expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        np.testing.assert_array_equal(ours.read_tensor(tensor.name), expected)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", QUANTIZED)
def test_the_kernels_dequantize_as_the_gguf_package_does_to_the_last_bit(kind, variant):
    qtype = gguf.GGMLQuantizationType[kind]
    block_values, block_bytes = gguf.GGML_QUANT_SIZES[qtype]
    raw = np.random.default_rng(1).integers(0, 256, (7, block_bytes), np.uint8)
    # The scales are float16; random bits are now and then an infinity, of which both make the same.
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(raw, qtype)
    with kernels(variant):
        assert can_dequantize(qtype)
        np.testing.assert_array_equal(dequantize(raw, qtype, (7, block_values)).numpy(), expected)


def test_a_type_without_a_kernel_is_the_packages():
    assert not can_dequantize(gguf.GGMLQuantizationType.Q2_K)
    assert not can_dequantize(10_000)


def test_a_tensor_of_an_unknown_type_is_refused(small):
    file = read_gguf(small[0])
    file.tensors["t3"] = TensorInfo((3, 64), 10_000, 0)
    with pytest.raises(GGUFError, match="tensor t3 has the unknown type 10000"):
        file.raw("t3")


def test_another_file_is_refused(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"PK\x03\x04 a zip file")
    with pytest.raises(GGUFError, match="is not a GGUF file"):
        read_gguf(path)
    path.write_bytes(b"GGUF\x01\x00\x00\x00")
    with pytest.raises(GGUFError, match="is GGUF version 1"):
        read_gguf(path)


def test_another_architecture_is_refused(tmp_path):
    path = tmp_path / "other.gguf"
    writer = gguf.GGUFWriter(path, "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedModelError, match="GGUF architecture mamba is not supported; supported: llama"):
        config_from_gguf(read_gguf(path))
