"""Sampling on a GPU: all that a step reads is there, slot by slot, before it runs."""

from __future__ import annotations

import importlib.util

import torch

from inflight_engine.execution.sampling import gumbel
from inflight_engine.execution.sampling.logprobs import LogprobRequests, Reported
from inflight_engine.execution.sampling.slot_table import SlotTable
from inflight_engine.scheduling.plan import Slots, StepPlan


class DeviceSampler:
    """A `Sampler`. The logits stay as they are.

    Args:
        max_num_seqs: number of slots.
    """

    def __init__(self, max_num_seqs: int, vocab_size: int, device: torch.device) -> None:
        self._table = SlotTable(max_num_seqs, vocab_size, device)
        self._logprobs = LogprobRequests(max_num_seqs)
        self._choose, self._count = gumbel.choose, gumbel.count
        if device.type == "cuda" and importlib.util.find_spec("triton") is not None:
            from inflight_engine.execution.sampling import gumbel_triton  # imports Triton: a second

            self._choose, self._count = gumbel_triton.choose, gumbel_triton.count

    def apply(self, plan: StepPlan) -> None:
        """See `Sampler`. What a released slot leaves behind is never read: no step has a row for it before its next
        start, which replaces all."""
        self._logprobs.apply(plan)
        self._table.apply(plan)

    def choose(self, logits: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """See `Sampler`."""
        return self._choose(logits, slots, positions, self._table)

    def count(self, slots: torch.Tensor, token_ids: torch.Tensor) -> None:
        """See `Sampler`."""
        self._count(slots, token_ids, self._table)

    def report(self, logits: torch.Tensor, token_ids: torch.Tensor, slots: Slots) -> Reported | None:
        """See `Sampler`."""
        return self._logprobs.report(logits, token_ids, slots)
