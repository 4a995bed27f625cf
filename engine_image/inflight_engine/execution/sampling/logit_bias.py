"""`logit_bias`: values that requests add to the logits of certain tokens."""

from __future__ import annotations

import numpy as np
import torch

from inflight_engine.execution.memory.staging import upload
from inflight_engine.execution.sampling.slot_tokens import SlotTokens
from inflight_engine.scheduling.plan import Slots


class LogitBias:
    """The biases of all slots that have any.

    Args:
        max_num_seqs: number of slots.
    """

    def __init__(self, max_num_seqs: int) -> None:
        self._biases = SlotTokens(max_num_seqs, np.float32)

    def start(self, slot: int, logit_bias: tuple[tuple[int, float], ...]) -> None:
        """`logit_bias`: (token id, what to add), each token once."""
        token_ids, values = zip(*logit_bias, strict=True)
        self._biases.set(slot, np.array(token_ids, np.int64), np.array(values, np.float32))

    def release(self, slot: int) -> None:
        self._biases.remove(slot)

    def apply(self, logits: torch.Tensor, slots: Slots) -> None:
        """Change a batch's logits in place.

        Args:
            logits: float32 [N, vocab_size]. slots: [N].
        """
        biases = self._biases.select(slots)
        index = tuple(upload(ids, logits.device) for ids in (biases.rows, biases.token_ids))
        logits[index] = logits[index] + upload(biases.values, logits.device)
