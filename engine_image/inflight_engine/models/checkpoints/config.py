"""Dimensions and constants of a decoder, read from config.json or GGUF metadata. No torch."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inflight_engine.models.checkpoints.gguf import GGUFFile, read_gguf
from inflight_engine.models.checkpoints.quantization_scheme import UnsupportedQuantizationError, read_scheme
from inflight_engine.models.checkpoints.shape import ModelShape
from inflight_engine.models.checkpoints.source import ModelFiles

SUPPORTED_ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
"""Hugging Face architecture names with a native forward pass."""
SUPPORTED_ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "llama3")


_DEFAULT_KV_HEADS = {"MistralForCausalLM": 8, "Qwen2ForCausalLM": 32, "Qwen3ForCausalLM": 32}
_DEFAULT_HEAD_DIM = {"Qwen3ForCausalLM": 128}
"""Defaults of transformers' configurations where config.json has no such field; for other models all heads, and
hidden_size over heads."""


class UnsupportedModelError(ValueError):
    """The model's architecture, or an option of it, has no forward pass here; the message names it."""


class UnsupportedWeightsError(UnsupportedModelError):
    """The architecture has a native forward pass, but nothing reads its weights as they are quantized."""


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding (Su et al. 2021); `linear` (Chen et al. 2023), `yarn` (Peng et al. 2023) and `llama3`
    stretch it.

    Attributes:
        theta: base of the frequencies.
        rope_type: `default`, `linear`, `yarn` or `llama3`. `dynamic` (NTK by length) is read as `default`, which it is
            up to `max_position_embeddings`, and longer sequences are not served.
        factor: how far the context is stretched.
        original_max_position_embeddings: `llama3` and `yarn`: the context before.
        low_freq_factor, high_freq_factor: `llama3` only.
        beta_fast, beta_slow: `yarn` only: pairs that turn more often than `beta_fast` in the original context stay,
            those that turn less than `beta_slow` are stretched.
        truncate: `yarn` only: the bounds between these are whole pairs.
        attention_factor: factor of cosines and sines, which scales the attention's scores by its square.
    """

    theta: float = 10000.0
    rope_type: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """A decoder of the Llama family. Names are Hugging Face's.

    Attributes:
        qkv_bias, output_bias, mlp_bias: whether the query/key/value, attention output and MLP projections have one.
        qk_norm: whether queries and keys are normalised per head (Qwen3).
        sliding_windows: each layer's window, as in `ModelShape`.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    rope: RopeConfig
    tie_word_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    sliding_windows: tuple[int | None, ...]

    @property
    def shape(self) -> ModelShape:
        return ModelShape(
            architecture=self.architecture,
            vocab_size=self.vocab_size,
            max_position_embeddings=self.max_position_embeddings,
            num_layers=self.num_hidden_layers,
            num_heads=self.num_attention_heads,
            num_kv_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            sliding_windows=self.sliding_windows,
        )


def load_model_config(files: ModelFiles) -> DecoderConfig:
    """Read a model's configuration.

    Raises:
        UnsupportedModelError: no native forward pass for it.
        ValueError: a field is missing or the file cannot be read; the message names both.
    """
    path = files.gguf or files.folder / "config.json"
    try:
        return config_from_hf(read_json(path)) if files.gguf is None else config_from_gguf(read_gguf(files.gguf))
    except KeyError as error:
        raise ValueError(f"{path} has no field {error}") from error


def config_from_hf(raw: dict[str, Any]) -> DecoderConfig:
    """From the content of a config.json.

    Raises:
        UnsupportedModelError: see `load_model_config`.
        KeyError: a required field is missing.
    """
    architecture = (raw.get("architectures") or [raw.get("model_type", "unknown")])[0]
    if architecture not in SUPPORTED_ARCHITECTURES:
        raise UnsupportedModelError(
            f"model architecture {architecture} is not supported; supported: {', '.join(SUPPORTED_ARCHITECTURES)}"
        )
    if raw.get("hidden_act", "silu") != "silu":
        raise UnsupportedModelError(f"hidden_act {raw['hidden_act']} is not supported; supported: silu")
    if raw.get("quantization_config"):
        try:
            read_scheme(raw["quantization_config"])
        except UnsupportedQuantizationError as error:
            raise UnsupportedWeightsError(str(error)) from error
    num_heads = int(raw["num_attention_heads"])
    rope = _rope_from_hf(raw)
    # Only these two families make the attention's biases an option; Qwen2 has three of the four, Mistral none. In
    # the MLP only Llama has them.
    attention_bias = bool(raw.get("attention_bias", False)) and architecture in ("LlamaForCausalLM", "Qwen3ForCausalLM")
    return DecoderConfig(
        architecture=architecture,
        vocab_size=int(raw["vocab_size"]),
        hidden_size=int(raw["hidden_size"]),
        intermediate_size=int(raw["intermediate_size"]),
        num_hidden_layers=int(raw["num_hidden_layers"]),
        num_attention_heads=num_heads,
        num_key_value_heads=int(raw.get("num_key_value_heads", _DEFAULT_KV_HEADS.get(architecture)) or num_heads),
        head_dim=int(raw.get("head_dim", _DEFAULT_HEAD_DIM.get(architecture)) or raw["hidden_size"] // num_heads),
        rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        max_position_embeddings=_context_length(raw, rope),
        rope=rope,
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        qkv_bias=attention_bias or architecture == "Qwen2ForCausalLM",
        output_bias=attention_bias,
        mlp_bias=bool(raw.get("mlp_bias", False)) and architecture == "LlamaForCausalLM",
        qk_norm=architecture == "Qwen3ForCausalLM",
        sliding_windows=_sliding_windows(architecture, raw),
    )


def config_from_gguf(gguf: GGUFFile) -> DecoderConfig:
    """From GGUF metadata of the `llama` architecture (keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).

    Raises:
        KeyError: a key is missing.
    """
    meta = gguf.metadata
    num_layers = int(meta["llama.block_count"])
    return DecoderConfig(
        architecture="llama",
        vocab_size=gguf.tensors["token_embd.weight"].shape[0],
        hidden_size=int(meta["llama.embedding_length"]),
        intermediate_size=int(meta["llama.feed_forward_length"]),
        num_hidden_layers=num_layers,
        num_attention_heads=int(meta["llama.attention.head_count"]),
        num_key_value_heads=int(meta["llama.attention.head_count_kv"]),
        head_dim=int(meta["llama.rope.dimension_count"]),
        rms_norm_eps=float(meta["llama.attention.layer_norm_rms_epsilon"]),
        max_position_embeddings=int(meta["llama.context_length"]),
        rope=RopeConfig(theta=float(meta["llama.rope.freq_base"])),
        tie_word_embeddings="output.weight" not in gguf.tensors,
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        qk_norm=False,
        sliding_windows=(None,) * num_layers,
    )


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object.

    Raises:
        ValueError: it cannot be parsed, or holds something else.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds no JSON object")
    return value


def _rope_from_hf(raw: dict[str, Any]) -> RopeConfig:
    # transformers 5 writes everything in `rope_parameters`; before, it was `rope_theta` beside `rope_scaling`.
    # With both there, the latter was added by hand, and counts.
    scaling = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    rope_type = scaling.get("rope_type") or scaling.get("type") or "default"
    if rope_type not in SUPPORTED_ROPE_TYPES:
        supported = ", ".join(SUPPORTED_ROPE_TYPES)
        raise UnsupportedModelError(f"rope type {rope_type} is not supported; supported: {supported}")
    if scaling.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0)) != 1.0:
        raise UnsupportedModelError("partial_rotary_factor other than 1 is not supported")
    theta = float(scaling.get("rope_theta") or raw.get("rope_theta") or 10000.0)
    if rope_type in ("default", "dynamic"):
        return RopeConfig(theta=theta)
    if rope_type == "linear":
        return RopeConfig(theta=theta, rope_type=rope_type, factor=float(scaling["factor"]))
    context = int(
        raw.get("original_max_position_embeddings")
        or scaling.get("original_max_position_embeddings")
        or raw["max_position_embeddings"]
    )
    if rope_type == "yarn":
        return _yarn(theta, context, int(raw["max_position_embeddings"]), scaling)
    return RopeConfig(
        theta=theta,
        rope_type=rope_type,
        factor=float(scaling["factor"]),
        low_freq_factor=float(scaling["low_freq_factor"]),
        high_freq_factor=float(scaling["high_freq_factor"]),
        original_max_position_embeddings=context,
    )


def _yarn(theta: float, context: int, max_position_embeddings: int, scaling: dict[str, Any]) -> RopeConfig:
    """Read the fields as transformers' `_compute_yarn_parameters` does: the attention factor follows from `factor`
    unless given."""
    factor = float(scaling.get("factor") or max_position_embeddings / context)

    def scaled(mscale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0

    attention_factor = scaling.get("attention_factor")
    if attention_factor is None:
        mscale, all_dim = float(scaling.get("mscale") or 0), float(scaling.get("mscale_all_dim") or 0)
        attention_factor = scaled(mscale) / scaled(all_dim) if mscale and all_dim else scaled(1.0)
    return RopeConfig(
        theta=theta,
        rope_type="yarn",
        factor=factor,
        original_max_position_embeddings=context,
        beta_fast=float(scaling.get("beta_fast") or 32),
        beta_slow=float(scaling.get("beta_slow") or 1),
        truncate=bool(scaling.get("truncate", True)),
        attention_factor=float(attention_factor),
    )


def _context_length(raw: dict[str, Any], rope: RopeConfig) -> int:
    """Return the longest sequence, tokens. Yarn's own fields enable it: `max_position_embeddings` often stays the
    same."""
    own = int(raw["max_position_embeddings"])
    return max(own, int(rope.factor * rope.original_max_position_embeddings)) if rope.rope_type == "yarn" else own


def _sliding_windows(architecture: str, raw: dict[str, Any]) -> tuple[int | None, ...]:
    """Return each layer's window, with the defaults of transformers' configurations for fields that config.json
    lacks."""
    num_layers = int(raw["num_hidden_layers"])
    window = raw.get("sliding_window", 4096)
    if architecture == "LlamaForCausalLM" or window is None:
        return (None,) * num_layers
    if architecture == "MistralForCausalLM":
        return (int(window),) * num_layers
    if not raw.get("use_sliding_window", False):
        return (None,) * num_layers
    first = int(raw.get("max_window_layers", 28))
    types = raw.get("layer_types") or ["full_attention"] * first + ["sliding_attention"] * (num_layers - first)
    if len(types) < num_layers or set(types) - {"full_attention", "sliding_attention"}:
        raise ValueError(f"layer_types must say full_attention or sliding_attention for each of {num_layers} layers")
    return tuple(int(window) if kind == "sliding_attention" else None for kind in types[:num_layers])
