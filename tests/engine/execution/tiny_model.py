"""Random small models of every supported kind, made by transformers, and a runner for them."""

import pytest
import torch

from inflight_engine.execution import build
from inflight_settings.engine import EngineConfig

VOCAB = 97
SWAP_SPACE = 1 << 20
"""Bytes: many times what the prompts of `prompts_for` need."""
COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.6,  # far from uniform, so that a wrong computation changes tokens
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 50.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]
YARN = {"rope_type": "yarn", "rope_theta": 50.0, "factor": 4.0, "original_max_position_embeddings": 64}
KINDS = {
    "llama-gqa-untied": ("Llama", {"tie_word_embeddings": False}),
    "llama-mha-tied": ("Llama", {"num_key_value_heads": 6, "tie_word_embeddings": True}),
    "llama-mqa": ("Llama", {"num_key_value_heads": 1}),
    "llama-biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-wide-heads": ("Llama", {"head_dim": 16}),
    "llama-rope-linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 3.0}}),
    "llama-rope-llama3": ("Llama", {"rope_parameters": LLAMA3}),
    "llama-rope-yarn": ("Llama", {"rope_parameters": YARN}),
    "llama-rope-dynamic": ("Llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 50.0, "factor": 2.0}}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral-window": ("Mistral", {"sliding_window": 7}),
    "qwen2": ("Qwen2", {}),
    "qwen2-windows": ("Qwen2", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}),
    "qwen3": ("Qwen3", {"head_dim": 8}),
    "qwen3-biases": ("Qwen3", {"head_dim": 8, "attention_bias": True}),
    "qwen3-windows": ("Qwen3", {"head_dim": 8, "use_sliding_window": True, "sliding_window": 5, "layer_types": LAYERS}),
}


def make_model(folder, kind, changes=None, **save_options):
    """`changes`: of the kind's configuration."""
    import transformers

    family, options = KINDS[kind]
    torch.manual_seed(len(kind))
    config = getattr(transformers, f"{family}Config")(**COMMON | options | (changes or {}))
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):  # transformers starts biases at zero, which would test nothing
                parameter.normal_(std=0.5)
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
    model.save_pretrained(folder, **save_options)
    return model


def prompts_for(rng, count=7):
    return [
        [rng.randrange(VOCAB) for _ in range(length)]
        for length in [1, 3, 4, 5, 40, *rng.sample(range(6, 90), count - 5)]
    ]


def generate(model, prompt, num_tokens):
    ids = torch.tensor([prompt])
    output = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=num_tokens)
    return output[0, len(prompt) :].tolist()


def tiny_runner(folder, *, lookahead=False, capture=None, backend=None, grammars=None, **options):
    """A runner on the CPU. `lookahead`, `capture` (of graphs) and `backend` (of attention) are what a CPU does not have
    by itself."""
    defaults = {"dtype": "float32", "device": "cpu", "max_num_seqs": 32, "block_size": 4, "num_kv_blocks": 256}
    if backend is not None:
        defaults["attention_backend"] = "torch-sdpa"  # the native decoder has attention of its own
    config = EngineConfig(str(folder), **defaults | options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "looks_ahead", lambda config, device: lookahead)
        if capture is not None:
            shapes = build.graph_shapes(config.max_num_seqs, config.capacity("cuda").max_num_batched_tokens)
            patch.setattr(build, "choose_graph_shapes", lambda config, device: shapes)
            patch.setattr(build, "CudaCapture", lambda: capture)
        if backend is not None:
            patch.setattr(build, "choose_backend", lambda name, spec: backend)
        return build.build_runner(config, grammars=grammars)
