"""The interface of sampling, which a runner uses on any device.

The order is that of vLLM's sampler: log-probabilities are the model's own; then come logit_bias, penalties and
min_tokens, which change greedy choices too; then temperature, min_p, top_k and top_p.
"""

from __future__ import annotations

from typing import Protocol

import torch

from inflight_engine.execution.sampling.logprobs import Reported
from inflight_engine.scheduling.plan import Slots, StepPlan


class Sampler(Protocol):
    """Keeps the sampling parameters of all slots and, for penalised slots, the counts of tokens."""

    @property
    def reports(self) -> bool:
        """Some slot asks for log-probabilities."""

    def apply(self, plan: StepPlan) -> None:
        """Apply the starts and releases of a plan, before anything of its step is computed."""

    def choose(self, logits: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Choose one token for each row of logits, without waiting for the device.

        On a GPU, launches and addresses depend on the number of rows alone, so that a CUDA graph can hold them. A row's
        token depends on the row, its slot and its position alone.

        Args:
            logits: float32 [N, vocab_size]. Where no slot asks for log-probabilities, they may be overwritten. Rows of
                padding hold any values, including NaN, and get some token of the vocabulary.
            slots: int64 [N], on the device: each slot once, except `max_num_seqs`, the slot of padding.
            positions: int64 [N], on the device: index of each token in its sequence.

        Returns:
            int64 [N], on the device.
        """

    def count(self, slots: torch.Tensor, token_ids: torch.Tensor) -> None:
        """Count the rows' tokens, for penalties; like `choose`, it can be part of a CUDA graph.

        Args:
            slots: as for `choose`. token_ids: int64 [N]: on all ranks the tokens of rank 0.
        """

    def report(self, logits: torch.Tensor, token_ids: torch.Tensor, slots: Slots) -> Reported | None:
        """Compute log-probabilities for the slots that ask for them; never part of a graph.

        Args:
            logits: the argument of `choose`. token_ids: its result. slots: [N], on the host.

        Returns:
            None: no slot asks.
        """


def make_sampler(max_num_seqs: int, vocab_size: int, device: torch.device) -> Sampler:
    """Make the sampler for a device."""
    if device.type == "cpu":
        from inflight_engine.execution.sampling.host_sampler import HostSampler

        return HostSampler(max_num_seqs)
    from inflight_engine.execution.sampling.device_sampler import DeviceSampler

    return DeviceSampler(max_num_seqs, vocab_size, device)
