"""Checkpoints of AWQ, GPTQ and compressed-tensors mean what their scales and zero points say, whole and in parts."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from inflight_engine.models.checkpoints.config import load_model_config
from inflight_engine.models.checkpoints.source import ModelFiles
from inflight_engine.models.checkpoints.weights import open_weights
from tests.engine.execution.tiny_model import make_model
from tests.engine.models.packed_checkpoint import KINDS, awq, gptq, to_words, write_checkpoint

SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_hidden_layers": 1}
PROJECTION = "model.layers.0.mlp.down_proj.weight"


def open_folder(folder):
    files = ModelFiles("test", folder)
    return open_weights(files, load_model_config(files))


@pytest.fixture(scope="module", params=KINDS)
def checkpoint(request, tmp_path_factory):
    """(weights as the engine reads them, what they should be)."""
    folder = tmp_path_factory.mktemp("packed")
    make_model(folder, "llama-gqa-untied", SIZES)
    meant = write_checkpoint(folder, KINDS[request.param])
    return open_folder(folder), meant


def test_every_tensor_is_what_its_integers_scales_and_zeros_make_of_it(checkpoint):
    weights, meant = checkpoint
    for name, tensor in meant.items():
        assert weights.shape(name) == tuple(tensor.shape)
        assert torch.equal(weights.get(name), tensor)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("quarter", [0, 3])
def test_a_part_is_cut_from_the_whole(checkpoint, dim, quarter):
    weights, meant = checkpoint
    size = meant[PROJECTION].shape[dim] // 4
    expected = meant[PROJECTION].narrow(dim, quarter * size, size)
    assert torch.equal(weights.get(PROJECTION, dim, range(quarter * size, (quarter + 1) * size)), expected)


@pytest.mark.parametrize("dim", [0, 1])
def test_a_part_may_begin_and_end_inside_a_word_and_a_group(checkpoint, dim):
    weights, meant = checkpoint
    end = meant[PROJECTION].shape[dim] - 11
    assert torch.equal(weights.get(PROJECTION, dim, range(13, end)), meant[PROJECTION].narrow(dim, 13, end - 13))


def test_awqs_first_word_holds_the_outputs_in_its_own_order(tmp_path):
    """Expected by hand: in the word 0x76543210 the halves from the lowest are of the outputs 0, 2, 4, 6, 1, 3, 5, 7."""
    make_model(tmp_path, "llama-gqa-untied", SIZES)
    write_checkpoint(tmp_path, awq())
    file = tmp_path / "model.safetensors"
    tensors, module = load_file(file), PROJECTION.removesuffix(".weight")
    tensors[f"{module}.qweight"][0, 0] = 0x76543210
    tensors[f"{module}.qzeros"][0, 0] = 0
    tensors[f"{module}.scales"][0, :8] = 1
    save_file(tensors, file, {"format": "pt"})
    assert open_folder(tmp_path).get(PROJECTION)[:8, 0].tolist() == [0, 4, 1, 5, 2, 6, 3, 7]


def test_gptqs_first_format_stores_zero_points_less_one(tmp_path):
    make_model(tmp_path, "llama-gqa-untied", SIZES)
    meant = write_checkpoint(tmp_path, gptq())
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"]["checkpoint_format"] = "gptq_v2"
    (tmp_path / "config.json").write_text(json.dumps(config))
    scales = load_file(tmp_path / "model.safetensors")[PROJECTION.replace("weight", "scales")].t().float()
    difference = open_folder(tmp_path).get(PROJECTION) - meant[PROJECTION]
    torch.testing.assert_close(difference, scales.repeat_interleave(32, 1))


@pytest.mark.parametrize(
    ("tensor", "shape", "sentence"),
    [
        ("scales", (5, 64), r"down_proj.scales has the shape \[5, 64\], which does not fit 128 inputs in groups of 32"),
        ("g_idx", (64,), r"down_proj.g_idx must name one of 4 groups for each of 128 inputs"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(tmp_path, tensor, shape, sentence):
    make_model(tmp_path, "llama-gqa-untied", SIZES)
    write_checkpoint(tmp_path, gptq())
    file, module = tmp_path / "model.safetensors", PROJECTION.removesuffix(".weight")
    tensors = load_file(file)
    if tensor == "scales":  # with g_idx, groups may be as many as they like
        del tensors[f"{module}.g_idx"]
    tensors[f"{module}.{tensor}"] = torch.ones(shape).to(tensors.get(f"{module}.{tensor}", torch.ones(1)).dtype)
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(ValueError, match=sentence):
        open_folder(tmp_path).get(PROJECTION)


def test_words_hold_their_first_integer_in_their_lowest_bits():
    import numpy as np

    assert to_words(np.arange(8)[None], 4).tolist() == [[0x76543210]]
    assert to_words(np.arange(4)[None], 8).tolist() == [[0x03020100]]
