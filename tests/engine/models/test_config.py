"""Fields of config.json are read or refused, never misread."""

import pytest

from inflight_engine.models.checkpoints.config import (
    RopeConfig,
    UnsupportedModelError,
    config_from_hf,
    load_model_config,
)
from inflight_engine.models.checkpoints.source import ModelFiles, resolve

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "eos_token_id": [128001, 128008, 128009],
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def test_llama_3_8b_takes_131072_bytes_of_kv_per_token_in_bfloat16():
    config = config_from_hf(LLAMA)
    assert config.shape.kv_bytes_per_token(2) == 131072
    assert config.head_dim == 128
    assert (config.qkv_bias, config.output_bias, config.mlp_bias, config.qk_norm) == (False, False, False, False)


def test_rope_of_both_generations_of_config_files():
    old = config_from_hf(LLAMA | {"rope_scaling": LLAMA3_ROPE})
    new = config_from_hf(
        {k: v for k, v in LLAMA.items() if k != "rope_theta"}
        | {"rope_parameters": LLAMA3_ROPE | {"rope_theta": 500000.0}}
    )
    assert old.rope == new.rope == RopeConfig(500000.0, "llama3", 8.0, 1.0, 4.0, 8192)
    assert config_from_hf(LLAMA | {"rope_scaling": {"type": "linear", "factor": 2}}).rope.factor == 2.0
    assert config_from_hf(LLAMA | {"rope_scaling": None}).rope == RopeConfig(500000.0)


@pytest.mark.parametrize(
    ("architecture", "option", "expected"),
    [
        ("LlamaForCausalLM", True, (True, True, False)),
        ("Qwen2ForCausalLM", False, (True, False, False)),
        ("Qwen3ForCausalLM", False, (False, False, True)),
        ("Qwen3ForCausalLM", True, (True, True, True)),
        ("MistralForCausalLM", False, (False, False, False)),
    ],
)
def test_biases_and_norms_of_each_family(architecture, option, expected):
    config = config_from_hf(LLAMA | {"architectures": [architecture], "attention_bias": option})
    assert (config.qkv_bias, config.output_bias, config.qk_norm) == expected


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM is not supported; supported: LlamaForCausalLM"),
        ({"architectures": None, "model_type": "t5"}, "architecture t5 is not supported"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope type longrope is not supported; supported: default"),
        ({"hidden_act": "gelu"}, "hidden_act gelu is not supported"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantized by gptq are not supported"),
        (
            {
                "quantization_config": {
                    "quant_method": "compressed-tensors",
                    "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}},
                }
            },
            "by compressed-tensors to 4-bit int are not supported",
        ),
    ],
)
def test_what_has_no_forward_pass_is_refused_by_name(change, sentence):
    with pytest.raises(UnsupportedModelError, match=sentence):
        config_from_hf(LLAMA | change)


QWEN2 = LLAMA | {"architectures": ["Qwen2ForCausalLM"], "num_hidden_layers": 4, "sliding_window": 64}


@pytest.mark.parametrize(
    ("change", "windows"),
    [
        ({"use_sliding_window": False}, (None, None, None, None)),
        ({"use_sliding_window": True}, (None, None, None, None)),  # the first 28 layers attend to everything
        ({"use_sliding_window": True, "max_window_layers": 3}, (None, None, None, 64)),
        (
            {"use_sliding_window": True, "layer_types": ["sliding_attention", "full_attention"] * 2},
            (64, None, 64, None),
        ),
        ({"architectures": ["MistralForCausalLM"]}, (64, 64, 64, 64)),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": None}, (None, None, None, None)),
        ({"architectures": ["LlamaForCausalLM"]}, (None, None, None, None)),
    ],
)
def test_sliding_windows_of_each_layer(change, windows):
    assert config_from_hf(QWEN2 | change).shape.sliding_windows == windows


def test_mistrals_window_is_4096_where_config_json_does_not_say():
    mistral = LLAMA | {"architectures": ["MistralForCausalLM"], "num_hidden_layers": 2}
    assert config_from_hf(mistral).sliding_windows == (4096, 4096)


SMALL = {
    "vocab_size": 10,
    "hidden_size": 256,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 32,
    "max_position_embeddings": 64,
}


@pytest.mark.parametrize("family", ["Llama", "Mistral", "Qwen2", "Qwen3"])
def test_fields_that_config_json_leaves_out_are_what_transformers_takes(family):
    import transformers

    theirs = getattr(transformers, f"{family}Config")(**SMALL)
    ours = config_from_hf(SMALL | {"architectures": [f"{family}ForCausalLM"]})
    assert ours.num_key_value_heads == theirs.num_key_value_heads
    assert ours.head_dim == (getattr(theirs, "head_dim", None) or 256 // 32)
    assert (ours.rms_norm_eps, ours.tie_word_embeddings) == (theirs.rms_norm_eps, theirs.tie_word_embeddings)
    assert ours.rope.theta == theirs.rope_parameters["rope_theta"]


def test_only_llama_has_biases_in_the_mlp():
    assert config_from_hf(LLAMA | {"mlp_bias": True}).mlp_bias
    assert not config_from_hf(LLAMA | {"architectures": ["Qwen3ForCausalLM"], "mlp_bias": True}).mlp_bias


def test_scaling_that_was_added_to_a_file_of_the_new_generation_counts():
    raw = LLAMA | {"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}}
    rope = config_from_hf(raw | {"rope_scaling": {"rope_type": "linear", "factor": 2.0, "rope_theta": 7.0}}).rope
    assert (rope.rope_type, rope.factor, rope.theta) == ("linear", 2.0, 7.0)


@pytest.mark.parametrize("types", [["full_attention"], ["full_attention", "linear_attention"] * 2])
def test_types_of_layers_that_are_missing_or_unknown_are_refused(types):
    with pytest.raises(ValueError, match="layer_types must say full_attention or sliding_attention for each of 4"):
        config_from_hf(QWEN2 | {"use_sliding_window": True, "layer_types": types})


def test_yarn_lengthens_the_context():
    qwen = LLAMA | {"max_position_embeddings": 40960}
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    config = config_from_hf(qwen | {"rope_scaling": yarn})
    assert config.max_position_embeddings == 131072
    assert config.rope.attention_factor == pytest.approx(1.1386, abs=1e-4)


def test_a_missing_field_and_its_file_are_named(tmp_path):
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    with pytest.raises(ValueError, match=r"config\.json has no field 'num_attention_heads'"):
        load_model_config(ModelFiles("m", tmp_path))


def test_the_builtin_model():
    config = load_model_config(resolve("builtin://smollm2"))
    assert (config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads) == (30, 9, 3)
    assert (config.vocab_size, config.head_dim, config.rope.theta) == (49152, 64, 100000.0)
    assert config.tie_word_embeddings
    assert config.shape.kv_bytes_per_token(2) == 23040
