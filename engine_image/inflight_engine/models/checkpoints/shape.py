"""Properties of a model that determine its KV cache and its attention. No torch."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder-only model as the runner sees it, whichever code computes it.

    Attributes:
        num_layers: layers that attend, each with its own keys and values.
        scale: factor of queries times keys; None is head_dim ** -0.5.
        sliding_windows: one for each layer: how many tokens a query sees, itself included; None: all before it.
        softcap: attention scores s become softcap * tanh(s / softcap) (Gemma 2); None: as they are.
    """

    architecture: str
    vocab_size: int
    max_position_embeddings: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    sliding_windows: tuple[int | None, ...]
    scale: float | None = None
    softcap: float | None = None

    def kv_bytes_per_token(self, dtype_bytes: int) -> int:
        """Bytes of KV cache that one token takes over all layers: keys and values."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * dtype_bytes

    def for_rank(self, size: int) -> ModelShape:
        """Return the shape of the part of one of `size` processes that share every layer. With fewer key/value heads
        than processes, each head is kept by several.

        Raises:
            ValueError: the heads cannot be shared out evenly.
        """
        if self.num_heads % size or max(self.num_kv_heads, size) % min(self.num_kv_heads, size):
            raise ValueError(
                f"tensor_parallel_size {size} cannot share out {self.num_heads} attention heads and "
                f"{self.num_kv_heads} key/value heads evenly; give a number that divides the attention heads, and "
                "divides or is a multiple of the key/value heads"
            )
        return replace(self, num_heads=self.num_heads // size, num_kv_heads=max(1, self.num_kv_heads // size))
