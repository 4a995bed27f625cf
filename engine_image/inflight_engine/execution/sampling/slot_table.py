"""The sampling parameters of each slot on the device, at addresses that are the same in every step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from inflight_engine.execution.memory.staging import upload
from inflight_engine.execution.sampling.min_tokens import Biases, MinTokens
from inflight_engine.execution.sampling.penalties import Counts, is_penalised, met_tokens
from inflight_engine.request import MAX_LOGIT_BIAS, SamplingParams
from inflight_engine.scheduling.plan import SlotStart, StepPlan

TEMPERATURE, MIN_P, TOP_P, REPETITION, PRESENCE, FREQUENCY = range(6)
"""Columns of `SlotTable.numbers`."""
SEED, TOP_K, NUM_BIASES = range(3)
"""Columns of `SlotTable.integers`."""
MOST_BIASES = MAX_LOGIT_BIAS + 256
"""Maximum number of biases of a slot: the request's own, and one a stop token while it has fewer than `min_tokens`."""
MOST_MET = 2**15 - 2
"""Maximum of a token's number: a token that is in the output more often than half of this counts as half of it."""


class SlotTable:
    """S slots: those of requests, and a last one for padding, which stays greedy.

    Args:
        max_num_seqs: S - 1.

    Attributes:
        numbers: float64 [S, 6]: temperature (0: greedy), min_p, top_p, repetition, presence and frequency penalty.
        integers: int64 [S, 3]: seed; top_k, `vocab_size` where all are kept; number of biased tokens.
        bias_tokens, bias_values: int32 and float32 [S, MOST_BIASES]: as many as there are biased tokens.
        met: int16 [S, vocab_size]: for penalised slots, a token's number as in `Penalties`, at most `MOST_MET`.
    """

    def __init__(self, max_num_seqs: int, vocab_size: int, device: torch.device) -> None:
        num_slots = max_num_seqs + 1
        self.vocab_size = vocab_size
        self.numbers = torch.empty((num_slots, 6), dtype=torch.float64, device=device)
        self.numbers[:] = torch.tensor(_numbers(SamplingParams(1)), dtype=torch.float64)
        self.integers = torch.zeros((num_slots, 3), dtype=torch.int64, device=device)
        self.integers[:, TOP_K] = vocab_size
        self.bias_tokens = torch.zeros((num_slots, MOST_BIASES), dtype=torch.int32, device=device)
        self.bias_values = torch.zeros((num_slots, MOST_BIASES), dtype=torch.float32, device=device)
        self.met = torch.zeros((num_slots, vocab_size), dtype=torch.int16, device=device)
        self._min_tokens = MinTokens()

    def apply(self, plan: StepPlan) -> None:
        """Slots choose as their requests ask from this plan on; in the order of the device's stream, so what a step in
        flight still counts for the request before is forgotten."""
        for slot in plan.releases:
            self._min_tokens.release(slot)
        self._start(plan.all_starts)
        for slot, biases in self._min_tokens.advance(plan).items():
            self._set_biases(slot, biases)

    def _start(self, starts: Sequence[SlotStart]) -> None:
        if not starts:
            return
        device = self.numbers.device
        slots = upload(np.array([start.slot for start in starts]), device)
        numbers = np.array([_numbers(start.sampling) for start in starts], np.float64)
        integers = np.array([self._integers(start.sampling) for start in starts], np.int64)
        self.numbers.index_copy_(0, slots, upload(numbers, device))
        self.integers.index_copy_(0, slots, upload(integers, device))
        for start in starts:
            slot = start.slot
            self._min_tokens.release(slot)
            biases = self._min_tokens.start(start)
            if biases:
                self._set_biases(slot, biases)
            if is_penalised(start.sampling):
                met = self.met[slot].zero_()
                token_ids, counts = met_tokens(start)
                met.index_copy_(0, upload(token_ids, device), upload(_as_int16(counts), device))

    def _integers(self, sampling: SamplingParams) -> tuple[int, int, int]:
        top_k = min(sampling.top_k or self.vocab_size, self.vocab_size)
        return _as_int64(sampling.seed), top_k, 0

    def _set_biases(self, slot: int, biases: Biases) -> None:
        device = self.numbers.device
        if biases:
            token_ids, values = zip(*biases, strict=True)
            self.bias_tokens[slot, : len(biases)] = upload(np.array(token_ids, np.int32), device)
            self.bias_values[slot, : len(biases)] = upload(np.array(values, np.float32), device)
        self.integers[slot, NUM_BIASES] = len(biases)


def _numbers(sampling: SamplingParams) -> tuple[float, ...]:
    return (
        sampling.temperature,
        sampling.min_p,
        sampling.top_p,
        sampling.repetition_penalty,
        sampling.presence_penalty,
        sampling.frequency_penalty,
    )


def _as_int64(seed: int) -> int:
    """Return the low 64 bits as a signed number, which torch's int64 holds."""
    return (seed + 2**63) % 2**64 - 2**63


def _as_int16(counts: Counts) -> npt.NDArray[np.int16]:
    bounded: npt.NDArray[np.int16] = np.minimum(counts, MOST_MET + (counts & 1)).astype(np.int16)
    return bounded
