"""Repetition, presence and frequency penalties: logits lowered for tokens that were there before.

As in vLLM, in this order, for a token that is `count` times in the output:
1. repetition (Keskar et al. 2019, CTRL): when it is in prompt or output, its logit is divided by the penalty where
   positive and multiplied by it otherwise;
2. frequency (OpenAI): less the penalty times `count`;
3. presence (OpenAI): less the penalty when `count` is not 0.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from inflight_engine.execution.memory.staging import upload
from inflight_engine.execution.sampling.slot_tokens import SlotTokens
from inflight_engine.request import SamplingParams
from inflight_engine.scheduling.plan import Slots, SlotStart

IN_PROMPT = 1
IN_OUTPUT = 2
"""Addend of a token's number for each time it is in the output; `IN_PROMPT` is added once if it is in the prompt."""

Counts = npt.NDArray[np.int32]


def is_penalised(sampling: SamplingParams) -> bool:
    return sampling.repetition_penalty != 1 or sampling.presence_penalty != 0 or sampling.frequency_penalty != 0


def met_tokens(start: SlotStart) -> tuple[npt.NDArray[np.int64], Counts]:
    """The tokens that a penalised request has met, its output before a preemption included, each once; and their
    numbers."""
    prompt, output = start.token_ids[: start.num_prompt_tokens], start.token_ids[start.num_prompt_tokens :]
    if start.sampling.repetition_penalty == 1:
        prompt = prompt[:0]  # only that penalty looks at it
    token_ids, place = np.unique(np.concatenate([prompt, output]), return_inverse=True)
    numbers = np.zeros(len(token_ids), np.int32)
    numbers[place[: len(prompt)]] = IN_PROMPT
    np.add.at(numbers, place[len(prompt) :], IN_OUTPUT)
    return token_ids.astype(np.int64), numbers


class Penalties:
    """The tokens that penalised slots have met, and their penalties.

    Args:
        max_num_seqs: number of slots.
    """

    def __init__(self, max_num_seqs: int) -> None:
        self._met = SlotTokens(max_num_seqs, np.int32)
        self._repetition = np.ones(max_num_seqs, np.float32)
        self._presence = np.zeros(max_num_seqs, np.float32)
        self._frequency = np.zeros(max_num_seqs, np.float32)

    def start(self, start: SlotStart) -> None:
        """Count a penalised request's tokens."""
        slot, sampling = start.slot, start.sampling
        self._repetition[slot] = sampling.repetition_penalty
        self._presence[slot] = sampling.presence_penalty
        self._frequency[slot] = sampling.frequency_penalty
        self._met.set(slot, *met_tokens(start))

    def release(self, slot: int) -> None:
        self._met.remove(slot)
        self._repetition[slot], self._presence[slot], self._frequency[slot] = 1, 0, 0

    def apply(self, logits: torch.Tensor, slots: Slots) -> None:
        """Lower a batch's logits in place; rows of slots without penalties are not touched.

        Args:
            logits: float32 [N, vocab_size]. slots: [N].
        """

        def tensor(array: npt.NDArray[np.generic]) -> torch.Tensor:
            return upload(array, logits.device)

        met = self._met.select(slots)
        where = tensor(met.rows * logits.shape[1] + met.token_ids)
        lowered = logits.take(where)
        # What no slot of the batch asks for is left out: dividing by 1 or taking 0 away changes no logit.
        repetition, frequency, presence = self._repetition[slots], self._frequency[slots], self._presence[slots]
        if (repetition != 1).any():
            penalty = tensor(repetition[met.rows])
            # Of each logit one part is 0. Choosing by sign instead was measured to take five times as long on CPU.
            negative = lowered.clamp(max=0) * penalty
            lowered.clamp_(min=0).div_(penalty).add_(negative)
        counts = met.values // IN_OUTPUT
        if frequency.any():
            lowered -= tensor(frequency[met.rows] * counts.astype(np.float32))
        if presence.any():
            lowered -= tensor(presence[met.rows] * (counts > 0).astype(np.float32))
        logits.put_(where, lowered)

    def append(self, slots: Slots, token_ids: npt.NDArray[np.integer]) -> None:
        """Count what was sampled for some penalised slots."""
        self._met.add(slots, token_ids, IN_OUTPUT)
