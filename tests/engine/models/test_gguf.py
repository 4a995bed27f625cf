"""The GGUF reader against the gguf package: its writer made the files, its reader says what is in them."""

import gguf
import numpy as np
import pytest

from inflight_engine.models.checkpoints.config import load_model_config
from inflight_engine.models.checkpoints.gguf import GGUFError, TensorInfo, read_gguf
from inflight_engine.models.checkpoints.source import resolve
from inflight_engine.models.checkpoints.weights import open_weights
from inflight_engine.native.dequantize import dequantize
from tests.engine.native.variants import VARIANTS, kernels

WORDS = ["eins", "zwei", "größer"]


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
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path, tensors


def test_metadata_of_every_kind(small):
    meta = read_gguf(small[0]).metadata
    assert (meta["a.uint"], meta["a.double"], meta["a.bool"], meta["a.negative"]) == (7, 0.25, True, -5)
    assert meta["a.words"].decode() == WORDS
    assert meta["a.numbers"] == [1, -2, 3]


def test_tensors_come_back_as_they_were_written(small):
    path, tensors = small
    file = read_gguf(path)
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(file.raw(name).view(np.float32).reshape(tensor.shape), tensor)
        info = file.tensors[f"{name}.q8"]
        np.testing.assert_allclose(dequantize(file.raw(f"{name}.q8"), info.ggml_type, info.shape), tensor, atol=0.02)


@pytest.mark.slow
def test_the_builtin_models_weights_equal_the_gguf_packages():
    files = resolve("builtin://smollm2")
    theirs = {each.name: each for each in gguf.GGUFReader(files.gguf).tensors}
    weights = open_weights(files, load_model_config(files))
    for name, tensor in (
        ("model.embed_tokens.weight", "token_embd.weight"),
        ("model.norm.weight", "output_norm.weight"),
        *((f"model.layers.7.mlp.{each}_proj.weight", f"blk.7.ffn_{each}.weight") for each in ("up", "gate", "down")),
    ):
        expected = gguf.quants.dequantize(theirs[tensor].data, theirs[tensor].tensor_type)
        np.testing.assert_array_equal(weights.get(name).numpy(), expected)


@pytest.mark.parametrize("variant", [*VARIANTS, "off"])
@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0"])
def test_weights_are_dequantized_as_the_gguf_package_does_to_the_last_bit(kind, variant):
    qtype = gguf.GGMLQuantizationType[kind]
    block_values, block_bytes = gguf.GGML_QUANT_SIZES[qtype]
    raw = np.random.default_rng(1).integers(0, 256, (700, block_bytes), np.uint8)
    # The scales are float16; random bits are now and then an infinity, of which both make the same.
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(raw, qtype)
    with kernels(variant):
        np.testing.assert_array_equal(dequantize(raw.reshape(-1), qtype, (700, block_values)).numpy(), expected)


def test_a_tensor_of_a_type_that_the_builtin_model_does_not_have_is_refused(small):
    file = read_gguf(small[0])
    file.tensors["t3"] = TensorInfo((3, 64), 10_000, 0)
    with pytest.raises(GGUFError, match="tensor t3 has the type 10000, which is not supported"):
        file.raw("t3")


def test_another_file_is_refused(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"PK\x03\x04 a zip file")
    with pytest.raises(GGUFError, match="is not a GGUF file"):
        read_gguf(path)
    path.write_bytes(b"GGUF\x01\x00\x00\x00")
    with pytest.raises(GGUFError, match="is GGUF version 1"):
        read_gguf(path)
