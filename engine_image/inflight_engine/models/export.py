"""The command `inflight-engine export`: the built-in model in Hugging Face's format, for engines that load no GGUF."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from inflight_engine.models.checkpoints.source import ModelSourceError, resolve

SUMMARY = "write the built-in model in Hugging Face's format"

DESCRIPTION = """\
Write a model that is in this image as a folder with config.json, tokenizer.json and weights as safetensors in bfloat16,
which vLLM, transformers and other engines load. Pods of spec.engine.type vllm run it before vLLM starts."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="builtin://smollm2")
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="folder to write to; created when it is missing")


def run(model: str, folder: Path) -> int:
    """Write the files; returns the exit status: 0 done, 1 the model cannot be read or the folder not be written."""
    try:
        export(model, folder)
    except (ModelSourceError, OSError, ValueError) as error:
        print(f"error: {model} cannot be exported: {error}", file=sys.stderr)
        return 1
    return 0


def export(model: str, folder: Path) -> None:
    """Write a model that comes as a GGUF file into `folder`.

    Raises:
        ModelSourceError: there is no such model.
        ValueError: it does not come as a GGUF file, or the file is damaged.
        OSError: the folder cannot be written.
    """
    # Only now: `serve` shares the command line, and has to start fast.
    import torch
    from safetensors.torch import save_file

    from inflight_engine.models.checkpoints.config import config_from_gguf
    from inflight_engine.models.checkpoints.gguf import read_gguf
    from inflight_engine.models.checkpoints.weights import GGUFWeights
    from inflight_engine.models.tokens.tokenizer import load_tokenizer

    files = resolve(model)
    if files.gguf is None:
        raise ValueError("it is in Hugging Face's format already")
    gguf = read_gguf(files.gguf)
    config, meta = config_from_gguf(gguf), gguf.metadata
    weights = GGUFWeights(gguf, config)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: weights.get(name).to(torch.bfloat16).contiguous() for name in weights.names()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    load_tokenizer(files).save(folder / "tokenizer.json")
    ids = {name: int(meta[f"tokenizer.ggml.{key}_token_id"]) for name, key in _SPECIAL.items()}
    tokens = meta["tokenizer.ggml.tokens"].decode()
    _write(
        folder / "config.json",
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "dtype": "bfloat16",
            "vocab_size": config.vocab_size,
            "hidden_size": config.hidden_size,
            "intermediate_size": config.intermediate_size,
            "num_hidden_layers": config.num_hidden_layers,
            "num_attention_heads": config.num_attention_heads,
            "num_key_value_heads": config.num_key_value_heads,
            "head_dim": config.head_dim,
            "rms_norm_eps": config.rms_norm_eps,
            "max_position_embeddings": config.max_position_embeddings,
            "rope_parameters": {"rope_type": "default", "rope_theta": config.rope.theta},
            "rope_theta": config.rope.theta,
            "tie_word_embeddings": config.tie_word_embeddings,
            **{f"{name}_token_id": ids[name] for name in ("bos", "eos", "pad")},
        },
    )
    _write(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": config.max_position_embeddings,
            "chat_template": meta["tokenizer.chat_template"],
            **{f"{name}_token": tokens[number] for name, number in ids.items()},
        },
    )


_SPECIAL = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
"""Special tokens: name in Hugging Face's files, and key in GGUF."""


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
