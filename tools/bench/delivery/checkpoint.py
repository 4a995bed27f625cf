"""A Llama of random numbers with the tokenizer of the built-in model, as a folder of a checkpoint."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

from inflight_engine.models.checkpoints.source import resolve
from inflight_engine.models.tokens.tokenizer import load_tokenizer


@dataclass(frozen=True, slots=True)
class Size:
    """Dimensions of the model; it has 8 heads, and 4 with keys and values."""

    hidden: int
    layers: int


TINY = Size(64, 2)
"""13 MB."""

MIDDLE = Size(1024, 12)
"""0.5 GB."""

LARGE = Size(2048, 15)
"""2 GB."""


def write_checkpoint(folder: Path, size: Size) -> int:
    """Writes the checkpoint in two shards: embedding, norm and head, then all layers. Returns the bytes of weights."""
    tokenizer = load_tokenizer(resolve("builtin://smollm2"))
    tokenizer.save(folder / "tokenizer.json")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "vocab_size": tokenizer.vocab_size,
        "hidden_size": size.hidden,
        "intermediate_size": 3 * size.hidden,
        "num_hidden_layers": size.layers,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
    }
    (folder / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.bfloat16).normal_(0.0, 0.05, generator=generator)

    outside = {
        "model.embed_tokens.weight": random(tokenizer.vocab_size, size.hidden),
        "model.norm.weight": random(size.hidden),
        "lm_head.weight": random(tokenizer.vocab_size, size.hidden),
    }
    inside = {
        f"model.layers.{layer}.{name}.weight": random(*shape)
        for layer in range(size.layers)
        for name, shape in _layer(size.hidden).items()
    }
    shards = {"model-00001-of-00002.safetensors": outside, "model-00002-of-00002.safetensors": inside}
    for shard, tensors in shards.items():
        save_file(tensors, folder / shard)
    weight_map = {name: shard for shard, tensors in shards.items() for name in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return sum(tensor.nbytes for tensor in (*outside.values(), *inside.values()))


def _layer(hidden: int) -> dict[str, tuple[int, ...]]:
    return {
        "input_layernorm": (hidden,),
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (hidden // 2, hidden),
        "self_attn.v_proj": (hidden // 2, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "post_attention_layernorm": (hidden,),
        "mlp.gate_proj": (3 * hidden, hidden),
        "mlp.up_proj": (3 * hidden, hidden),
        "mlp.down_proj": (hidden, 3 * hidden),
    }
