"""Any decoder-only architecture of transformers, with our attention in place of its own.

The modules run over the packed tokens as if they were one sequence: [1, T], each with its own position. Everything but
attention works token by token, which is checked at load; attention is ours, over the paged cache.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from inflight_engine.models.checkpoints.config import UnsupportedModelError
from inflight_engine.models.checkpoints.shape import ModelShape
from inflight_engine.models.checkpoints.source import ModelFiles, first_line
from inflight_engine.models.checkpoints.transformers_config import TransformersConfig, fix_rope
from inflight_engine.models.checkpoints.weight_source import check_shape
from inflight_engine.models.protocol import Attention

log = logging.getLogger(__name__)

_IMPLEMENTATION = "inflight"
"""Our name among transformers' attention functions. Without a mask function of this name, it builds no masks."""
_TOLERANCE = 0.1
"""Maximum relative distance between a token's hidden states beside two sets of other tokens: a rounding (and in a
mixture of experts a tie that falls the other way) stays below, another token's influence does not."""
_PROBES = 3


class TransformersModel:
    """Weights on one device, and the forward pass. Implements `models.protocol.Model`.

    Raises:
        UnsupportedModelError: tokens influence each other otherwise than by attention.
        ValueError: a weight is missing, has another shape than the configuration says, or cannot be read.
    """

    def __init__(self, config: TransformersConfig, files: ModelFiles, dtype: torch.dtype, device: torch.device) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
        shape = config.shape
        log.info("%s runs through transformers' modules, slower than a native architecture", shape.architecture)
        ALL_ATTENTION_FUNCTIONS.register(_IMPLEMENTATION, _attend)
        their_config = AutoConfig.from_pretrained(files.folder, trust_remote_code=False)
        fix_rope(their_config)
        try:
            self._model, loaded = AutoModelForCausalLM.from_pretrained(
                files.folder,
                config=their_config,
                dtype=dtype,
                attn_implementation=_IMPLEMENTATION,
                device_map={"": str(device)},
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # they are refused below, by their names
            )
        except Exception as error:  # of many kinds, from the file's format to the device's memory
            raise ValueError(f"the weights in {files.folder} cannot be loaded: {first_line(error)}") from error
        _refuse_incomplete(files, loaded)
        self._model.eval()
        self._step = _Step(shape)
        for module in self._model.modules():
            if hasattr(module, "layer_idx"):
                module.inflight_step = self._step
        decoder = self._model.get_decoder()
        self._decode = decoder.forward
        # What the model does between the decoder and the logits (scales, caps) stays its own: see `logits`.
        decoder.forward = _give_back
        self._check_tokens_are_apart(shape.vocab_size, device)

    def hidden_states(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        attention: Attention,
        sampled_rows: torch.Tensor | None = None,
    ) -> torch.Tensor:
        self._step.attention = attention
        try:
            output = self._decode(input_ids=token_ids[None], position_ids=positions[None], use_cache=False)
        finally:
            self._step.attention = None  # else the cache that memory is measured with would stay
        hidden: torch.Tensor = output.last_hidden_state[0]
        return hidden if sampled_rows is None else hidden.index_select(0, sampled_rows)

    def logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        logits: torch.Tensor = self._model(inputs_embeds=hidden[None], use_cache=False).logits[0]
        return logits.float() if out is None else out.copy_(logits)

    @torch.inference_mode()
    def _check_tokens_are_apart(self, vocab_size: int, device: torch.device) -> None:
        """A token's hidden state and its queries, keys and values come from it and its position alone."""
        distances = []
        for probe in range(_PROBES):
            token, before, after = (int(at * vocab_size) + probe for at in (0.4, 0.1, 0.7))
            alike = self._observe([token, token, token], [5, 5, 5], 1, device)
            mixed = self._observe([before, after, token], [7, 0, 5], 2, device)
            distances.append(float((alike - mixed).norm() / alike.norm().clamp(min=1e-6)))
            if distances[-1] < _TOLERANCE:
                return
        raise UnsupportedModelError(
            f"model architecture {self._step.shape.architecture} is not supported: its tokens influence each other "
            "otherwise than by attention, or their positions are not those they are given"
        )

    def _observe(self, token_ids: list[int], positions: list[int], which: int, device: torch.device) -> torch.Tensor:
        """Return what the model computes for one of the tokens when attention contributes nothing, as one flat
        vector."""
        vocab_size, context = self._step.shape.vocab_size, self._step.shape.max_position_embeddings
        ids = torch.tensor(token_ids, device=device) % vocab_size
        notes = _Notes()
        hidden = self.hidden_states(ids, torch.tensor(positions, device=device) % context, notes)
        rows = [hidden, *notes.rows]
        return torch.cat([F.normalize(row[which].float(), dim=0) for row in rows])


def _refuse_incomplete(files: ModelFiles, loaded: dict[str, Any]) -> None:
    """Weights that were not loaded would be random."""
    for name in sorted(loaded["missing_keys"]):
        raise ValueError(f"model folder {files.folder} has no tensor {name}")
    for name, found, expected in sorted(loaded["mismatched_keys"]):
        check_shape(name, tuple(found), tuple(expected))


@dataclass(slots=True, eq=False)
class _Step:
    """The values that the attention function finds at each of the model's attention modules."""

    shape: ModelShape
    attention: Attention | None = None


class _Notes:
    """An attention that remembers what it was given and adds nothing."""

    def __init__(self) -> None:
        self.rows: list[torch.Tensor] = []

    def forward(self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        self.rows += [queries.flatten(1), keys.flatten(1), values.flatten(1)]
        return torch.zeros_like(queries).flatten(1)


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Transformers' attention function: queries [1, heads, T, D], keys and values [1, kv_heads, T, D] ->
    [1, T, heads, D]. Windows, caps and what else may come in `options` are those of the shape, which was made of them.
    """
    step: _Step = module.inflight_step  # type: ignore[assignment]
    if step.attention is None:
        raise AssertionError("attention is asked for outside a step")
    layer: int = module.layer_idx  # type: ignore[assignment]
    head_dim, value_dim = query.shape[3], value.shape[3]
    if scaling is not None and scaling != step.shape.scale:  # GPT-2 may scale each layer otherwise
        query = query * (scaling / (step.shape.scale or head_dim**-0.5))
    if value_dim < head_dim:  # multi-head latent attention; the cache has one size for both
        value = F.pad(value, (0, head_dim - value_dim))
    queries, keys, values = (x[0].transpose(0, 1).contiguous() for x in (query, key, value))
    mixed = step.attention.forward(layer, queries, keys, values)
    return mixed.view(1, len(queries), -1, head_dim)[..., :value_dim], None


class _Hidden:
    """The output of a decoder that was not run: any field but the hidden states is None."""

    def __init__(self, hidden: torch.Tensor) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, index: int) -> torch.Tensor | None:
        return self.last_hidden_state if index == 0 else None

    def __getattr__(self, name: str) -> None:
        return None


def _give_back(*_: Any, inputs_embeds: torch.Tensor, **__: Any) -> _Hidden:
    return _Hidden(inputs_embeds)
