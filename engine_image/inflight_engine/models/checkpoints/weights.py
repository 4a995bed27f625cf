"""Weights by their Hugging Face names, from safetensors (mapped, read tensor by tensor) or GGUF."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from inflight_engine.models.checkpoints.config import DecoderConfig, read_json
from inflight_engine.models.checkpoints.fp8_weights import Fp8Weights
from inflight_engine.models.checkpoints.gguf import F32, GGUFFile, read_gguf
from inflight_engine.models.checkpoints.packed_weights import PackedWeights
from inflight_engine.models.checkpoints.quantization_scheme import Fp8Scheme, read_scheme
from inflight_engine.models.checkpoints.source import ModelFiles
from inflight_engine.models.checkpoints.streamed_weights import StreamedWeights
from inflight_engine.models.checkpoints.weight_source import WeightSource
from inflight_engine.models.reading_progress import READING
from inflight_engine.native.dequantize import dequantize


class SafetensorsWeights(WeightSource):
    """A folder's model.safetensors, or the shards that model.safetensors.index.json lists.

    Args:
        whole: every tensor will be read, and its bytes are counted as progress.

    Raises:
        ValueError: a shard is missing or damaged.
    """

    def __init__(self, folder: Path, *, whole: bool = False) -> None:
        self._folder = folder
        self._whole = whole
        self._open = ExitStack()
        index = folder / "model.safetensors.index.json"
        names = set(read_json(index)["weight_map"].values()) if index.is_file() else {"model.safetensors"}
        self._shard_of: dict[str, Any] = {}
        for name in sorted(names):
            try:
                shard: Any = self._open.enter_context(safe_open(str(folder / name), framework="pt"))
            except Exception as error:  # the library raises plain Exception and its own error for damaged files
                raise ValueError(f"{folder / name} cannot be read: {error}") from error
            self._shard_of.update(dict.fromkeys(shard.keys(), shard))
        if whole:
            READING.begin(sum((folder / name).stat().st_size for name in names))

    def get(self, name: str, dim: int = 0, part: range | None = None) -> torch.Tensor:
        shard = self._shard(name)
        tensor: torch.Tensor = shard.get_tensor(name) if part is None else _cut(shard.get_slice(name), dim, part)
        if self._whole:
            READING.add(tensor.nbytes)
        return tensor

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._shard(name).get_slice(name).get_shape())

    def __contains__(self, name: str) -> bool:
        return name in self._shard_of

    def _shard(self, name: str) -> Any:
        shard = self._shard_of.get(name)
        if shard is None:
            raise ValueError(f"model folder {self._folder} has no tensor {name}")
        return shard


class GGUFWeights(WeightSource):
    """The built-in model's GGUF file, of llama.cpp's `llama` architecture, dequantized."""

    def __init__(self, gguf: GGUFFile, config: DecoderConfig) -> None:
        self._gguf = gguf
        self._heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}

    def get(self, name: str, dim: int = 0, part: range | None = None) -> torch.Tensor:
        gguf_name = self._find(name)
        tensor = self._read(gguf_name)
        heads = self._heads.get(gguf_name.split(".")[-2])
        if heads is not None:
            tensor = _rotate_half_order(tensor, heads)
        return tensor if part is None else _cut(tensor, dim, part)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._gguf.tensors[self._find(name)].shape

    def names(self) -> list[str]:
        """Hugging Face names of all tensors."""
        return [_hf_name(name) for name in self._gguf.tensors]

    def _read(self, gguf_name: str) -> torch.Tensor:
        info, raw = self._gguf.tensors[gguf_name], self._gguf.raw(gguf_name)
        if info.ggml_type == F32:
            return torch.from_numpy(raw).view(torch.float32).view(info.shape)
        return dequantize(raw, info.ggml_type, info.shape)

    def _find(self, name: str) -> str:
        gguf_name = _gguf_name(name)
        if gguf_name not in self._gguf.tensors:
            raise ValueError(f"{self._gguf.path} has no tensor {gguf_name} (for {name})")
        return gguf_name


def _cut(tensor: Any, dim: int, part: range) -> torch.Tensor:
    """Rows or columns of a tensor, or of safetensors' slice of one, which reads no others."""
    cut: torch.Tensor = tensor[part.start : part.stop] if dim == 0 else tensor[:, part.start : part.stop]
    return cut


def open_stored(files: ModelFiles, *, ahead: bool) -> SafetensorsWeights | StreamedWeights:
    """Open the tensors of safetensors files as they are there.

    Args:
        ahead: read a remote model's tensors before they are asked for: all of them will be, and whole.
    """
    return (
        SafetensorsWeights(files.folder, whole=ahead)
        if files.remote is None
        else StreamedWeights(files.remote, ahead=ahead)
    )


def open_weights(files: ModelFiles, config: DecoderConfig, *, whole: bool = True) -> WeightSource:
    """Returns the weights of a model. `whole`: this process reads all of them, and not its part of most."""
    if files.gguf is not None:
        return GGUFWeights(read_gguf(files.gguf), config)
    stored = open_stored(files, ahead=whole)
    quantization = read_json(files.folder / "config.json").get("quantization_config")
    if not quantization:
        return stored
    scheme = read_scheme(quantization)
    return Fp8Weights(stored, scheme) if isinstance(scheme, Fp8Scheme) else PackedWeights(stored, scheme)


_GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


_HF_NAMES = {theirs: ours for ours, theirs in _GGUF_NAMES.items()}


def _gguf_name(name: str) -> str:
    return _renamed(name, "model.layers.", "blk.", _GGUF_NAMES)


def _hf_name(gguf_name: str) -> str:
    return _renamed(gguf_name, "blk.", "model.layers.", _HF_NAMES)


def _renamed(name: str, layers: str, new_layers: str, modules: Mapping[str, str]) -> str:
    """Returns the other format's name of a tensor. Args: layers, new_layers: what precedes the number of a layer."""
    module, _, suffix = name.rpartition(".")
    if module.startswith(layers):
        layer, _, inner = module.removeprefix(layers).partition(".")
        return f"{new_layers}{layer}.{modules[inner]}.{suffix}"
    return f"{modules[module]}.{suffix}"


def _rotate_half_order(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Undo llama.cpp's reordering of query and key rows (convert_hf_to_gguf.py, `LlamaModel.permute`): it rotates
    neighbouring pairs, Hugging Face models rotate the two halves of a head."""
    half = tensor.shape[0] // heads // 2
    return tensor.view(heads, half, 2, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)
