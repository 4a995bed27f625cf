"""Architectures that run through transformers' modules: our logits and tokens are its own, or the reason why they are
not served is told."""

import json
import random
import subprocess
import sys
import weakref

import pytest
import torch
from safetensors.torch import load_file, save_file

from inflight_engine.execution.load import load_config, load_model
from inflight_engine.models.checkpoints import transformers_config
from inflight_engine.models.checkpoints.config import UnsupportedModelError
from inflight_engine.models.checkpoints.source import ModelFiles
from inflight_engine.models.checkpoints.transformers_config import TransformersConfig
from inflight_engine.models.parallel import ALONE
from inflight_engine.models.transformers_model import TransformersModel
from inflight_engine.native.library import library
from inflight_engine.request import SamplingParams
from inflight_settings.engine import EngineConfig
from tests.engine.execution.driver import Driver
from tests.engine.execution.tiny_model import COMMON, SWAP_SPACE, VOCAB, generate, prompts_for, tiny_runner

PT = {"format": "pt"}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
GLOBAL = {
    "gpt2": {},
    "gpt_neox": {},
    "gpt_bigcode": {},
    "opt": {"ffn_dim": 80, "word_embed_proj_dim": 24},
    "phi": {"partial_rotary_factor": 0.5},
    "phi3": {},
    "gemma": {"head_dim": 8},
    "stablelm": {},
    "cohere": {},
    "olmo2": {},
    "granite": {"attention_multiplier": 0.2, "logits_scaling": 2.0, "residual_multiplier": 0.5},
    "mixtral": {"num_local_experts": 4},
    "qwen2_moe": {"num_experts": 4, "shared_expert_intermediate_size": 32} | EXPERTS,
    "qwen3_moe": {"num_experts": 4, "head_dim": 8} | EXPERTS,
    "deepseek_v3": {
        "num_key_value_heads": 6,
        "n_routed_experts": 4,
        "n_group": 2,
        "topk_group": 1,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
        "first_k_dense_replace": 1,
    }
    | EXPERTS,
}
"""Architectures with full attention. The projection of OPT, the scales of Granite, Cohere and GPT-2, the narrow values
of DeepSeek are what differs from a Llama."""
WINDOWED = {
    "gemma2": {"head_dim": 8, "sliding_window": 5, "query_pre_attn_scalar": 10, "attn_logit_softcapping": 3.0},
    "gemma3_text": {"head_dim": 8, "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]},
    "starcoder2": {"sliding_window": 7},
    "cohere2": {"sliding_window": 5},
}


def make(folder, family, options, **save_options):
    """A random model of a family, saved."""
    import transformers

    torch.manual_seed(3)
    options = COMMON | {"num_hidden_layers": 2} | options
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(family, **options)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.5)
    model.save_pretrained(folder, **save_options)
    return model


def read(folder):
    return load_config(ModelFiles(str(folder), folder))


class PlainAttention:
    """Over one whole sequence, as a shape describes it."""

    def __init__(self, shape):
        self._shape = shape

    def forward(self, layer, queries, keys, values):
        group = self._shape.num_heads // self._shape.num_kv_heads
        keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", queries, keys) * self._shape.scale
        if self._shape.softcap is not None:
            scores = self._shape.softcap * (scores / self._shape.softcap).tanh()
        at = torch.arange(len(queries))
        visible = at <= at[:, None]
        if self._shape.sliding_windows[layer] is not None:
            visible &= at > at[:, None] - self._shape.sliding_windows[layer]
        weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, values).flatten(1)


@torch.inference_mode()
@pytest.mark.parametrize("family", GLOBAL | WINDOWED)
def test_logits_equal_transformers(tmp_path, family):
    model = make(tmp_path, family, (GLOBAL | WINDOWED)[family])
    config = read(tmp_path)
    assert isinstance(config, TransformersConfig)
    ours = TransformersModel(config, ModelFiles("test", tmp_path), torch.float32, torch.device("cpu"))
    ids = torch.randint(VOCAB, (40,), generator=torch.Generator().manual_seed(1))
    logits = ours.logits(ours.hidden_states(ids, torch.arange(40), PlainAttention(config.shape)))
    torch.testing.assert_close(logits, model(ids[None], use_cache=False).logits[0], rtol=1e-3, atol=1e-3)


def test_attention_and_its_cache_are_let_go_after_a_step(tmp_path):
    make(tmp_path, "gpt2", {})
    config = read(tmp_path)
    model = TransformersModel(config, ModelFiles("test", tmp_path), torch.float32, torch.device("cpu"))
    attention = PlainAttention(config.shape)
    gone = weakref.ref(attention)
    with torch.inference_mode():
        model.hidden_states(torch.tensor([5, 6]), torch.arange(2), attention)
    del attention
    assert gone() is None


@pytest.mark.parametrize("family", ["gpt2", "opt", "phi", "stablelm", "granite", "qwen3_moe", "deepseek_v3", *WINDOWED])
def test_tokens_equal_transformers(tmp_path, family):
    model = make(tmp_path, family, (GLOBAL | WINDOWED)[family])
    prompts = prompts_for(random.Random(family))
    expected = [generate(model, prompt, 8) for prompt in prompts]
    runner = tiny_runner(tmp_path, swap_space=SWAP_SPACE)
    assert Driver(runner, rng=random.Random(1)).run(prompts, SamplingParams(max_tokens=8)) == expected
    swapping = Driver(runner, chunk=9, max_running=3, preempt_every=3, swap=True, rng=random.Random(2))
    assert swapping.run(prompts, SamplingParams(max_tokens=8)) == expected


@pytest.mark.parametrize(("family", "num_threads"), [("gemma2", 1), ("granite", 2)])
def test_tokens_equal_transformers_with_attention_by_the_cpu_kernels(tmp_path, family, num_threads):
    model = make(tmp_path, family, (GLOBAL | WINDOWED)[family] | {"hidden_size": 96, "head_dim": 16})
    prompts = prompts_for(random.Random(family))
    expected = [generate(model, prompt, 8) for prompt in prompts]
    runner = tiny_runner(tmp_path, block_size=16, num_threads=num_threads, swap_space=SWAP_SPACE)
    assert runner.info.attention_backend == ("torch-sdpa" if library() is None else "cpu-native")
    chunked = Driver(runner, chunk=9, max_running=3, preempt_every=3, swap=True, rng=random.Random(2))
    assert chunked.run(prompts, SamplingParams(max_tokens=8)) == expected


def test_auto_is_float32_where_torch_computes_on_a_cpu_without_amx(tmp_path, monkeypatch):
    make(tmp_path, "gpt2", {})
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": False})
    assert tiny_runner(tmp_path, dtype="auto").info.dtype == "float32"


def test_the_shape_is_what_the_modules_ask_for(tmp_path):
    make(tmp_path, "gemma2", WINDOWED["gemma2"])
    shape = read(tmp_path).shape
    assert (shape.architecture, shape.vocab_size, shape.max_position_embeddings) == ("Gemma2ForCausalLM", VOCAB, 256)
    assert (shape.num_layers, shape.num_heads, shape.num_kv_heads, shape.head_dim) == (2, 6, 2, 8)
    assert shape.sliding_windows == (5, None)
    assert (shape.scale, shape.softcap) == (pytest.approx(10**-0.5), 3.0)


def test_scales_that_differ_by_layer_are_honoured(tmp_path):
    model = make(tmp_path, "gpt2", {"scale_attn_by_inverse_layer_idx": True})
    prompt = [3, 1, 4, 1, 5, 9, 2, 6]
    assert Driver(tiny_runner(tmp_path)).run([prompt], SamplingParams(max_tokens=8)) == [generate(model, prompt, 8)]


def test_an_option_that_the_native_decoder_lacks_runs_through_transformers(tmp_path):
    model = make(tmp_path, "llama", {"hidden_act": "gelu"})
    assert isinstance(read(tmp_path), TransformersConfig)
    prompt = [3, 1, 4, 1, 5, 9, 2, 6]
    assert Driver(tiny_runner(tmp_path)).run([prompt], SamplingParams(max_tokens=8)) == [generate(model, prompt, 8)]


def test_dynamic_scaling_does_not_look_at_the_company(tmp_path):
    model = make(tmp_path, "phi", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}})
    prompts = prompts_for(random.Random(1))
    expected = [generate(model, prompt, 4) for prompt in prompts]
    assert Driver(tiny_runner(tmp_path)).run(prompts, SamplingParams(max_tokens=4)) == expected


def test_longrope_is_served_up_to_its_original_context(tmp_path):
    rope = {"rope_type": "longrope", "rope_theta": 100.0, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    model = make(tmp_path, "phi3", {"rope_parameters": rope, "original_max_position_embeddings": 64})
    assert read(tmp_path).shape.max_position_embeddings == 64
    prompts = [prompt[:50] for prompt in prompts_for(random.Random(1))]
    expected = [generate(model, prompt, 4) for prompt in prompts]
    assert Driver(tiny_runner(tmp_path)).run(prompts, SamplingParams(max_tokens=4)) == expected


REFUSED = {
    "gpt_oss": ({"num_local_experts": 4, "head_dim": 8}, "its attention has s_aux, which our attention has not"),
    "bloom": ({}, "its modules compute attention themselves"),
    "mpt": ({}, "its modules compute attention themselves"),
    "falcon": ({}, "its modules do not run with another attention function"),
    "mamba": ({}, "layers of the type linear_attention"),
    "jamba": ({}, "layers of the type linear_attention"),
    "rwkv": ({}, "it keeps a recurrent state"),
    "llama4_text": ({}, "layers of the type chunked_attention"),
    "lfm2": ({"layer_types": ["conv", "full_attention"]}, "layers of the type conv"),
    "t5": ({}, "it is an encoder-decoder"),
    "llava": ({}, "it is multimodal"),
}


@pytest.mark.parametrize("family", REFUSED)
def test_what_cannot_work_is_refused_by_its_reason(tmp_path, family):
    import transformers

    options, reason = REFUSED[family]
    if family != "llava":
        options = COMMON | {"num_hidden_layers": 2} | options
    config = transformers.AutoConfig.for_model(family, **options).to_dict()
    name = {"t5": "T5ForConditionalGeneration", "llava": "LlavaForConditionalGeneration"}.get(family)
    architecture = name or transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[family]
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": [architecture]}))
    with pytest.raises(UnsupportedModelError, match=f"{architecture} is not supported: .*{reason}"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"architectures": ["OurOwnForCausalLM"], "model_type": "our-own"}, "transformers cannot read"),
        (
            {"architectures": ["X"], "model_type": "x", "auto_map": {"AutoConfig": "code.Config"}},
            "brings code of its own",
        ),
        ({"architectures": ["BertForMaskedLM"], "model_type": "bert"}, "knows no decoder-only architecture"),
        (
            {
                "architectures": ["GPT2LMHeadModel"],
                "model_type": "gpt2",
                "quantization_config": {"quant_method": "awq"},
            },
            "its weights are quantized",
        ),
    ],
)
def test_what_transformers_does_not_know_is_refused(tmp_path, config, reason):
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModelError, match=reason):
        read(tmp_path)


def load(folder):
    return TransformersModel(read(folder), ModelFiles("test", folder), torch.float32, torch.device("cpu"))


def test_a_weight_that_is_missing_is_named(tmp_path):
    make(tmp_path, "phi", {})
    file = tmp_path / "model.safetensors"
    save_file({name: tensor for name, tensor in load_file(file).items() if "1.mlp.fc1" not in name}, file, PT)
    with pytest.raises(ValueError, match=r"has no tensor model\.layers\.1\.mlp\.fc1\.bias"):
        load(tmp_path)


def test_a_weight_of_another_shape_is_refused(tmp_path):
    make(tmp_path, "phi", {})
    raw = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(raw | {"intermediate_size": 82}))
    with pytest.raises(ValueError, match=r"fc1\.bias has the shape \[80\], but .* asks for \[82\]"):
        load(tmp_path)


def test_a_file_of_weights_that_is_missing_or_damaged_is_a_sentence_about_the_folder(tmp_path):
    make(tmp_path, "phi", {})
    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(ValueError, match=r"the weights in .* cannot be loaded: .*header"):
        load(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"the weights in .* cannot be loaded: .*model\.safetensors"):
        load(tmp_path)


def test_without_transformers_the_reason_says_what_to_install(tmp_path, monkeypatch):
    make(tmp_path, "gpt2", {})
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UnsupportedModelError, match=r"GPT2LMHeadModel is not supported; .*install transformers"):
        read(tmp_path)


@pytest.mark.parametrize("options", [{"quantization": "int8"}, {"tensor_parallel_size": 2}])
def test_options_of_native_models_are_refused(tmp_path, options):
    make(tmp_path, "gpt2", {})
    config = EngineConfig(str(tmp_path), **options)
    with pytest.raises(ValueError, match="is not supported with GPT2LMHeadModel"):
        load_model(config, ModelFiles("test", tmp_path), read(tmp_path), torch.float32, torch.device("cpu"), ALONE)


def test_native_architectures_do_not_import_transformers(tmp_path):
    make(tmp_path, "llama", {})
    code = (
        "import sys; from pathlib import Path; import inflight_engine.execution.parallel.ranks;"
        "from inflight_engine.execution.load import load_config;"
        "from inflight_engine.models.checkpoints.source import ModelFiles;"
        f"load_config(ModelFiles('m', Path({str(tmp_path)!r}))); assert 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_masks_are_told_apart():
    def window(size):
        return lambda batch, head, query, key: (key <= query) & (key > query - size)

    visible = transformers_config._visible_tokens
    assert visible(window(9), 64) == 9
    assert visible(window(64), 64) == 64
    assert visible(lambda batch, head, query, key: key // 9 == query // 9, 64) is None  # chunks
    assert visible(lambda batch, head, query, key: (key <= query) | (key < 4), 64) is None  # a prefix seen by all
    assert visible(lambda batch, head, query, key: key >= 0, 64) is None  # both directions


def test_tokens_that_touch_each_other_outside_attention_are_found(tmp_path, monkeypatch):
    from transformers.models.gpt2.modeling_gpt2 import GPT2MLP

    make(tmp_path, "gpt2", {})
    config = read(tmp_path)
    forward = GPT2MLP.forward
    monkeypatch.setattr(GPT2MLP, "forward", lambda self, x: forward(self, x + x.roll(1, dims=1)))
    with pytest.raises(UnsupportedModelError, match="its tokens influence each other otherwise than by attention"):
        TransformersModel(config, ModelFiles("test", tmp_path), torch.float32, torch.device("cpu"))


def test_positions_that_are_not_those_given_are_found(tmp_path, monkeypatch):
    from transformers import GPT2Model

    make(tmp_path, "gpt2", {})
    config = read(tmp_path)
    forward = GPT2Model.forward
    monkeypatch.setattr(
        GPT2Model, "forward", lambda self, *args, position_ids, **options: forward(self, *args, **options)
    )
    with pytest.raises(UnsupportedModelError, match="their positions are not those they are given"):
        TransformersModel(config, ModelFiles("test", tmp_path), torch.float32, torch.device("cpu"))
