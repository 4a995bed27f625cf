"""Sampling on a GPU: before a step runs, all that it reads lies in the device's memory, slot by slot."""

from __future__ import annotations

import torch

from inflight_engine.execution.sampling import gumbel_triton
from inflight_engine.execution.sampling.logprobs import LogprobRequests, Reported
from inflight_engine.execution.sampling.slot_table import SlotTable
from inflight_engine.scheduling.plan import Slots, StepPlan


class DeviceSampler:
    """Samples by Triton kernels, as a `Sampler`. The logits are not overwritten.

    Args:
        max_num_seqs: number of slots.
    """

    def __init__(self, max_num_seqs: int, vocab_size: int, device: torch.device) -> None:
        self._table = SlotTable(max_num_seqs, vocab_size, device)
        self._logprobs = LogprobRequests(max_num_seqs)

    @property
    def reports(self) -> bool:
        """See `Sampler`."""
        return self._logprobs.asked

    def apply(self, plan: StepPlan) -> None:
        """See `Sampler`. The values of a released slot are never read: no step has a row for it before its next start,
        which replaces them."""
        self._logprobs.apply(plan)
        self._table.apply(plan)

    def choose(self, logits: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """See `Sampler`."""
        return gumbel_triton.choose(logits, slots, positions, self._table)

    def count(self, slots: torch.Tensor, token_ids: torch.Tensor) -> None:
        """See `Sampler`."""
        gumbel_triton.count(slots, token_ids, self._table)

    def report(self, logits: torch.Tensor, token_ids: torch.Tensor, slots: Slots) -> Reported | None:
        """See `Sampler`."""
        return self._logprobs.report(logits, token_ids, slots)
