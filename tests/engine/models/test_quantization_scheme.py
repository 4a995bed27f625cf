"""Quantized checkpoints that are read, and the refusal of others."""

import json

import pytest

from inflight_engine.execution.load import load_config
from inflight_engine.models.checkpoints.config import UnsupportedModelError
from inflight_engine.models.checkpoints.quantization_scheme import (
    SUPPORTED,
    Fp8Scheme,
    PackedScheme,
    UnsupportedQuantizationError,
    read_scheme,
)
from inflight_engine.models.checkpoints.source import ModelFiles
from tests.engine.execution.tiny_model import make_model

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}
FLOAT8 = {"num_bits": 8, "type": "float", "strategy": "channel"}


def compressed(*weights, activations=None, **options):
    groups = {f"group_{i}": {"weights": each, "input_activations": activations} for i, each in enumerate(weights)}
    return {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups} | options


@pytest.mark.parametrize(
    ("quantization", "scheme"),
    [
        (AWQ, PackedScheme("awq", 4, 128)),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "version": "GEMM"}, PackedScheme("awq", 4, 64)),
        (GPTQ, PackedScheme("gptq", 4, 128, zero_offset=1)),
        (GPTQ | {"bits": 8, "group_size": -1}, PackedScheme("gptq", 8, None, zero_offset=1)),
        (GPTQ | {"checkpoint_format": "gptq_v2"}, PackedScheme("gptq", 4, 128)),
        (GPTQ | {"dynamic": {"-:.*lm_head": {}}}, PackedScheme("gptq", 4, 128, zero_offset=1)),
        (compressed(INT4), PackedScheme("pack-quantized", 4, 128, has_zeros=False)),
        (compressed(INT4 | {"symmetric": False}, INT4 | {"symmetric": False}), PackedScheme("pack-quantized", 4, 128)),
        (
            compressed(INT4 | {"strategy": "channel", "group_size": None}),
            PackedScheme("pack-quantized", 4, None, has_zeros=False),
        ),
        (compressed(FLOAT8), Fp8Scheme("_scale", None, rounds_activations=False)),
        (compressed(FLOAT8, activations={"num_bits": 8}), Fp8Scheme("_scale", None, rounds_activations=True)),
        (
            {"quant_method": "fp8", "weight_block_size": [128, 128]},
            Fp8Scheme("_scale_inv", (128, 128), rounds_activations=True),
        ),
        ({"quant_method": "fbgemm_fp8"}, Fp8Scheme("_scale", None, rounds_activations=True)),
    ],
)
def test_a_supported_checkpoint_says_how_it_is_stored(quantization, scheme):
    assert read_scheme(quantization) == scheme


@pytest.mark.parametrize(
    ("quantization", "sentence"),
    [
        ({"quant_method": "bitsandbytes"}, "by bitsandbytes are not supported: the engine cannot read this format"),
        (AWQ | {"version": "gemv"}, "by awq are not supported: the version is gemv"),
        (AWQ | {"backend": "llm-awq"}, "the version is llm-awq"),
        (AWQ | {"bits": 3}, "by awq are not supported: 3-bit weights"),
        (AWQ | {"zero_point": False}, "the checkpoint has no zero points"),
        (AWQ | {"group_size": None}, "the group size is None"),
        (GPTQ | {"bits": 2}, "by gptq are not supported: 2-bit weights"),
        (GPTQ | {"bits": 3}, "3-bit weights"),
        (GPTQ | {"group_size": 0}, "the group size is 0"),
        (GPTQ | {"checkpoint_format": "marlin"}, "the format is marlin"),
        (GPTQ | {"is_marlin_format": True}, "the format is marlin"),
        (GPTQ | {"dynamic": {"+:.*down_proj": {"bits": 8}}}, r"modules differ in their settings \(dynamic\)"),
        (GPTQ | {"pack_dtype": "int8"}, "packed into int8"),
        (compressed(INT4 | {"num_bits": 3}), "compressed-tensors to 3-bit int are not supported"),
        (compressed(INT4, format="marlin-24"), "to 4-bit int are not supported: the format is marlin-24"),
        (compressed(INT4, activations={"num_bits": 8}), "activations are to be quantized too"),
        (compressed(INT4, INT4 | {"group_size": 32}), r"modules differ in their settings \(config_groups\)"),
        (compressed(INT4, FLOAT8), "to 4-bit int and 8-bit float are not supported: modules differ in their settings"),
        (compressed(INT4 | {"strategy": "tensor"}), "the strategy is tensor"),
        (compressed(FLOAT8, sparsity_config={"format": "sparse-24-bitmask"}), "sparse"),
        (compressed(INT4, transform_config={"config_groups": {"R3": {}}}), "transform_config"),
    ],
)
def test_any_other_is_refused_with_what_to_give_instead(quantization, sentence):
    with pytest.raises(UnsupportedQuantizationError, match=sentence) as refused:
        read_scheme(quantization)
    assert str(refused.value).endswith(f"give the unquantized model, or one that is quantized by {SUPPORTED}")


def test_a_native_model_is_not_tried_through_transformers_which_would_hide_the_reason(tmp_path):
    make_model(tmp_path, "llama-mqa")
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"quantization_config": AWQ | {"bits": 3}}))
    with pytest.raises(UnsupportedModelError, match="quantized by awq are not supported: 3-bit weights"):
        load_config(ModelFiles("test", tmp_path))
