"""Scales of keys and values in float8_e4m3fn that a checkpoint brings: what is cached is divided by them.

Producers name them differently; vLLM's `maybe_remap_kv_scale_name` lists the names. One number stands for all heads of
a layer, or there is one for each key/value head (compressed-tensors' strategy `attn_head`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from inflight_engine.models.checkpoints.config import read_json
from inflight_engine.models.checkpoints.source import ModelFiles
from inflight_engine.models.checkpoints.weight_source import WeightSource
from inflight_engine.models.checkpoints.weights import open_stored

_NAMES = (
    "{kind}_scale",  # compressed-tensors, llm-compressor
    "attn.{kind}_scale",  # vLLM's own module
    "{kind}_proj.{kind}_scale",  # ModelOpt
    "qkv_proj.{kind}_scale",  # one projection for all three
    "{kind}_proj.output_scale",  # older compressed-tensors, Quark
    "kv_scale",  # AutoFP8: one for both
)
"""Names of scales within `model.layers.N.self_attn`; `kind` is k or v."""


def load_kv_scales(files: ModelFiles, num_layers: int, num_kv_heads: int) -> torch.Tensor | None:
    """Load the scales, float32 [layers, 2, kv_heads] on CPU, for keys, then for values; None: the checkpoint has none
    for float8.

    Args:
        num_kv_heads: key/value heads of the whole model.

    Raises:
        ValueError: as `read_kv_scales`, or a file cannot be read.
    """
    if files.gguf is not None or not _made_for_float8(files.folder / "config.json"):
        return None
    return read_kv_scales(open_stored(files, ahead=False), num_layers, num_kv_heads)


def read_kv_scales(weights: WeightSource, num_layers: int, num_kv_heads: int) -> torch.Tensor | None:
    """Read the scales, as `load_kv_scales`.

    Raises:
        ValueError: only some layers have scales, a tensor has neither one number nor one for each head, or a scale is
            not a positive number.
    """
    found = {(layer, kind): _find(weights, layer, kind) for layer in range(num_layers) for kind in "kv"}
    if not any(found.values()):
        return None
    scales = torch.empty(num_layers, 2, num_kv_heads)
    for (layer, kind), name in found.items():
        if name is None:
            raise ValueError(
                f"the checkpoint has scales of the KV cache, but none for layer {layer} (looked for "
                f"{_name(layer, kind, _NAMES[0])}); set kv_cache_dtype to auto"
            )
        scales[layer, "kv".index(kind)] = _read(weights, name, num_kv_heads)
    return scales


def _made_for_float8(path: Path) -> bool:
    """Return whether scales in the checkpoint, if any, are for 8-bit floats and not for integers."""
    quantization: dict[str, Any] = read_json(path).get("quantization_config") or {}
    scheme = quantization.get("kv_cache_scheme")
    return scheme is None or (scheme.get("type"), scheme.get("num_bits")) == ("float", 8)


def _name(layer: int, kind: str, pattern: str) -> str:
    return f"model.layers.{layer}.self_attn." + pattern.format(kind=kind)


def _find(weights: WeightSource, layer: int, kind: str) -> str | None:
    for pattern in _NAMES:
        name = _name(layer, kind, pattern)
        try:
            weights.shape(name)
        except ValueError:  # there is no such tensor
            continue
        return name
    return None


def _read(weights: WeightSource, name: str, num_kv_heads: int) -> torch.Tensor:
    scale = weights.get(name).float().flatten()
    if len(scale) not in (1, num_kv_heads):
        raise ValueError(
            f"tensor {name} has {len(scale)} numbers, but a scale of the KV cache is one number or one for each of "
            f"{num_kv_heads} key/value heads"
        )
    if not bool((scale > 0).all() and scale.isfinite().all()):
        raise ValueError(f"tensor {name} holds {scale.tolist()}, but a scale of the KV cache is a positive number")
    return scale
