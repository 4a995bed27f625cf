"""The built-in model as other engines load it: the same weights, tokens and prompts."""

import pytest
import torch

from inflight_engine.cli import main
from inflight_engine.models.checkpoints.config import load_model_config
from inflight_engine.models.checkpoints.source import resolve
from inflight_engine.models.checkpoints.weights import open_weights
from inflight_engine.models.tokens.conversation import Conversation
from inflight_engine.models.tokens.tokenizer import load_tokenizer

SOURCE = "builtin://smollm2"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported") / "smollm2"
    assert main(["export", SOURCE, str(folder)]) == 0
    return folder


def test_the_exported_model_has_the_built_in_models_shape_weights_and_tokens(folder):
    ours, theirs = resolve(SOURCE), resolve(str(folder))
    config, exported = load_model_config(ours), load_model_config(theirs)
    for name in ("vocab_size", "num_hidden_layers", "num_key_value_heads", "head_dim", "rope", "tie_word_embeddings"):
        assert getattr(exported, name) == getattr(config, name)
    weights, written = open_weights(ours, config), open_weights(theirs, exported)
    for name in ("model.embed_tokens.weight", "model.norm.weight", "model.layers.29.self_attn.k_proj.weight"):
        assert torch.equal(written.get(name), weights.get(name).to(torch.bfloat16))
    tokenizer, saved = load_tokenizer(ours), load_tokenizer(theirs)
    text = "Count to 123:\n  ünï<|im_end|>"
    assert saved.encode(text) == tokenizer.encode(text)
    hello = Conversation([{"role": "user", "content": "Hello"}])
    assert saved.encode_chat(hello) == tokenizer.encode_chat(hello)
    assert saved.eos_token_ids == tokenizer.eos_token_ids


def test_a_model_that_is_not_in_the_image_is_refused_with_a_sentence(tmp_path, capsys):
    assert main(["export", "builtin://nothing", str(tmp_path)]) == 1
    assert (
        "builtin://nothing cannot be exported: model source builtin://nothing is not one of" in capsys.readouterr().err
    )
