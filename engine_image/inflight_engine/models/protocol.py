"""Interfaces between runner, model and attention."""

from __future__ import annotations

from typing import Protocol

import torch


class Attention(Protocol):
    """The part of an attention backend that a model calls."""

    def forward(self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Queries [T, heads, D], keys and values [T, kv_heads, D] -> [T, heads * D]."""


class Model(Protocol):
    """Weights on one device, and the forward pass over one flat sequence of packed tokens."""

    def hidden_states(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        attention: Attention,
        sampled_rows: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Run all layers.

        Args:
            token_ids: int64 [T], packed.
            positions: int64 [T], of each token in its own sequence.
            attention: its `prepare` has been called for these tokens.
            sampled_rows: int64 [N], the packed tokens whose hidden states are wanted, those that are sampled from and
                those that are scored; None: all, in order. The keys and values of every token are written in any case.

        Returns:
            [N, hidden_size], after the final norm.
        """

    def logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """float32 [N, vocab_size] of hidden states [N, hidden_size]. `out`: gets them."""
