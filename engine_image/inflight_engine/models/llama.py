"""The decoder of the Llama family (Touvron et al. 2023), over one flat sequence of packed tokens.

By configuration it is Llama, SmolLM2, Mistral, Qwen2 and Qwen3. Query, key and value projections are
one matrix product, gate and up another. Attention and the small operators between the products are the caller's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from inflight_engine.models.config import DecoderConfig
from inflight_engine.models.ops import Ops
from inflight_engine.models.protocol import Attention
from inflight_engine.models.rope import rotation_table
from inflight_engine.models.weights import WeightSource


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """weight [out, in], bias [out] or None."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True, eq=False)
class DecoderLayer:
    """`head_norms`: of queries and of keys, [D] each, Qwen3 only."""

    input_norm: torch.Tensor
    qkv: Linear
    head_norms: tuple[torch.Tensor, torch.Tensor] | None
    output: Linear
    post_attention_norm: torch.Tensor
    gate_up: Linear
    down: Linear


class LlamaModel:
    """Weights on one device, and the forward pass.

    Args:
        weights: read once, tensor by tensor.
        max_model_len: longest sequence in tokens that will be served.

    Raises:
        ValueError: a tensor is missing, or its shape is not what `config` says.
    """

    def __init__(
        self,
        config: DecoderConfig,
        weights: WeightSource,
        dtype: torch.dtype,
        device: torch.device,
        ops: Ops,
        max_model_len: int,
    ) -> None:
        self.config = config
        self._ops = ops

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
                    head_norms=(
                        tensor(f"{attention}.q_norm.weight", config.head_dim),
                        tensor(f"{attention}.k_norm.weight", config.head_dim),
                    )
                    if config.qk_norm
                    else None,
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
        self._rotation_table = rotation_table(config, max_model_len).to(device)

    def hidden_states(self, token_ids: torch.Tensor, positions: torch.Tensor, attention: Attention) -> torch.Tensor:
        """Run all layers.

        Args:
            token_ids: int64 [T], packed.
            positions: int64 [T], of each token in its own sequence.
            attention: called once a layer, in order.

        Returns:
            [T, hidden_size], after the final norm.
        """
        config, ops, eps = self.config, self._ops, self.config.rms_norm_eps
        norms_after = [layer.input_norm for layer in self._layers[1:]] + [self._final_norm]
        residual = F.embedding(token_ids, self._embedding)
        normed = ops.rms_norm(residual, self._layers[0].input_norm, eps)
        for index, (layer, norm_after) in enumerate(zip(self._layers, norms_after, strict=True)):
            queries, keys, values = ops.rotary(
                layer.qkv(normed),
                positions,
                self._rotation_table,
                config.num_attention_heads,
                config.num_key_value_heads,
                layer.head_norms,
                eps,
            )
            mixed = layer.output(attention.forward(index, queries, keys, values))
            normed, residual = ops.add_rms_norm(mixed, residual, layer.post_attention_norm, eps)
            mixed = layer.down(ops.silu_mul(layer.gate_up(normed)))
            normed, residual = ops.add_rms_norm(mixed, residual, norm_after, eps)
        return normed

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32 [N, vocab_size] of hidden states [N, hidden_size]."""
        return F.linear(hidden, self._lm_head).float()
