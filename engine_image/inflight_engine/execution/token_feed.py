"""Sampled tokens feed the next step where they are: on the device, one for each slot."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from inflight_engine.execution.memory.staging import upload
from inflight_engine.execution.sampling.sampler import Sampler
from inflight_engine.models.parallel import ALONE, Parallel
from inflight_engine.scheduling.plan import SlotStart


class TokenFeed:
    """The last token of each slot, which its next decode computes.

    Everything here runs in the order of the device's stream. So a token that a step samples for a slot is there for the
    next step, and what a slot starts with outlasts a late token of the request that had the slot before.

    Args:
        max_num_seqs: number of slots.
        parallel: sampled tokens are those of rank 0, on all ranks.

    Attributes:
        padding_slot: one more, for padded rows.
    """

    def __init__(self, max_num_seqs: int, device: torch.device, parallel: Parallel = ALONE) -> None:
        self._parallel = parallel
        self.padding_slot = max_num_seqs
        self._device = device
        self._last_token = torch.zeros(max_num_seqs + 1, dtype=torch.int64, device=device)
        # numpy moves a few numbers in half of torch's time
        self._host = self._last_token.numpy() if device.type == "cpu" else None

    def start(self, starts: Sequence[SlotStart]) -> None:
        """Slots begin with the last of the tokens that they are given."""
        if starts:
            known = np.array([(start.slot, start.token_ids[-1]) for start in starts], np.int64)
            slots, token_ids = upload(known.T.copy(), self._device)
            self._last_token.index_copy_(0, slots, token_ids)

    def take(self, slots: torch.Tensor, known: torch.Tensor | None = None) -> torch.Tensor:
        """Return the tokens of a step, int64 [n]: each slot's last, unless `known` (int64 [n]) has it and not -1."""
        if self._host is None:
            last = self._last_token.index_select(0, slots)
            return last if known is None else torch.where(known < 0, last, known)
        last_on_host = self._host[slots.numpy()]
        if known is not None:
            last_on_host = np.where(known.numpy() < 0, last_on_host, known.numpy())
        return torch.from_numpy(last_on_host)

    def put(self, slots: torch.Tensor, token_ids: torch.Tensor) -> None:
        """Store the sampled tokens. Both are int64 [n]; no slot is there twice, but the padding's."""
        token_ids = self._parallel.broadcast(token_ids)
        if self._host is None:
            self._last_token.index_copy_(0, slots, token_ids)
        else:
            self._host[slots.numpy()] = token_ids.numpy()


def choose_and_feed(
    sampler: Sampler, feed: TokenFeed, logits: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    """Choose the tokens of a step, int64 [N], the same on all ranks, feed them to the next step and count them for it.
    Arguments as for `Sampler.choose`.

    Raises:
        torch.OutOfMemoryError: before anything is fed or counted; the step can be computed again.
        MemoryError: later.
    """
    token_ids = sampler.choose(logits, slots, positions)
    try:
        feed.put(slots, token_ids)
        sampler.count(slots, token_ids)
    except torch.OutOfMemoryError as error:
        raise MemoryError(f"no memory to take in sampled tokens: {error}") from error
    return token_ids
