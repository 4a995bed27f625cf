"""What a runner needs of sampling, on any device.

The order is that of vLLM's sampler: log-probabilities are the model's own; then come logit_bias, penalties and
min_tokens, which change greedy choices too; then temperature, min_p, top_k and top_p.
"""

from __future__ import annotations

from typing import Protocol

import torch

from inflight_engine.execution.sampling.logprobs import Reported
from inflight_engine.scheduling.plan import Slots, StepPlan


class Sampler(Protocol):
    """The sampling parameters of all slots, and the tokens that the penalised ones have met."""

    def apply(self, plan: StepPlan) -> None:
        """Take in what the plan starts and releases, before anything of its step is computed."""
        ...

    def choose(self, logits: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Choose one token for each row of logits; nothing of it waits for the device.

        On a GPU all that is launched, and where it reads and writes, follows from the number of rows, so that it can be
        part of a CUDA graph. A row's token follows from the row, its slot and its position alone.

        Args:
            logits: float32 [N, vocab_size]. Where no slot asks for log-probabilities, they may be overwritten. Rows of
                padding hold anything, NaN too, and get some token of the vocabulary.
            slots: int64 [N], on the device: no slot twice, but `max_num_seqs`, which is that of padding.
            positions: int64 [N], on the device: index of each token in its sequence.

        Returns:
            int64 [N], on the device.
        """
        ...

    def count(self, slots: torch.Tensor, token_ids: torch.Tensor) -> None:
        """What has become of the rows, for penalties to come; as `choose`, it can be part of a CUDA graph.

        Args:
            slots: as for `choose`. token_ids: int64 [N]: on all ranks those of rank 0.
        """
        ...

    def report(self, logits: torch.Tensor, token_ids: torch.Tensor, slots: Slots) -> Reported | None:
        """Log-probabilities for those of some slots that ask for them; never part of a graph.

        Args:
            logits: those that were given to `choose`. token_ids: what it has chosen. slots: [N], on the host.

        Returns:
            None: no slot asks.
        """
        ...


def make_sampler(max_num_seqs: int, vocab_size: int, device: torch.device) -> Sampler:
    """The sampler of a device."""
    if device.type == "cpu":
        from inflight_engine.execution.sampling.host_sampler import HostSampler

        return HostSampler(max_num_seqs)
    from inflight_engine.execution.sampling.device_sampler import DeviceSampler

    return DeviceSampler(max_num_seqs, vocab_size, device)
