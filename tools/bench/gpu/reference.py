"""The reference for the engine's tokens in bfloat16: a small random model in transformers, in float32."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch

from inflight_engine.request import SamplingParams

GREEDY = SamplingParams(max_tokens=1)
_STRETCH = 1024.0
"""A power of two; in 8 bits without scales, keys beyond 448 become 448, and values below 0.001 become 0."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How large the checks are.

    Attributes:
        vocab_size: tokens.
        prompt_lengths: around the sizes of blocks and of tiles.
        output_tokens: of each prompt.
        num_draws: to hold against a distribution.
        max_model_len: tokens.
    """

    vocab_size: int
    prompt_lengths: tuple[int, ...]
    output_tokens: int
    num_draws: int
    max_model_len: int


FULL = Scale(151_936, (1, 2, 15, 16, 17, 64, 127, 128, 250, 300, 513, 1900), 24, 4096, 2048)
SMALL = Scale(1024, (1, 2, 16, 17, 64, 128, 250, 520), 12, 512, 640)
SCALES = {"full": FULL, "small": SMALL}


def make_reference(folder: Path, device: str, scale: Scale, window: int | None = None) -> Any:
    """A model in float32 on the device; the engine finds it in `folder`, in bfloat16, which is exact.

    Args:
        window: tokens that a token sees, in all layers; None: all.
    """
    import transformers

    torch.manual_seed(0)
    options: dict[str, Any] = {
        "vocab_size": scale.vocab_size,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "max_position_embeddings": scale.max_model_len,
        "initializer_range": 0.05,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    if window is None:
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**options))
    else:
        model = transformers.MistralForCausalLM(transformers.MistralConfig(**options, sliding_window=window))
    model = model.to(torch.bfloat16).eval()
    model.save_pretrained(folder)
    return model.to(device, torch.float32)


def save_stretched(model: Any, folder: Path) -> None:
    """Save a model in bfloat16 that computes the same as another, of `make_reference`, to the last bit, with keys
    `_STRETCH` times as large and values as many times as small."""
    stretched = deepcopy(model).to(torch.bfloat16)
    for layer in stretched.model.layers:
        attention = layer.self_attn
        for projection, factor in (("k", _STRETCH), ("q", 1 / _STRETCH), ("v", 1 / _STRETCH), ("o", _STRETCH)):
            getattr(attention, f"{projection}_proj").weight.data.mul_(factor)
    stretched.save_pretrained(folder)


def make_prompts(scale: Scale) -> list[list[int]]:
    rng = Random(1)
    return [[rng.randrange(scale.vocab_size) for _ in range(length)] for length in scale.prompt_lengths]


@torch.inference_mode()
def logits_of(model: Any, prompt: list[int], output: list[int]) -> torch.Tensor:
    """float32 [output tokens, vocabulary]: at each token of an output, given the prompt and the tokens before it, so
    that after a token that differs the reference looks at the same text."""
    ids = torch.tensor([prompt + output[:-1]], device=model.device)
    logits: torch.Tensor = model(ids, logits_to_keep=len(output)).logits[0]
    return logits


def changed(logits: torch.Tensor, prompt: list[int], output: list[int], sampling: SamplingParams) -> torch.Tensor:
    """Return a position's logits [vocabulary] after logit_bias and the penalties, by their definitions."""
    logits = logits.clone()
    for token_id, bias in sampling.logit_bias:
        logits[token_id] += bias
    for token_id in {*prompt, *output}:
        penalty = sampling.repetition_penalty
        logits[token_id] *= penalty if logits[token_id] < 0 else 1 / penalty
    for token_id in set(output):
        logits[token_id] -= sampling.frequency_penalty * output.count(token_id) + sampling.presence_penalty
    return logits


def distances(model: Any, prompt: list[int], output: list[int], sampling: SamplingParams = GREEDY) -> torch.Tensor:
    """[output tokens]: how far below the best logit each token of a greedy output is, in standard deviations of its
    position's logits."""
    logits = logits_of(model, prompt, output)
    spread = logits.std(dim=1)
    if sampling is not GREEDY:
        logits = torch.stack([changed(row, prompt, output[:at], sampling) for at, row in enumerate(logits)])
    chosen = logits.gather(1, torch.tensor(output, device=logits.device)[:, None])[:, 0]
    return (logits.max(dim=1).values - chosen) / spread
