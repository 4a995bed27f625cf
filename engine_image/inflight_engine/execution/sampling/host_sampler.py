"""Sampling on a CPU: each part works on the rows that ask for it; a batch in which none does is one argmax."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from inflight_engine.execution.memory.staging import upload
from inflight_engine.execution.sampling.draws import DrawBatch, argmax, draw
from inflight_engine.execution.sampling.logprobs import LogprobRequests, Reported
from inflight_engine.execution.sampling.min_tokens import Biases, MinTokens
from inflight_engine.execution.sampling.penalties import Penalties, is_penalised
from inflight_engine.execution.sampling.slot_tokens import SlotTokens
from inflight_engine.scheduling.plan import Slots, SlotStart, StepPlan

_DRAWN, _BIASED, _PENALISED = 1, 2, 4
"""Bits for the parts of sampling beyond the likeliest token that a slot asks for."""


class HostSampler:
    """A `Sampler`.

    Args:
        max_num_seqs: number of slots.
    """

    def __init__(self, max_num_seqs: int) -> None:
        num_slots = max_num_seqs + 1  # the last is that of padding
        self._asks = np.zeros(num_slots, np.uint8)
        self._asked = 0
        """Bits of all slots together."""
        self._temperature = np.ones(num_slots, np.float64)
        self._min_p = np.zeros(num_slots, np.float64)
        self._top_k = np.zeros(num_slots, np.int64)
        self._top_p = np.ones(num_slots, np.float64)
        self._seed = np.zeros(num_slots, np.uint64)
        self._biases = SlotTokens(num_slots, np.float32)
        self._penalties = Penalties(num_slots)
        self._min_tokens = MinTokens()
        self._logprobs = LogprobRequests(max_num_seqs)

    @property
    def reports(self) -> bool:
        """See `Sampler`."""
        return self._logprobs.asked

    def apply(self, plan: StepPlan) -> None:
        """See `Sampler`."""
        self._logprobs.apply(plan)
        for slot in plan.releases:
            self._release(slot)
        for start in plan.all_starts:
            # A step that failed half-way may have lost the release.
            self._release(start.slot)
            self._start(start)
        free = self._min_tokens.advance(plan)
        for slot, biases in free.items():
            self._set_biases(slot, biases)
        if not (plan.releases or plan.all_starts or free):
            return
        self._asked = int(np.bitwise_or.reduce(self._asks))

    def choose(self, logits: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """See `Sampler`."""
        if not self._asked:
            return argmax(logits)
        on_host = slots.numpy()
        asks = self._asks[on_host]
        asked = int(np.bitwise_or.reduce(asks))
        if asked & (_BIASED | _PENALISED):
            if self._logprobs.asked:
                logits = logits.clone()
            self._edit(logits, on_host, asked)
        drawn = np.flatnonzero(asks & _DRAWN)
        if not len(drawn):
            return argmax(logits)
        batch = self._draw_batch(on_host[drawn], positions.numpy()[drawn])
        if len(drawn) == len(on_host):
            return draw(logits, batch)
        return argmax(logits).index_copy_(0, torch.from_numpy(drawn), draw(logits, batch, drawn))

    def count(self, slots: torch.Tensor, token_ids: torch.Tensor) -> None:
        """See `Sampler`."""
        if not self._asked & _PENALISED:
            return
        on_host = slots.numpy()
        penalised = np.flatnonzero(self._asks[on_host] & _PENALISED)
        self._penalties.append(on_host[penalised], token_ids.numpy()[penalised])

    def report(self, logits: torch.Tensor, token_ids: torch.Tensor, slots: Slots) -> Reported | None:
        """See `Sampler`."""
        return self._logprobs.report(logits, token_ids, slots)

    def _edit(self, logits: torch.Tensor, slots: Slots, asked: int) -> None:
        if asked & _BIASED:
            biases = self._biases.select(slots)
            index = tuple(upload(ids, logits.device) for ids in (biases.rows, biases.token_ids))
            logits[index] = logits[index] + upload(biases.values, logits.device)
        if asked & _PENALISED:
            self._penalties.apply(logits, slots)

    def _start(self, start: SlotStart) -> None:
        slot, sampling = start.slot, start.sampling
        asks = 0
        if sampling.temperature > 0:
            asks |= _DRAWN
            self._temperature[slot] = sampling.temperature
            self._min_p[slot] = sampling.min_p
            self._top_k[slot] = sampling.top_k
            self._top_p[slot] = sampling.top_p
            self._seed[slot] = sampling.seed & 0xFFFF_FFFF_FFFF_FFFF
        if is_penalised(sampling):
            asks |= _PENALISED
            self._penalties.start(start)
        self._asks[slot] = asks
        self._set_biases(slot, self._min_tokens.start(start))

    def _set_biases(self, slot: int, biases: Biases) -> None:
        if self._asks[slot] & _BIASED:
            self._biases.remove(slot)
            self._asks[slot] ^= _BIASED
        if biases:
            token_ids, values = zip(*biases, strict=True)
            self._biases.set(slot, np.array(token_ids, np.int64), np.array(values, np.float32))
            self._asks[slot] |= _BIASED

    def _release(self, slot: int) -> None:
        asks = int(self._asks[slot])
        if asks & _BIASED:
            self._biases.remove(slot)
        if asks & _PENALISED:
            self._penalties.release(slot)
        self._min_tokens.release(slot)
        self._asks[slot] = 0

    def _draw_batch(self, slots: Slots, positions: npt.NDArray[np.int64]) -> DrawBatch:
        return DrawBatch(
            temperature=self._temperature[slots],
            min_p=self._min_p[slots],
            top_k=self._top_k[slots],
            top_p=self._top_p[slots],
            seed=self._seed[slots],
            position=positions,
        )
