"""The forward pass of a step, launched kernel by kernel or captured in a graph: from inputs on the device to the hidden
states of the tokens whose successors are sampled, or are prompt tokens to score."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from inflight_engine.execution.attention.base import AttentionBackend, StepShape
from inflight_engine.execution.batch import PackedStep
from inflight_engine.execution.memory.staging import Staging
from inflight_engine.execution.memory.zeros import give_back
from inflight_engine.execution.token_feed import TokenFeed
from inflight_engine.models.protocol import Model


class StepInputs(NamedTuple):
    """A `PackedStep` on the device, int64; with padding, if any, behind its T tokens and its N sampled ones.
    `hidden_rows`: the tokens whose hidden states are wanted, `sampled_rows` and then those of `prompts`."""

    token_slots: torch.Tensor
    positions: torch.Tensor
    sampled_slots: torch.Tensor
    sampled_positions: torch.Tensor
    token_ids: torch.Tensor | None
    hidden_rows: torch.Tensor | None


class Forward:
    """The model's forward pass over inputs of one place.

    Args:
        staging: its tensors are the inputs. Those of two steps of the same shape are at the same addresses.
    """

    def __init__(self, model: Model, attention: AttentionBackend, feed: TokenFeed, staging: Staging) -> None:
        self._model = model
        self._attention = attention
        self._feed = feed
        self._staging = staging

    def send(self, packed: PackedStep, shape: StepShape | None = None) -> StepInputs:
        """Bring a step to the device, for attention too, padded to the shape if there is one. Padded tokens and padded
        sampled ones have the padding slot."""
        arrays: list[npt.NDArray[Any]] = [packed.token_slots, packed.positions, packed.sampled_positions]
        if packed.token_ids is not None and packed.sampled_rows is not None:
            prompts, hidden_rows = packed.prompts, packed.sampled_rows
            if prompts is not None:
                hidden_rows = np.concatenate([hidden_rows, prompts.rows])
            arrays += [packed.sampled_slots, packed.token_ids, hidden_rows]
        if shape is not None:
            tokens, sampled, padding = shape.num_tokens, shape.num_sequences, self._feed.padding_slot
            fills = [(tokens, padding), (tokens, 0), (sampled, 0), (sampled, padding), (tokens, 0), (sampled, 0)]
            arrays = [_padded(array, *fill) for array, fill in zip(arrays, fills, strict=False)]
        self._attention.prepare(packed.attention, shape)
        token_slots, positions, sampled_positions, *rest = self._staging.send(*arrays)
        if not rest:
            return StepInputs(token_slots, positions, token_slots, sampled_positions, None, None)
        return StepInputs(token_slots, positions, rest[0], sampled_positions, rest[1], rest[2])

    def run(self, inputs: StepInputs) -> torch.Tensor:
        """Return the hidden states of the `hidden_rows` of the inputs that were sent last, [N, hidden_size]. All it
        launches depends on their shape alone."""
        token_ids = self._feed.take(inputs.token_slots, inputs.token_ids)
        return self._model.hidden_states(token_ids, inputs.positions, self._attention, inputs.hidden_rows)

    def free_cache(self) -> None:
        """Give the memory of a CPU's KV cache back; its blocks are zeros then."""
        give_back(self._attention.blocks())


def _padded(array: npt.NDArray[Any], size: int, fill: int) -> npt.NDArray[np.int64]:
    padded = np.full(size, fill)
    padded[: len(array)] = array
    return padded
