"""The decoder of the Llama family (Touvron et al. 2023), over one flat sequence of packed tokens.

By configuration it is Llama, SmolLM2, Mistral (full attention), Qwen2 and Qwen3. Query, key and value projections are
one matrix product, gate and up another. Attention is the caller's: the model hands it queries, keys and values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as F

from inflight_engine.models.config import DecoderConfig
from inflight_engine.models.rope import inverse_frequencies
from inflight_engine.models.weights import WeightSource

AttentionFunction: TypeAlias = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(layer, queries [T, heads, D], keys [T, kv_heads, D], values [T, kv_heads, D]) -> [T, heads * D]."""


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """weight [out, in], bias [out] or None."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True, eq=False)
class DecoderLayer:
    """`query_norm` and `key_norm`: [D] each, Qwen3 only."""

    input_norm: torch.Tensor
    qkv: Linear
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    output: Linear
    post_attention_norm: torch.Tensor
    gate_up: Linear
    down: Linear


class LlamaModel:
    """Weights on one device, and the forward pass.

    Args:
        weights: read once, tensor by tensor.

    Raises:
        ValueError: a tensor is missing, or its shape is not what `config` says.
    """

    def __init__(self, config: DecoderConfig, weights: WeightSource, dtype: torch.dtype, device: torch.device) -> None:
        self.config = config
        self.dtype = dtype
        self.device = device

        hidden, intermediate = config.hidden_size, config.intermediate_size
        queries = config.num_attention_heads * config.head_dim
        keys = config.num_key_value_heads * config.head_dim
        qkv = (("q", queries), ("k", keys), ("v", keys))

        def tensor(name: str, *shape: int) -> torch.Tensor:
            found = weights.get(name)
            if found.shape != shape:
                raise ValueError(
                    f"tensor {name} has the shape {list(found.shape)}, but the model's configuration asks for "
                    f"{list(shape)}: weights and configuration are of different models"
                )
            return found.to(device=device, dtype=dtype).contiguous()

        def linear(has_bias: bool, inputs: int, outputs: dict[str, int]) -> Linear:
            """One product for several projections: `outputs` are their names and sizes."""

            def joined(kind: str, *rest: int) -> torch.Tensor:
                parts = [tensor(f"{name}.{kind}", size, *rest) for name, size in outputs.items()]
                return parts[0] if len(parts) == 1 else torch.cat(parts)

            return Linear(joined("weight", inputs), joined("bias") if has_bias else None)

        self._embedding = tensor("model.embed_tokens.weight", config.vocab_size, hidden)
        self._layers: list[DecoderLayer] = []
        for index in range(config.num_hidden_layers):
            layer = f"model.layers.{index}"
            attention, mlp = f"{layer}.self_attn", f"{layer}.mlp"
            self._layers.append(
                DecoderLayer(
                    input_norm=tensor(f"{layer}.input_layernorm.weight", hidden),
                    qkv=linear(config.qkv_bias, hidden, {f"{attention}.{name}_proj": size for name, size in qkv}),
                    query_norm=tensor(f"{attention}.q_norm.weight", config.head_dim) if config.qk_norm else None,
                    key_norm=tensor(f"{attention}.k_norm.weight", config.head_dim) if config.qk_norm else None,
                    output=linear(config.output_bias, queries, {f"{attention}.o_proj": hidden}),
                    post_attention_norm=tensor(f"{layer}.post_attention_layernorm.weight", hidden),
                    gate_up=linear(
                        config.mlp_bias, hidden, {f"{mlp}.{name}_proj": intermediate for name in ("gate", "up")}
                    ),
                    down=linear(config.mlp_bias, intermediate, {f"{mlp}.down_proj": hidden}),
                )
            )
        self._final_norm = tensor("model.norm.weight", hidden)
        tied = config.tie_word_embeddings
        self._lm_head = self._embedding if tied else tensor("lm_head.weight", config.vocab_size, hidden)
        self._inverse_frequencies = inverse_frequencies(config.rope, config.head_dim).to(device)

    def hidden_states(
        self, token_ids: torch.Tensor, positions: torch.Tensor, attention: AttentionFunction
    ) -> torch.Tensor:
        """Run all layers.

        Args:
            token_ids: int64 [T], packed.
            positions: int64 [T], of each token in its own sequence.
            attention: called once a layer, in order.

        Returns:
            [T, hidden_size], before the final norm.
        """
        config = self.config
        heads, kv_heads, head_dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        cos, sin = self._rotation(positions)
        hidden = F.embedding(token_ids, self._embedding)
        for index, layer in enumerate(self._layers):
            qkv = layer.qkv(self._norm(hidden, layer.input_norm)).view(-1, heads + 2 * kv_heads, head_dim)
            rotated, values = qkv[:, : heads + kv_heads], qkv[:, heads + kv_heads :]
            if layer.query_norm is not None and layer.key_norm is not None:
                queries = self._norm(rotated[:, :heads], layer.query_norm)
                rotated = torch.cat([queries, self._norm(rotated[:, heads:], layer.key_norm)], dim=1)
            rotated = _rotate(rotated, cos, sin)
            mixed = attention(index, rotated[:, :heads], rotated[:, heads:], values)
            hidden = hidden + layer.output(mixed)
            gate, up = layer.gate_up(self._norm(hidden, layer.post_attention_norm)).chunk(2, dim=-1)
            hidden = hidden + layer.down(F.silu(gate) * up)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32 [N, vocab_size] of hidden states [N, hidden_size]."""
        return F.linear(self._norm(hidden, self._final_norm), self._lm_head).float()

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, self.config.rms_norm_eps)

    def _rotation(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = positions.float()[:, None] * self._inverse_frequencies  # [T, D / 2]
        angles = torch.cat([angles, angles], dim=-1)[:, None, :]  # [T, 1, D]
        return angles.cos().to(self.dtype), angles.sin().to(self.dtype)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin
