"""Writes checkpoints in the formats of AWQ, GPTQ and compressed-tensors, by the layouts that their makers publish:

- casper-hansen/AutoAWQ, awq/modules/linear/gemm.py, `WQLinear_GEMM.from_linear`;
- AutoGPTQ/AutoGPTQ, auto_gptq/nn_modules/qlinear/qlinear_cuda_old.py, `QuantLinear.pack`;
- vllm-project/compressed-tensors, compressors/pack_quantized: `pack_to_int32` and `PackedQuantizationCompressor`.
"""

import json
from dataclasses import dataclass

import numpy as np
import torch
from safetensors.torch import load_file, save_file


@dataclass(frozen=True)
class Kind:
    """`config`: quantization_config. `group_size`: None: all inputs are one group."""

    config: dict
    bits: int = 4
    group_size: int | None = 32
    act_order: bool = False
    symmetric: bool = False


def awq(group_size=32):
    config = {"quant_method": "awq", "bits": 4, "group_size": group_size, "version": "gemm", "zero_point": True}
    return Kind(config, group_size=None if group_size == -1 else group_size)


def gptq(bits=4, group_size=32, *, act_order=False, symmetric=False, packing="gptq"):
    config = {"quant_method": "gptq", "bits": bits, "group_size": group_size, "checkpoint_format": packing}
    config |= {"desc_act": act_order, "sym": symmetric}
    return Kind(config, bits, None if group_size == -1 else group_size, act_order, symmetric)


def pack_quantized(bits=4, group_size=32, *, act_order=False, symmetric=True):
    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric, "group_size": group_size}
    weights |= {"strategy": "group" if group_size else "channel", "actorder": "group" if act_order else None}
    groups = {"group_0": {"weights": weights, "input_activations": None, "targets": ["Linear"]}}
    config = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups}
    return Kind(config, bits, group_size, act_order, symmetric)


KINDS = {
    "awq": awq(),
    "awq, one group": awq(-1),
    "gptq": gptq(),
    "gptq, symmetric": gptq(symmetric=True),
    "gptq, act-order": gptq(act_order=True),
    "gptq, 8 bits": gptq(8),
    "gptq, one group": gptq(group_size=-1),
    "gptq_v2": gptq(packing="gptq_v2"),
    "pack-quantized": pack_quantized(),
    "pack-quantized, asymmetric": pack_quantized(symmetric=False),
    "pack-quantized, 8 bits": pack_quantized(8, symmetric=False),
    "pack-quantized, channels": pack_quantized(group_size=None),
    "pack-quantized, act-order": pack_quantized(act_order=True),
}


def write_checkpoint(folder, kind):
    """Quantize a saved model's projections at random, in place.

    Returns:
        Name -> tensor, float32 where it was quantized: what the checkpoint means.
    """
    rng = np.random.default_rng(7)
    file, stored, meant = folder / "model.safetensors", {}, {}
    order = {}
    for name, tensor in load_file(file).items():
        meant[name] = tensor
        if not name.endswith("_proj.weight"):
            stored[name] = tensor
            continue
        outputs, inputs = tensor.shape
        size = kind.group_size or inputs
        groups = np.arange(inputs) // size
        if kind.act_order:  # all projections of the same inputs have the same order
            groups = order.setdefault(inputs, rng.permutation(groups))
        integers = rng.integers(0, 2**kind.bits, (outputs, inputs))
        scales = rng.uniform(0.5, 1.5, (outputs, inputs // size)) * 16 * float(tensor.std()) / 2**kind.bits / 5
        scales = torch.tensor(scales, dtype=torch.float16)
        least = 1 if kind.config.get("checkpoint_format") == "gptq" else 0
        zeros = rng.integers(least, 2**kind.bits + least, scales.shape)
        if kind.symmetric:
            zeros = np.full(scales.shape, 2 ** (kind.bits - 1))
        meant[name] = torch.tensor(integers - zeros[:, groups], dtype=torch.float32) * scales.float()[:, groups]
        packed = _PACKERS[kind.config["quant_method"]](kind, integers, scales, zeros, groups)
        module = name.removesuffix(".weight")
        stored |= {f"{module}.{part}": value.contiguous() for part, value in packed.items()}
    save_file(stored, file, {"format": "pt"})
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"quantization_config": kind.config}))
    return meant


def to_words(values, bits, order=None):
    """int32 [n, m * bits / 32] of integers [n, m]; `order`: which of a word's integers comes first, second ..."""
    per_word = 32 // bits
    order = range(per_word) if order is None else order
    words = np.zeros((len(values), values.shape[1] // per_word), np.uint32)
    for place, which in enumerate(order):
        words |= values[:, which::per_word].astype(np.uint32) << np.uint32(bits * place)
    return torch.from_numpy(words.view(np.int32))


def _pack_awq(kind, integers, scales, zeros, groups):
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    return {"qweight": to_words(integers.T, 4, order), "qzeros": to_words(zeros.T, 4, order), "scales": scales.t()}


def _pack_gptq(kind, integers, scales, zeros, groups):
    stored_zeros = zeros - 1 if kind.config["checkpoint_format"] == "gptq" else zeros
    return {
        "qweight": to_words(integers, kind.bits).t(),
        "qzeros": to_words(stored_zeros.T, kind.bits),
        "scales": scales.t(),
        "g_idx": torch.tensor(groups, dtype=torch.int32),
    }


def _pack_compressed_tensors(kind, integers, scales, zeros, groups):
    # Signed integers and zero points are shifted by half the range before they are packed: `integers` and `zeros` are.
    packed = {
        "weight_packed": to_words(integers, kind.bits),
        "weight_scale": scales,
        "weight_shape": torch.tensor(integers.shape),
    }
    if not kind.symmetric:
        packed["weight_zero_point"] = to_words(zeros.T, kind.bits).t()
    if kind.act_order:
        packed["weight_g_idx"] = torch.tensor(groups, dtype=torch.int32)
    return packed


_PACKERS = {"awq": _pack_awq, "gptq": _pack_gptq, "compressed-tensors": _pack_compressed_tensors}
