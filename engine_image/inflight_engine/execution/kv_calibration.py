"""Scales for keys and values in float8_e4m3fn, from a forward pass at start: how large each head's are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from inflight_engine.execution.attention.base import AttentionBackend, AttentionBatch, AttentionSpec, ChunkSpan
from inflight_engine.execution.attention.torch_sdpa import TorchSdpaBackend
from inflight_engine.models.ops import FP8_MAX
from inflight_engine.models.protocol import Model

_MARGIN = 2.0
"""Factor by which keys and values may exceed those of the calibration before they are clamped. The rotation alone, at
later positions, makes a number of a key up to 1.4 times as large. A factor of two costs a floating-point format no
precision, only the smallest of its 15 binades."""
_TOKENS = 1024
"""Number of random tokens in the one sequence that is computed."""


@torch.inference_mode()
def calibrate(model: Model, spec: AttentionSpec) -> torch.Tensor:
    """Run one sequence of random tokens in the model's own dtype. The token ids are the same in every process.

    Args:
        spec: its `num_blocks` and `cache_dtype` do not matter; with tensor parallelism its heads are this rank's.

    Returns:
        float32 [layers, 2, kv_heads] on the device, for keys, then for values: largest magnitude times `_MARGIN` over
        448, and 1 for a head that has nothing but zeros.

    Raises:
        ValueError: keys or values of a layer are not finite.
    """
    length = min(_TOKENS, spec.max_num_batched_tokens, spec.max_model_len)
    num_blocks = -(-length // spec.block_size)
    plain = replace(spec, num_blocks=num_blocks, cache_dtype=spec.dtype, batch_invariant=False, kv_scales=None)
    observer = _Observer(TorchSdpaBackend(plain), plain)
    positions, no_decodes = np.arange(length), np.empty(0, np.int64)
    blocks = np.arange(num_blocks)[None]
    observer.attention.prepare(
        AttentionBatch(positions, no_decodes, no_decodes, (ChunkSpan(0, 0, length, 0),), blocks, np.arange(num_blocks))
    )
    token_ids = calibration_tokens(length, spec.shape.vocab_size).to(spec.device)
    model.hidden_states(token_ids, torch.from_numpy(positions).to(spec.device), observer)
    unusable = (~observer.largest.isfinite()).any(2).any(1).nonzero().flatten().tolist()
    if unusable:
        raise ValueError(
            f"kv_cache_dtype fp8: keys or values of layer {unusable[0]} are not finite in {spec.dtype}; set dtype to "
            "bfloat16 or float32"
        )
    return torch.where(observer.largest > 0, observer.largest * (_MARGIN / FP8_MAX), 1.0)


def calibration_tokens(length: int, vocab_size: int) -> torch.Tensor:
    """Return int64 [length], the same in every call."""
    return torch.randint(vocab_size, (length,), generator=torch.Generator().manual_seed(0))


class _Observer:
    """An `Attention` that notes the largest magnitudes of what another caches: float32 [layers, 2, kv_heads]."""

    def __init__(self, attention: AttentionBackend, spec: AttentionSpec) -> None:
        self.attention = attention
        self.largest = torch.zeros(spec.shape.num_layers, 2, spec.shape.num_kv_heads, device=spec.device)

    def forward(self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        for which, x in enumerate((keys, values)):
            self.largest[layer, which] = x.abs().amax((0, 2))
        return self.attention.forward(layer, queries, keys, values)
