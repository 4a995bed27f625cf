"""The decoder of the Llama family (Touvron et al. 2023), over one flat sequence of packed tokens.

By configuration it is Llama, SmolLM2, Mistral, Qwen2 and Qwen3. Query, key and value projections are
one matrix product, gate and up another. Attention and the small operators between the products are the caller's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from inflight_engine.models.checkpoints.config import DecoderConfig
from inflight_engine.models.checkpoints.weight_source import WeightSource, check_shape
from inflight_engine.models.linear import NONE_KEPT, KeptFormats, Linear, LinearMaker
from inflight_engine.models.matrices import Matrix
from inflight_engine.models.ops import Ops
from inflight_engine.models.parallel import Parallel
from inflight_engine.models.protocol import Attention
from inflight_engine.models.rope import rotation_table


@dataclass(frozen=True, slots=True, eq=False)
class DecoderLayer:
    """Weights of a layer. `head_norms`: norms of queries and of keys, [D] each, Qwen3 only."""

    input_norm: torch.Tensor
    qkv: Linear
    head_norms: tuple[torch.Tensor, torch.Tensor] | None
    output: Linear
    post_attention_norm: torch.Tensor
    gate_up: Linear
    down: Linear


class LlamaModel:
    """Weights on one device, and the forward pass.

    With peers (`parallel`), each has its share of the attention heads and of the MLP's columns, and the sum of what
    they make of a token is taken after attention and after the MLP. The embedding is every rank's own: a lookup reads a
    few rows, and a shared one would cost another sum. The head is cut by rows, because each step reads all of it.

    Args:
        weights: read once, tensor by tensor; with peers only this rank's parts.
        max_model_len: longest sequence in tokens that will be served.
        kept: which quantized weights stay so; by default none.

    Raises:
        ValueError: a tensor is missing, or its shape is not what `config` says; or its parts would not be equal.
    """

    def __init__(
        self,
        config: DecoderConfig,
        weights: WeightSource,
        dtype: torch.dtype,
        device: torch.device,
        ops: Ops,
        max_model_len: int,
        parallel: Parallel,
        kept: KeptFormats = NONE_KEPT,
    ) -> None:
        self.config = config
        self._ops = ops
        self._parallel = parallel
        self._shape = config.shape.for_rank(parallel.size)
        reader = _Reader(weights, dtype, device, parallel, LinearMaker(dtype, device, ops, kept))

        hidden, intermediate, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
        queries, keys = config.num_attention_heads * head_dim, config.num_key_value_heads * head_dim
        of_queries = reader.share(queries, "attention heads")
        of_mlp = reader.share(intermediate, "intermediate_size")
        kv_head = parallel.rank * config.num_key_value_heads // parallel.size
        of_keys = range(kv_head * head_dim, (kv_head + self._shape.num_kv_heads) * head_dim)
        qkv = {"q": (queries, of_queries), "k": (keys, of_keys), "v": (keys, of_keys)}

        self._embedding = reader.tensor("model.embed_tokens.weight", config.vocab_size, hidden)
        self._layers: list[DecoderLayer] = []
        for index in range(config.num_hidden_layers):
            layer = f"model.layers.{index}"
            attention, mlp = f"{layer}.self_attn", f"{layer}.mlp"
            self._layers.append(
                DecoderLayer(
                    input_norm=reader.tensor(f"{layer}.input_layernorm.weight", hidden),
                    qkv=reader.by_columns(
                        config.qkv_bias, hidden, {f"{attention}.{name}_proj": part for name, part in qkv.items()}
                    ),
                    head_norms=(
                        reader.tensor(f"{attention}.q_norm.weight", head_dim),
                        reader.tensor(f"{attention}.k_norm.weight", head_dim),
                    )
                    if config.qk_norm
                    else None,
                    output=reader.by_rows(config.output_bias, queries, of_queries, f"{attention}.o_proj", hidden),
                    post_attention_norm=reader.tensor(f"{layer}.post_attention_layernorm.weight", hidden),
                    gate_up=reader.by_columns(
                        config.mlp_bias,
                        hidden,
                        {f"{mlp}.{name}_proj": (intermediate, of_mlp) for name in ("gate", "up")},
                    ),
                    down=reader.by_rows(config.mlp_bias, intermediate, of_mlp, f"{mlp}.down_proj", hidden),
                )
            )
        self._final_norm = reader.tensor("model.norm.weight", hidden)
        self._lm_head = self._head_part(reader)
        self._rotation_table = rotation_table(config, max_model_len).to(device)
        reader.linears.log_counts()

    def hidden_states(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        attention: Attention,
        sampled_rows: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See `Model`. The attention is called once a layer, in order."""
        ops, eps, total = self._ops, self.config.rms_norm_eps, self._parallel.all_reduce
        norms_after = [layer.input_norm for layer in self._layers[1:]] + [self._final_norm]
        residual = F.embedding(token_ids, self._embedding)
        normed = ops.rms_norm(residual, self._layers[0].input_norm, eps)
        for index, (layer, norm_after) in enumerate(zip(self._layers, norms_after, strict=True)):
            queries, keys, values = ops.rotary(
                layer.qkv(normed),
                positions,
                self._rotation_table,
                self._shape.num_heads,
                self._shape.num_kv_heads,
                layer.head_norms,
                eps,
            )
            attended = attention.forward(index, queries, keys, values)
            if layer is self._layers[-1] and sampled_rows is not None:
                attended, residual = attended.index_select(0, sampled_rows), residual.index_select(0, sampled_rows)
                if len(sampled_rows) == 0:
                    return residual
            mixed = total(layer.output(attended))
            normed, residual = ops.add_rms_norm(mixed, residual, layer.post_attention_norm, eps)
            mixed = total(layer.down(ops.silu_mul(layer.gate_up(normed))))
            normed, residual = ops.add_rms_norm(mixed, residual, norm_after, eps)
        return normed

    def logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """See `Model`."""
        if self._parallel.size == 1:
            return self._ops.wide_linear(hidden, self._lm_head, out)
        parts = self._parallel.all_gather(F.linear(hidden, self._lm_head))[:, : self.config.vocab_size]
        return parts.float() if out is None else out.copy_(parts)

    def _head_part(self, reader: _Reader) -> torch.Tensor:
        """This rank's rows of the head, the last rank's filled up with zeros so that all have as many."""
        vocab_size, hidden = self.config.vocab_size, self.config.hidden_size
        num_rows = -(-vocab_size // self._parallel.size)
        first = self._parallel.rank * num_rows
        rows = range(first, min(first + num_rows, vocab_size))
        if self.config.tie_word_embeddings:
            head = self._embedding[rows.start : rows.stop]
        else:
            head = reader.tensor("lm_head.weight", vocab_size, hidden, dim=0, part=rows)
        return head if len(head) == num_rows else F.pad(head, (0, 0, 0, num_rows - len(head)))


class _Reader:
    """Reads tensors as a configuration describes them, cut for this rank."""

    def __init__(
        self,
        weights: WeightSource,
        dtype: torch.dtype,
        device: torch.device,
        parallel: Parallel,
        linears: LinearMaker,
    ) -> None:
        self.linears = linears
        self._weights = weights
        self._dtype = dtype
        self._device = device
        self._parallel = parallel

    def share(self, count: int, what: str) -> range:
        """Return this rank's share of `count` rows or columns."""
        rank, size = self._parallel.rank, self._parallel.size
        if count % size:
            raise ValueError(f"tensor_parallel_size {size} cannot share out {count} of {what} evenly")
        return range(rank * count // size, (rank + 1) * count // size)

    def tensor(self, name: str, *shape: int, dim: int = 0, part: range | None = None) -> torch.Tensor:
        """Read a tensor of this shape, or a part of one dimension."""
        check_shape(name, self._weights.shape(name), shape)
        tensor = self._weights.get(name, dim, None if part is None or len(part) == shape[dim] else part)
        return tensor.to(device=self._device, dtype=self._dtype).contiguous()

    def by_columns(self, has_bias: bool, inputs: int, outputs: dict[str, tuple[int, range]]) -> Linear:
        """Make one product for several projections: `outputs` are their names, whole sizes, and parts of this rank."""
        matrices = [
            self._matrix(f"{name}.weight", (size, inputs), dim=0, part=part) for name, (size, part) in outputs.items()
        ]
        biases = [self.tensor(f"{name}.bias", size, part=part) for name, (size, part) in outputs.items() if has_bias]
        return self.linears.make(matrices, torch.cat(biases) if has_bias else None)

    def by_rows(self, has_bias: bool, inputs: int, part: range, name: str, outputs: int) -> Linear:
        """Make a product whose result is a summand of the whole; the first rank has the bias."""
        bias = self.tensor(f"{name}.bias", outputs) if has_bias and self._parallel.rank == 0 else None
        return self.linears.make([self._matrix(f"{name}.weight", (outputs, inputs), dim=1, part=part)], bias)

    def _matrix(self, name: str, shape: tuple[int, int], dim: int, part: range) -> Matrix:
        check_shape(name, self._weights.shape(name), shape)
        return self._weights.matrix(name, dim, None if len(part) == shape[dim] else part)
