"""Scales of the KV cache are found under every name that producers give them."""

import json

import pytest
import torch
from safetensors.torch import save_file

from inflight_engine.models.checkpoints.kv_scales import load_kv_scales
from inflight_engine.models.checkpoints.source import ModelFiles

FLOAT8 = {"type": "float", "num_bits": 8}


def load(folder, tensors, scheme=None, layers=2, heads=3):
    """Loads the scales of attention modules. `tensors`: by their names within a module, with a number of a layer for
    N."""
    folder.joinpath("config.json").write_text(json.dumps({"quantization_config": {"kv_cache_scheme": scheme}}))
    save_file({f"model.layers.{name}": value for name, value in tensors.items()}, folder / "model.safetensors")
    return load_kv_scales(ModelFiles("here", folder), layers, heads)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("k_scale", "v_scale"),
        ("attn.k_scale", "attn.v_scale"),
        ("k_proj.k_scale", "v_proj.v_scale"),
        ("qkv_proj.k_scale", "qkv_proj.v_scale"),
        ("k_proj.output_scale", "v_proj.output_scale"),
    ],
)
def test_one_number_stands_for_all_heads_of_a_layer(tmp_path, key, value):
    tensors = {
        f"{layer}.self_attn.{name}": torch.tensor(number + layer, dtype=torch.bfloat16)
        for layer in range(2)
        for name, number in ((key, 0.5), (value, 0.125))
    }
    scales = load(tmp_path, tensors, FLOAT8)
    assert scales.dtype == torch.float32
    assert scales.tolist() == [[[0.5] * 3, [0.125] * 3], [[1.5] * 3, [1.125] * 3]]


def test_each_head_may_have_its_own(tmp_path):
    keys, values = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0, 6.0])
    tensors = {"0.self_attn.k_scale": keys[:, None, None].clone(), "0.self_attn.v_scale": values}
    assert load(tmp_path, tensors, layers=1).tolist() == [[[1, 2, 3], [4, 5, 6]]]


def test_one_scale_may_stand_for_keys_and_values(tmp_path):
    assert load(tmp_path, {"0.self_attn.kv_scale": torch.tensor([0.25])}, layers=1).tolist() == [[[0.25] * 3] * 2]


@pytest.mark.parametrize("scheme", [None, FLOAT8])
def test_a_checkpoint_without_scales_has_none(tmp_path, scheme):
    assert load(tmp_path, {"0.self_attn.k_proj.weight": torch.ones(1)}, scheme) is None


def test_scales_of_integers_are_not_those_of_float8(tmp_path):
    tensors = {"0.self_attn.k_scale": torch.ones(1), "0.self_attn.v_scale": torch.ones(1)}
    assert load(tmp_path, tensors, {"type": "int", "num_bits": 8}, layers=1) is None


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (None, r"none for layer 0 \(looked for model\.layers\.0\.self_attn\.v_scale\); set kv_cache_dtype to auto"),
        ([1.0, 2.0], r"self_attn\.v_scale has 2 numbers, but .* one for each of 3 key/value heads"),
        ([0.0], r"self_attn\.v_scale holds \[0\.0\], but a scale of the KV cache is a positive number"),
        ([float("inf")], r"self_attn\.v_scale holds \[inf\]"),
    ],
)
def test_scales_that_cannot_be_used_are_named(tmp_path, values, says):
    tensors = {"0.self_attn.k_scale": torch.ones(1)}
    if values is not None:
        tensors["0.self_attn.v_scale"] = torch.tensor(values)
    with pytest.raises(ValueError, match=says):
        load(tmp_path, tensors, layers=1)
