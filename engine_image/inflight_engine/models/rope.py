"""Rotary position embedding: which angles a position gets."""

from __future__ import annotations

import math

import torch

from inflight_engine.models.config import DecoderConfig, RopeConfig


def rotation_table(config: DecoderConfig) -> torch.Tensor:
    """float32 [max_position_embeddings, head_dim]: each position's cosines of head_dim / 2 angles, then their sines."""
    positions = torch.arange(config.max_position_embeddings, dtype=torch.float32)
    angles = positions[:, None] * inverse_frequencies(config.rope, config.head_dim)
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """Angle per position of each pair of a head: float32 [head_dim / 2].

    `llama3` (Llama 3.1's model card): long wavelengths are stretched by `factor`, short ones stay, those between are
    interpolated. `linear`: all are stretched.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies = 1.0 / (rope.theta**exponents)
    if rope.rope_type == "linear":
        return frequencies / rope.factor
    if rope.rope_type == "default":
        return frequencies
    context = rope.original_max_position_embeddings
    wavelengths = 2 * math.pi / frequencies
    smooth = (context / wavelengths - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    between = (1 - smooth) * frequencies / rope.factor + smooth * frequencies
    stretched = torch.where(wavelengths > context / rope.low_freq_factor, frequencies / rope.factor, between)
    return torch.where(wavelengths < context / rope.high_freq_factor, frequencies, stretched)
