"""Rotary position embedding: which angles a position gets."""

from __future__ import annotations

import math

import torch

from inflight_engine.models.checkpoints.config import DecoderConfig, RopeConfig


def rotation_table(config: DecoderConfig, num_positions: int) -> torch.Tensor:
    """float32 [num_positions, head_dim]: each position's cosines of head_dim / 2 angles, then their sines, both times
    the attention factor.

    Args:
        num_positions: of the longest sequence that is served. A model's own context may be a hundred times that.
    """
    positions = torch.arange(num_positions, dtype=torch.float32)
    angles = positions[:, None] * inverse_frequencies(config.rope, config.head_dim)
    return torch.cat([angles.cos(), angles.sin()], dim=-1).mul_(config.rope.attention_factor)


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """Angle per position of each pair of a head: float32 [head_dim / 2].

    `llama3` (Llama 3.1's model card): long wavelengths are stretched by `factor`, short ones stay, those between are
    interpolated. `yarn` (Peng et al. 2023, section 3.2): the same by how often a pair turns within the original
    context. `linear`: all are stretched.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies = 1.0 / (rope.theta**exponents)
    if rope.rope_type == "linear":
        return frequencies / rope.factor
    if rope.rope_type == "yarn":
        stretched_share = _yarn_ramp(rope, head_dim)
        return frequencies / rope.factor * stretched_share + frequencies * (1 - stretched_share)
    if rope.rope_type == "default":
        return frequencies
    context = rope.original_max_position_embeddings
    wavelengths = 2 * math.pi / frequencies
    smooth = (context / wavelengths - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    between = (1 - smooth) * frequencies / rope.factor + smooth * frequencies
    stretched = torch.where(wavelengths > context / rope.low_freq_factor, frequencies / rope.factor, between)
    return torch.where(wavelengths < context / rope.high_freq_factor, frequencies, stretched)


def _yarn_ramp(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """How far each pair is stretched, from 0 (turns at least `beta_fast` times) to 1 (at most `beta_slow` times):
    float32 [head_dim / 2]."""

    def pair_that_turns(times: float) -> float:
        turns_of_all = rope.original_max_position_embeddings / (times * 2 * math.pi)
        return head_dim * math.log(turns_of_all) / (2 * math.log(rope.theta))

    first, last = pair_that_turns(rope.beta_fast), pair_that_turns(rope.beta_slow)
    if rope.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    if first == last:
        last += 0.001
    return ((torch.arange(head_dim // 2, dtype=torch.float32) - first) / (last - first)).clamp(0, 1)
