"""The forward pass alone, over one sequence with plain attention, against transformers' logits."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from inflight_engine.models.checkpoints.config import load_model_config
from inflight_engine.models.checkpoints.source import ModelFiles
from inflight_engine.models.checkpoints.weights import open_weights
from inflight_engine.models.llama import LlamaModel
from inflight_engine.models.ops import TorchOps
from inflight_engine.models.parallel import SingleProcess


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    import transformers

    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=200,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        initializer_range=0.1,
    )
    folder = tmp_path_factory.mktemp("llama")
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


class Causal:
    def forward(self, layer, queries, keys, values):
        q, k, v = (x.transpose(0, 1)[None] for x in (queries, keys, values))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0].transpose(0, 1).flatten(1)


def our_logits(folder, ids, dtype):
    files = ModelFiles("test", folder)
    config = load_model_config(files)
    model = LlamaModel(config, open_weights(files, config), dtype, torch.device("cpu"), TorchOps(), 64, SingleProcess())
    return model.logits(model.hidden_states(ids, torch.arange(len(ids)), Causal()))


def their_logits(folder, ids, dtype):
    import transformers

    model = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=dtype)
    return model(ids[None]).logits[0].float()


def test_weights_of_another_shape_than_the_configuration_says_are_refused(folder):
    files = ModelFiles("test", folder)
    config = replace(load_model_config(files), intermediate_size=97)
    with pytest.raises(ValueError, match=r"gate_proj.weight has the shape \[96, 64\].* asks for \[97, 64\]"):
        LlamaModel(
            config, open_weights(files, config), torch.float32, torch.device("cpu"), TorchOps(), 64, SingleProcess()
        )


@torch.inference_mode()
def test_float32_logits_equal_transformers(folder):
    ids = torch.randint(0, 200, (40,), generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(our_logits(folder, ids, torch.float32), their_logits(folder, ids, torch.float32))


@torch.inference_mode()
def test_bfloat16_loses_no_more_than_transformers_does(folder):
    ids = torch.randint(0, 200, (40,), generator=torch.Generator().manual_seed(4))
    exact = their_logits(folder, ids, torch.float32)
    ours = (our_logits(folder, ids, torch.bfloat16) - exact).abs().mean()
    theirs = (their_logits(folder, ids, torch.bfloat16) - exact).abs().mean()
    assert ours <= 1.2 * theirs
    assert ours > 0
