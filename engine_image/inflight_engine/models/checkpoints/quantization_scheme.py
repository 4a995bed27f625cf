"""How a checkpoint's weights are quantized: `quantization_config` of config.json, read and judged. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

SUPPORTED = (
    "fp8 and fbgemm_fp8; awq in the gemm version with 4 bits; gptq and gptq_v2 with 4 or 8 bits; compressed-tensors "
    "with 8-bit float weights, or pack-quantized with 4 or 8 bits"
)
_Settings: TypeAlias = Mapping[str, Any]


class UnsupportedQuantizationError(ValueError):
    """The weights are stored in a form that nothing here reads. The message is one sentence that names the method, says
    why, and what to give instead."""


@dataclass(frozen=True, slots=True)
class Fp8Scheme:
    """Weights in float8, each tensor with a scale by which it is multiplied.

    Attributes:
        scale_suffix: of the scale's name, after that of the tensor.
        block: rows and columns that share a scale; None: the scale is of the whole tensor or of each row.
        rounds_activations: whether the checkpoint was made for products of float8 with float8.
    """

    scale_suffix: str
    block: tuple[int, int] | None
    rounds_activations: bool


@dataclass(frozen=True, slots=True)
class PackedScheme:
    """Integers of a few bits packed into int32 words, with a scale and a zero point for each group of inputs.

    Attributes:
        layout: who packs how, see `packed_layouts`.
        group_size: inputs of a group; None: all inputs are one group.
        zero_offset: what is added to a stored zero point.
        has_zeros: whether zero points are stored; without, they are in the middle of the range.
    """

    layout: Literal["awq", "gptq", "pack-quantized"]
    bits: int
    group_size: int | None
    zero_offset: int = 0
    has_zeros: bool = True


Scheme: TypeAlias = Fp8Scheme | PackedScheme


def read_scheme(quantization: _Settings) -> Scheme:
    """Raises UnsupportedQuantizationError."""
    method = quantization.get("quant_method", "unknown")
    if method == "awq":
        return _awq(quantization)
    if method == "gptq":
        return _gptq(quantization)
    if method == "compressed-tensors":
        return _compressed_tensors(quantization)
    if method in ("fp8", "fbgemm_fp8"):
        block = quantization.get("weight_block_size")
        return Fp8Scheme("_scale_inv" if block else "_scale", _pair(block), rounds_activations=True)
    raise _refusal(method, "the engine cannot read this format")


def _awq(quantization: _Settings) -> PackedScheme:
    """AutoAWQ's `quantization_config`; its first releases have names of their own for bits and group size."""
    bits = quantization.get("bits", quantization.get("w_bit"))
    version = str(quantization.get("version") or quantization.get("format") or "gemm").lower()
    if version != "gemm" or quantization.get("backend") == "llm-awq":
        raise _refusal("awq", f"the version is {'llm-awq' if version == 'gemm' else version}")
    if not quantization.get("zero_point", True):
        raise _refusal("awq", "the checkpoint has no zero points")
    group_size = quantization.get("group_size", quantization.get("q_group_size"))
    return PackedScheme("awq", _bits("awq", bits, (4,)), _group_size("awq", group_size))


def _gptq(quantization: _Settings) -> PackedScheme:
    """AutoGPTQ's and GPTQModel's `quantization_config`. The first format stores zero points less one."""
    bits = quantization.get("bits")
    packing = str(quantization.get("checkpoint_format") or quantization.get("format") or "gptq").lower()
    if packing not in ("gptq", "gptq_v2") or quantization.get("is_marlin_format"):
        raise _refusal("gptq", f"the format is {'marlin' if quantization.get('is_marlin_format') else packing}")
    if quantization.get("pack_dtype", "int32") != "int32":
        raise _refusal("gptq", f"they are packed into {quantization['pack_dtype']}")
    # A pattern with a minus excludes modules, any other gives them settings of their own.
    if any(not pattern.startswith("-:") for pattern in quantization.get("dynamic") or {}):
        raise _refusal("gptq", "modules differ in their settings (dynamic)")
    group_size = _group_size("gptq", quantization.get("group_size"))
    return PackedScheme("gptq", _bits("gptq", bits, (4, 8)), group_size, zero_offset=int(packing == "gptq"))


_DIFFERENT = "modules differ in their settings (config_groups)"


def _compressed_tensors(quantization: _Settings) -> Scheme:
    groups = list((quantization.get("config_groups") or {}).values())
    weights = [group.get("weights") or {} for group in groups]
    for settings in weights:
        if (settings.get("type"), settings.get("num_bits")) not in (("float", 8), ("int", 4), ("int", 8)):
            raise _refusal(f"compressed-tensors to {_kind(settings)}", "the engine cannot read this format")
    kind = f"compressed-tensors to {' and '.join(sorted({_kind(settings) for settings in weights}))}"
    if (quantization.get("sparsity_config") or {}).get("format", "dense") != "dense":
        raise _refusal(kind, f"they are sparse ({quantization['sparsity_config']['format']})")
    if (quantization.get("transform_config") or {}).get("config_groups"):
        raise _refusal(kind, "activations are to be transformed (transform_config)")
    if all(settings["type"] == "float" for settings in weights):
        blocks = [settings["block_structure"] for settings in weights if settings.get("block_structure")]
        rounds = all(group.get("input_activations") for group in groups)
        return Fp8Scheme("_scale", _pair(blocks[-1]) if blocks else None, rounds_activations=rounds)
    if len({settings["type"] for settings in weights}) > 1:
        raise _refusal(kind, _DIFFERENT)
    return _pack_quantized(kind, quantization, groups)


def _pack_quantized(kind: str, quantization: _Settings, groups: list[_Settings]) -> PackedScheme:
    for group in groups:
        packing = group.get("format") or quantization.get("format")
        if packing != "pack-quantized":
            raise _refusal(kind, f"the format is {packing}")
        if group.get("input_activations"):
            raise _refusal(kind, "activations are to be quantized too")
    keys = ("num_bits", "group_size", "strategy", "symmetric")
    settings = {tuple(group["weights"].get(key) for key in keys) for group in groups}
    if len(settings) > 1:
        raise _refusal(kind, _DIFFERENT)
    bits, group_size, strategy, symmetric = settings.pop()
    if strategy not in ("group", "channel"):
        raise _refusal(kind, f"the strategy is {strategy}")
    size = _group_size(kind, group_size) if strategy == "group" else None
    return PackedScheme("pack-quantized", bits, size, has_zeros=not (symmetric is None or symmetric))


def _bits(kind: str, value: Any, allowed: tuple[int, ...]) -> int:
    if not isinstance(value, int) or value not in allowed:
        raise _refusal(kind, "quantization_config does not say bits" if value is None else f"{value}-bit weights")
    return value


def _group_size(kind: str, value: Any) -> int | None:
    if not isinstance(value, int) or (value < 1 and value != -1):
        raise _refusal(kind, f"the group size is {value}")
    return None if value == -1 else value


def _kind(weights: _Settings) -> str:
    return f"{weights.get('num_bits')}-bit {weights.get('type')}"


def _pair(block: Any) -> tuple[int, int] | None:
    return (int(block[0]), int(block[1])) if block else None


def _refusal(kind: str, reason: str) -> UnsupportedQuantizationError:
    return UnsupportedQuantizationError(
        f"weights quantized by {kind} are not supported: {reason}; give the unquantized model, or one that is "
        f"quantized by {SUPPORTED}"
    )
