"""Checkpoints in float8 give the numbers that their scales say, whole and in parts."""

import json
import logging

import pytest
import torch
from safetensors.torch import load_file, save_file

from inflight_engine.models.checkpoints.config import load_model_config
from inflight_engine.models.checkpoints.fp8_weights import Fp8Weights
from inflight_engine.models.checkpoints.quantization_scheme import Fp8Scheme
from inflight_engine.models.checkpoints.source import ModelFiles
from inflight_engine.models.checkpoints.weights import open_weights
from inflight_engine.models.matrices import Fp8Matrix
from tests.engine.execution.tiny_model import make_model

PROJECTION = "model.layers.0.mlp.down_proj.weight"


def by_tensor(weight):
    return weight.abs().max().reshape(1) / 448


def by_row(weight):
    return weight.abs().amax(1, keepdim=True) / 448


def by_block(weight, size=32):
    rows, columns = weight.shape
    padded = torch.zeros(-(-rows // size) * size, -(-columns // size) * size)
    padded[:rows, :columns] = weight.abs()
    return padded.view(-(-rows // size), size, -(-columns // size), size).amax((1, 3)) / 448


def spread(scale, shape, size=32):
    if scale.numel() in (1, shape[0]):
        return scale.reshape(-1, 1).expand(shape)
    return torch.stack([torch.stack([scale[i // size, j // size] for j in range(shape[1])]) for i in range(shape[0])])


GROUP = {"weights": {"num_bits": 8, "type": "float"}}
ROUNDING = GROUP | {"input_activations": {"num_bits": 8, "type": "float", "dynamic": True}}
KINDS = {
    "compressed-tensors by tensor": (by_tensor, "_scale", {"config_groups": {"group_0": ROUNDING}}),
    "compressed-tensors by row": (by_row, "_scale", {"config_groups": {"group_0": GROUP}}),
    "fbgemm_fp8 by row": (by_row, "_scale", {}),
    "fp8 by tensor": (by_tensor, "_scale", {}),
    "fp8 by block": (by_block, "_scale_inv", {"weight_block_size": [32, 32]}),
}


@pytest.fixture(params=KINDS)
def checkpoint(request, tmp_path):
    """(weights as the engine reads them, what they should be)."""
    scale_of, suffix, options = KINDS[request.param]
    make_model(tmp_path, "llama-wide-heads")
    file = tmp_path / "model.safetensors"
    tensors, expected = load_file(file), {}
    for name, tensor in list(tensors.items()):
        expected[name] = tensor
        if name.endswith("_proj.weight"):
            scale = scale_of(tensor)
            spread_scale = spread(scale, tensor.shape)
            tensors[name] = (tensor / spread_scale).clamp(-448, 448).to(torch.float8_e4m3fn)
            tensors[name + suffix] = scale
            expected[name] = tensors[name].float() * spread_scale
    save_file(tensors, file, {"format": "pt"})
    config = tmp_path / "config.json"
    quantization = {"quant_method": request.param.split()[0], **options}
    config.write_text(json.dumps(json.loads(config.read_text()) | {"quantization_config": quantization}))
    files = ModelFiles("test", tmp_path)
    return open_weights(files, load_model_config(files)), expected


def test_every_tensor_is_what_its_scale_makes_of_it(checkpoint):
    weights, expected = checkpoint
    for name, tensor in expected.items():
        assert weights.shape(name) == tuple(tensor.shape)
        assert torch.equal(weights.get(name), tensor)


@pytest.mark.parametrize("dim", [0, 1])
def test_a_part_is_cut_from_the_whole(checkpoint, dim):
    weights, expected = checkpoint
    whole = expected[PROJECTION]
    start, end = 5, whole.shape[dim] - 3
    assert torch.equal(weights.get(PROJECTION, dim, range(start, end)), whole.narrow(dim, start, end - start))


@pytest.mark.parametrize("dim", [0, 1])
def test_matrices_stay_float8_where_scales_are_of_rows_and_activations_were_rounded(checkpoint, request, dim):
    weights, expected = checkpoint
    kind = request.node.callspec.params["checkpoint"]
    start, end = 16, expected[PROJECTION].shape[dim] - 16
    matrix = weights.matrix(PROJECTION, dim, range(start, end))
    is_kept = kind not in ("compressed-tensors by row", "fp8 by block")
    assert isinstance(matrix, Fp8Matrix) == is_kept
    dequantized = matrix.dequantized(torch.float32) if is_kept else matrix
    assert torch.equal(dequantized, expected[PROJECTION].narrow(dim, start, end - start))


@pytest.mark.parametrize(
    ("scheme", "reason"),
    [
        (Fp8Scheme("_scale_inv", (128, 128), rounds_activations=True), "each block of them has a scale"),
        (Fp8Scheme("_scale", None, rounds_activations=False), "for activations that are not quantized"),
        (Fp8Scheme("_scale", None, rounds_activations=True), None),
    ],
)
def test_the_log_says_why_a_checkpoint_is_dequantized(scheme, reason, caplog):
    with caplog.at_level(logging.INFO):
        Fp8Weights(None, scheme)
    expected = [] if reason is None else [reason]
    assert len(caplog.messages) == len(expected)
    assert all(each in message for each, message in zip(expected, caplog.messages, strict=True))


def test_a_scale_that_does_not_fit_is_named(checkpoint):
    weights, _ = checkpoint
    weights._stored = _Stored(weights._stored)
    with pytest.raises(ValueError, match=r"weight_scale.* has the shape \[3, 3\], which does not fit"):
        weights.get(PROJECTION)


class _Stored:
    """Scales of a shape that fits nothing."""

    def __init__(self, stored):
        self._stored = stored
        self.shape = stored.shape

    def get(self, name, *cut):
        return torch.ones(3, 3) if "_scale" in name else self._stored.get(name, *cut)
