"""Random small models of every supported kind, made by transformers, give the same tokens here as there."""

import random

import pytest
import torch

from inflight_engine.config import EngineConfig
from inflight_engine.execution.runner import Runner
from inflight_engine.request import SamplingParams
from tests.engine.execution.driver import Driver

VOCAB = 97
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
KINDS = {
    "llama-gqa-untied": ("Llama", {"tie_word_embeddings": False}),
    "llama-mha-tied": ("Llama", {"num_key_value_heads": 6, "tie_word_embeddings": True}),
    "llama-mqa": ("Llama", {"num_key_value_heads": 1}),
    "llama-biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-wide-heads": ("Llama", {"head_dim": 16}),
    "llama-rope-linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 3.0}}),
    "llama-rope-llama3": ("Llama", {"rope_parameters": LLAMA3}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 8}),
}


def make_model(folder, kind, **save_options):
    import transformers

    family, options = KINDS[kind]
    torch.manual_seed(len(kind))
    config = getattr(transformers, f"{family}Config")(**COMMON | options)
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


def tiny_runner(folder, **options):
    defaults = {"dtype": "float32", "device": "cpu", "max_num_seqs": 32, "block_size": 4, "num_kv_blocks": 256}
    return Runner(EngineConfig(str(folder), **defaults | options))


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_equal_transformers(tmp_path, kind):
    model = make_model(tmp_path, kind)
    prompts = prompts_for(random.Random(kind))
    expected = [generate(model, prompt, 10) for prompt in prompts]
    runner = tiny_runner(tmp_path)
    whole = Driver(runner, rng=random.Random(1)).run(prompts, SamplingParams(max_tokens=10))
    assert whole == expected
    chunked = Driver(runner, chunk=9, max_running=3, preempt_every=4).run(prompts, SamplingParams(max_tokens=10))
    assert chunked == expected


def test_sharded_weights_are_found_through_their_index(tmp_path):
    model = make_model(tmp_path, "llama-gqa-untied", max_shard_size="50KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    prompt = [5, 6, 7, 8]
    assert Driver(tiny_runner(tmp_path)).run([prompt], SamplingParams(max_tokens=6)) == [generate(model, prompt, 6)]


def test_seeded_sampling_does_not_depend_on_chunks_batch_or_preemption(tmp_path):
    make_model(tmp_path, "llama-gqa-untied")
    runner = tiny_runner(tmp_path)
    prompts = prompts_for(random.Random(5), 12)
    sampling = [
        SamplingParams(
            max_tokens=9, temperature=(i % 4) * 0.7, top_k=(i % 3) * 20, top_p=1 - (i % 2) * 0.1, seed=i // 2
        )
        for i in range(12)
    ]
    alone = [Driver(runner).run([prompt], s)[0] for prompt, s in zip(prompts, sampling, strict=True)]
    assert Driver(runner).run(prompts, sampling) == alone
    assert Driver(runner, chunk=5, max_running=4, preempt_every=3).run(prompts, sampling) == alone


def test_a_reused_slot_shows_nothing_of_its_former_request(tmp_path):
    make_model(tmp_path, "llama-gqa-untied")
    runner = tiny_runner(tmp_path)
    hot = SamplingParams(max_tokens=5, temperature=2.0, seed=1)
    fresh = Driver(tiny_runner(tmp_path), max_running=1).run([[9, 8, 7]], SamplingParams(max_tokens=8))
    driver = Driver(runner, max_running=1)
    assert driver.run([[1] * 50, [9, 8, 7]], [hot, SamplingParams(max_tokens=8)])[1] == fresh[0]


def test_a_long_chunk_is_attended_in_pieces(tmp_path, monkeypatch):
    from inflight_engine.execution.attention import torch_sdpa

    model = make_model(tmp_path, "llama-gqa-untied")
    prompt = [i * 31 % VOCAB for i in range(100)]
    monkeypatch.setattr(torch_sdpa, "_MASKED_QUERIES", 8)
    output = Driver(tiny_runner(tmp_path), chunk=60).run([prompt], SamplingParams(max_tokens=6))
    assert output == [generate(model, prompt, 6)]


def test_info_says_what_was_loaded(tmp_path):
    make_model(tmp_path, "llama-gqa-untied")
    info = tiny_runner(tmp_path, max_model_len=100).info
    assert (info.num_blocks, info.block_size, info.max_model_len, info.vocab_size) == (256, 4, 100, VOCAB)
    assert info.kv_bytes_per_token == 2 * 3 * 2 * 8 * 4
    assert (info.device, info.dtype, info.attention_backend) == ("cpu", "float32", "torch-sdpa")


def test_a_longer_context_than_the_models_own_is_refused(tmp_path):
    make_model(tmp_path, "llama-gqa-untied")
    with pytest.raises(ValueError, match="max_model_len must be between 1 and 256"):
        tiny_runner(tmp_path, max_model_len=257)


def test_a_missing_tensor_is_named(tmp_path):
    from safetensors.torch import load_file, save_file

    make_model(tmp_path, "llama-gqa-untied")
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"no tensor model\.layers\.1\.mlp\.up_proj\.weight"):
        tiny_runner(tmp_path)


def test_a_damaged_weights_file_is_named(tmp_path):
    make_model(tmp_path, "llama-gqa-untied")
    (tmp_path / "model.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(ValueError, match=r"model\.safetensors cannot be read"):
        tiny_runner(tmp_path)
