"""Masks of grammars on a GPU."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK = 4096


@triton.jit
def mask_kernel(
    logits: tl.tensor,
    rows: tl.tensor,
    bits: tl.tensor,
    stride: tl.tensor,
    vocab_size: tl.tensor,
    num_words: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Kernel of `mask_on_device`: a program for each part of a row."""
    masked = tl.program_id(0).to(tl.int64)
    ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = ids < vocab_size
    words = tl.load(bits + masked * num_words + (ids >> 5), mask=inside, other=-1)
    forbidden = ((words >> (ids & 31)) & 1) == 0
    tl.store(logits + tl.load(rows + masked) * stride + ids, float("-inf"), mask=inside & forbidden)


def mask_on_device(logits: torch.Tensor, rows: torch.Tensor, bits: torch.Tensor) -> None:
    """Set logits of some rows to -inf where the bit of their token is 0.

    Args:
        logits: float32 [N, vocab_size], its last dimension contiguous. rows: int64 [n]. bits: int32 [n, words].
    """
    vocab_size = logits.shape[1]
    grid = (len(rows), triton.cdiv(vocab_size, _BLOCK))
    mask_kernel[grid](logits, rows, bits, logits.stride(0), vocab_size, bits.shape[1], BLOCK=_BLOCK, num_warps=4)
