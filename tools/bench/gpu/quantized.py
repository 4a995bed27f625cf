"""Quantized weights on a GPU: checkpoints of the reference in fewer bits, and products, right and how fast."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from inflight_engine.execution.load import kept_formats
from inflight_engine.models.linear import Fp8Linear, Int4Linear, KeptFormats, Linear, LinearMaker, PlainLinear
from inflight_engine.models.matrices import Fp8Matrix, GroupedMatrix, Matrix
from inflight_engine.models.ops import Ops, TorchOps

GROUP = 128
_SIDES = {"cuda": (14336, 4096), "cpu": (64, 256)}
"""Outputs and inputs: the MLP of Llama-3-8B."""
_ROWS = (1, 16, 64, 256, 2048)
_COPIES = 8
"""Copies of a layer, used one after the other: no cache holds them all, as in a model."""
_REPLAYS = 20
_LARGEST_ERROR = 0.01
"""Largest relative error of a row's result: bfloat16 rounds it by 0.002, sums in tensor cores add about as much."""
_Settings = dict[str, Any]


def fp8_matrix(weight: torch.Tensor) -> Fp8Matrix:
    """Converts a weight to fp8, with a scale for each row."""
    scales = weight.float().abs().amax(1) / 448
    return Fp8Matrix((weight.float() / scales[:, None]).to(torch.float8_e4m3fn), scales)


def int4_matrix(weight: torch.Tensor) -> GroupedMatrix:
    """Symmetric, in groups of `GROUP`."""
    outputs, inputs = weight.shape
    grouped = weight.float().view(outputs, -1, GROUP)
    scales = (grouped.abs().amax(2) / 7).bfloat16()
    integers = (grouped / scales.float()[:, :, None]).round().clamp(-8, 7) + 8
    zeros = torch.full(scales.shape, 8, dtype=torch.int16, device=weight.device)
    group_of = torch.arange(inputs, device=weight.device) // GROUP
    return GroupedMatrix(integers.to(torch.uint8).view(outputs, inputs), scales, zeros, group_of, 4)


def write_checkpoint(source: Path, folder: Path, bits: int) -> dict[str, torch.Tensor]:
    """A folder's model with its projections in float8 (`bits` 8) or in 4 bits, as compressed-tensors stores them.

    Returns:
        What its weights mean, by name, in bfloat16.
    """
    shutil.copytree(source, folder)
    stored, meant = {}, {}
    for name, tensor in load_file(source / "model.safetensors").items():
        if not name.endswith("_proj.weight"):
            stored[name] = meant[name] = tensor
            continue
        quantized: Fp8Matrix | GroupedMatrix
        if bits == 8:
            quantized = fp8_matrix(tensor)
            stored |= {name: quantized.values, f"{name}_scale": quantized.scales[:, None].contiguous()}
        else:
            quantized = int4_matrix(tensor)
            places = torch.arange(8, dtype=torch.int32) * 4
            words = (quantized.integers.view(len(tensor), -1, 8).int() << places).sum(2, dtype=torch.int32)
            stored |= {f"{name}_packed": words, f"{name}_scale": quantized.scales}
            stored[f"{name}_shape"] = torch.tensor(tensor.shape)
        meant[name] = quantized.dequantized(torch.bfloat16)
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": _quantization(bits)}))
    return meant


def _quantization(bits: int) -> _Settings:
    settings: _Settings = {"num_bits": bits, "symmetric": True}
    if bits == 8:
        settings |= {"type": "float", "strategy": "channel"}
        activations, packing = {"num_bits": 8, "type": "float", "dynamic": True}, "float-quantized"
    else:
        settings |= {"type": "int", "strategy": "group", "group_size": GROUP}
        activations, packing = None, "pack-quantized"
    groups = {"group_0": {"weights": settings, "input_activations": activations}}
    return {"quant_method": "compressed-tensors", "format": packing, "config_groups": groups}


class Products:
    """A layer's product with weights of one kind, as the engine computes it on a device.

    Raises:
        ValueError: this device has no such products.
    """

    def __init__(self, device: str, bits: int) -> None:
        self._device = device
        self._bits = bits
        kept = _kept(device)
        reason = kept.why_not_fp8 if bits == 8 else kept.why_not_int4
        if reason is not None:
            raise ValueError(reason)
        self._maker = LinearMaker(torch.bfloat16, torch.device(device), _operators(device), kept)
        outputs, inputs = _SIDES[device]
        generator = torch.Generator(device).manual_seed(0)
        self._weight = torch.randn(outputs, inputs, generator=generator, device=device) * 0.02
        self._x = torch.randn(max(_ROWS), inputs, generator=generator, device=device, dtype=torch.bfloat16)
        self._matrix: Matrix = fp8_matrix(self._weight) if bits == 8 else int4_matrix(self._weight)

    def largest_error(self) -> float:
        """Returns the largest error of a row's result, relative to its length, against float64."""
        layer = self._maker.make([self._matrix], None)
        if isinstance(layer, PlainLinear):
            raise AssertionError("the weights were dequantized")
        worst = 0.0
        for count in (*_ROWS, 17, 33, 257):
            x = self._x[:count]
            if self._bits == 8:
                rounded, scales = TorchOps().quantize_rows(x)
                exact = rounded.float().double() * scales.double()
                weight = self._matrix.dequantized(torch.float32).double()  # type: ignore[union-attr]
            else:
                exact, weight = x.double(), self._matrix.dequantized(torch.bfloat16).double()  # type: ignore[union-attr]
            expected = exact @ weight.t()
            error = (layer(x).double() - expected).norm(dim=1) / expected.norm(dim=1)
            worst = max(worst, float(error.max()))
        return worst

    def speeds(self) -> str:
        """Times that of bfloat16 weights, by the number of tokens; with 4 bits also of torch's own kernel."""
        plain = [PlainLinear(self._weight.bfloat16().clone(), None, TorchOps()) for _ in range(_COPIES)]
        kept = [_copy(self._maker.make([self._matrix], None)) for _ in range(_COPIES)]
        torchs = [Tinygemm(self._matrix) for _ in range(_COPIES) if isinstance(self._matrix, GroupedMatrix)]
        found = []
        for count in _ROWS:
            x = self._x[:count]
            base, ours = _seconds(plain, x), _seconds(kept, x)
            theirs = f", tinygemm {_seconds(torchs, x) * 1e6:.0f} us" if torchs else ""
            found.append(f"{count}: {base / ours:.2f} ({ours * 1e6:.0f} us{theirs})")
        return f"times bfloat16's speed at tokens {', '.join(found)}"


def product_check(device: str, bits: int) -> tuple[bool, str]:
    """Returns whether products are right, and a sentence on their error."""
    error = Products(device, bits).largest_error()
    return error <= _LARGEST_ERROR, f"off by at most {error:.4f} of a row's length ({_LARGEST_ERROR} allowed)"


def product_speeds(device: str, bits: int) -> tuple[bool, str]:
    """Raises ValueError where there are none."""
    if device != "cuda":
        raise ValueError("speeds are those of a GPU")
    return True, Products(device, bits).speeds()


class Tinygemm:
    """`torch.ops.aten._weight_int4pack_mm`, to see whether the engine should use it instead of its own kernel."""

    def __init__(self, matrix: GroupedMatrix) -> None:
        octets = matrix.integers[:, ::2] << 4 | matrix.integers[:, 1::2]
        self._packed = torch.ops.aten._convert_weight_to_int4pack(octets.contiguous(), 8)
        scales = matrix.scales.float()
        pairs = torch.stack([scales, (8 - matrix.zeros) * scales], dim=2)
        self._pairs = pairs.transpose(0, 1).bfloat16().contiguous()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.aten._weight_int4pack_mm(x, self._packed, GROUP, self._pairs)
        return result


def _kept(device: str) -> KeptFormats:
    if device != "cuda":
        return KeptFormats(None, None)  # by torch, so that the same code runs
    return kept_formats(torch.cuda.get_device_capability(), torch.bfloat16, batch_invariant=False)


def _operators(device: str) -> Ops:
    if device != "cuda":
        return TorchOps()
    from inflight_engine.execution.triton_ops import TritonOps

    return TritonOps()


def _copy(layer: Linear) -> Linear:
    if isinstance(layer, Fp8Linear):
        return replace(layer, values=layer.values.clone())
    assert isinstance(layer, Int4Linear)
    return replace(layer, matrix=replace(layer.matrix, packed=layer.matrix.packed.clone()))


@torch.inference_mode()
def _seconds(layers: Sequence[Callable[[torch.Tensor], torch.Tensor]], x: torch.Tensor) -> float:
    """Returns the seconds of a product in a CUDA graph: launches from Python take longer than small products."""
    layers[0](x)  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for layer in layers:
            layer(x)
    best = float("inf")
    for _ in range(_REPLAYS):
        torch.cuda.synchronize()
        started = time.perf_counter()
        graph.replay()
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - started)
    return best / len(layers)
