"""Rotation tables against transformers' own."""

import pytest
import torch

from inflight_engine.models.checkpoints.config import config_from_hf
from inflight_engine.models.rope import rotation_table

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
SCALINGS = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "yarn": YARN,
    "yarn-betas": YARN | {"beta_fast": 8.0, "beta_slow": 2.0, "truncate": False},
    "yarn-attention": YARN | {"attention_factor": 0.7},
    "yarn-mscale": YARN | {"mscale": 0.8, "mscale_all_dim": 0.5},
    "llama3": {
        "rope_type": "llama3",
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}


@pytest.mark.parametrize("kind", SCALINGS)
@pytest.mark.parametrize("theta", [50.0, 10000.0])
def test_tables_equal_transformers(kind, theta):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    theirs = LlamaConfig(
        vocab_size=10,
        hidden_size=128,
        num_attention_heads=4,
        max_position_embeddings=256,
        rope_parameters=SCALINGS[kind] | {"rope_theta": theta},
    )
    ours = config_from_hf(theirs.to_dict() | {"architectures": ["LlamaForCausalLM"]})
    cos, sin = LlamaRotaryEmbedding(theirs)(torch.zeros(1), torch.arange(200)[None])
    expected = torch.cat([cos[0, :, :16], sin[0, :, :16]], dim=-1)
    torch.testing.assert_close(rotation_table(ours, 200), expected, rtol=1e-5, atol=1e-5)


def test_a_table_is_as_long_as_what_is_served():
    config = config_from_hf(
        {
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": 10,
            "hidden_size": 128,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 1,
            "max_position_embeddings": 1 << 20,
        }
    )
    assert rotation_table(config, 7).shape == (7, 128)
