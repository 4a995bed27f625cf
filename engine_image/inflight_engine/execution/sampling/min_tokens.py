"""`min_tokens`: until a request has so many tokens, none that would end it is chosen."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from inflight_engine.execution.memory.staging import upload
from inflight_engine.scheduling.plan import Slots, SlotStart


class MinTokens:
    """The slots that may not stop yet: their stop tokens, and the position in the sequence from which they may."""

    def __init__(self) -> None:
        self._stops: dict[int, npt.NDArray[np.int64]] = {}
        self._from: dict[int, int] = {}

    def start(self, start: SlotStart) -> None:
        """A request with `min_tokens` and stop tokens."""
        self._stops[start.slot] = np.array(start.sampling.stop_token_ids, np.int64)
        self._from[start.slot] = start.num_prompt_tokens + start.sampling.min_tokens

    def release(self, slot: int) -> None:
        del self._stops[slot], self._from[slot]

    def apply(self, logits: torch.Tensor, slots: Slots, positions: npt.NDArray[np.int64]) -> list[int]:
        """Make stop tokens impossible, in place, for the slots that may not stop yet.

        Args:
            logits: float32 [N, vocab_size]. slots: [N].
            positions: [N]: index of each token in its sequence.

        Returns:
            The slots that may stop.
        """
        masked, free = [], []
        for row, (slot, position) in enumerate(zip(slots.tolist(), positions.tolist(), strict=True)):
            if slot not in self._stops:
                continue
            if position < self._from[slot]:
                masked.append(row * logits.shape[1] + self._stops[slot])
            else:
                free.append(slot)
        if masked:
            where = upload(np.concatenate(masked), logits.device)
            logits.put_(where, torch.full(where.shape, -torch.inf, device=logits.device))
        return free
