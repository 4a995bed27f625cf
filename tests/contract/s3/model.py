"""A small Llama of random numbers with a real tokenizer, as a folder of a checkpoint."""

import json

import torch
from safetensors.torch import save_file

from inflight_engine.models.checkpoints.source import resolve
from inflight_engine.models.tokens.tokenizer import load_tokenizer

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
}


def write_model(folder, *, layers=2, seed=0):
    """Writes the checkpoint in two shards, of 6 MB in all."""
    tokenizer = load_tokenizer(resolve("builtin://smollm2"))
    tokenizer.save(folder / "tokenizer.json")
    config = {**CONFIG, "vocab_size": tokenizer.vocab_size, "num_hidden_layers": layers}
    (folder / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(seed)
    shapes = {"model.embed_tokens.weight": (tokenizer.vocab_size, 64), "model.norm.weight": (64,)}
    for layer in range(layers):
        for name, shape in {
            "input_layernorm": (64,),
            "self_attn.q_proj": (64, 64),
            "self_attn.k_proj": (32, 64),
            "self_attn.v_proj": (32, 64),
            "self_attn.o_proj": (64, 64),
            "post_attention_layernorm": (64,),
            "mlp.gate_proj": (128, 64),
            "mlp.up_proj": (128, 64),
            "mlp.down_proj": (64, 128),
        }.items():
            shapes[f"model.layers.{layer}.{name}.weight"] = shape
    tensors = {name: (torch.randn(shape, generator=generator) * 0.1).bfloat16() for name, shape in shapes.items()}
    shards = {name: f"model-0000{1 + ('layers' in name)}-of-00002.safetensors" for name in tensors}
    for shard in set(shards.values()):
        save_file({name: tensors[name] for name in tensors if shards[name] == shard}, folder / shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    return folder
