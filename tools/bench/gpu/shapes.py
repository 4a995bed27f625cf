"""Models by their dimensions, with random weights made in memory, tensor by tensor: nothing is downloaded or written
but a config.json."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from inflight_engine.models.checkpoints.weight_source import WeightSource

QWEN = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024,
    "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
    "head_dim": 128, "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
    "attention_bias": False, "hidden_act": "silu", "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}  # fmt: skip
"""Qwen3-0.6B."""
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "head_dim": 128, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
    "attention_bias": False, "hidden_act": "silu", "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
}  # fmt: skip
"""Llama-3-8B."""
TINY = QWEN | {
    "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512,
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {"qwen": QWEN, "llama": LLAMA, "tiny": TINY}
TITLES = {"qwen": "Qwen3-0.6B", "llama": "Llama-3-8B", "tiny": "tiny"}


def parameter_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Hugging Face parameter name -> dimensions, of a Llama or Qwen3 without biases."""
    hidden, inner, head_dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    if config["model_type"] == "qwen3":
        layer |= {"self_attn.q_norm": (head_dim,), "self_attn.k_norm": (head_dim,)}
    for index in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{index}.{name}.weight": shape for name, shape in layer.items()}
    return shapes


class RandomWeights(WeightSource):
    """Normal with the deviation that models start from, norms at one."""

    def __init__(self, config: dict[str, Any], device: str) -> None:
        self._shapes = parameter_shapes(config)
        self._device = device

    def get(self, name: str, dim: int = 0, part: range | None = None) -> torch.Tensor:
        shape = self.shape(name)
        if len(shape) == 1:
            return torch.ones(shape, dtype=torch.bfloat16)
        # On a GPU it takes seconds, on a CPU minutes.
        tensor = torch.empty(shape, dtype=torch.bfloat16, device=self._device).normal_(std=0.02).cpu()
        return tensor if part is None else tensor.narrow(dim, part.start, len(part))

    def shape(self, name: str) -> tuple[int, ...]:
        if name not in self._shapes:
            raise ValueError(f"this shape of model has no tensor {name}")
        return self._shapes[name]


def write_config(folder: Path, config: dict[str, Any]) -> None:
    """Writes the files that the engine and its peers need in a folder; the weights' file is empty."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}))
    (folder / "model.safetensors").touch()


@contextmanager
def random_weights(config: dict[str, Any], device: str) -> Iterator[None]:
    """Whatever engine is loaded inside has random weights."""
    weights = RandomWeights(config, device)
    with mock.patch("inflight_engine.execution.load.open_weights", return_value=weights):
        yield
