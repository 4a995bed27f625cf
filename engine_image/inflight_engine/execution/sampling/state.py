"""How each slot chooses its tokens, and the order in which that happens.

The order is that of vLLM's sampler: log-probabilities are taken of the model's own logits; then come logit_bias,
penalties and min_tokens, which change greedy choices too; then temperature, min_p, top_k and top_p. Each part works on
the rows that ask for it; a batch in which none does is one argmax.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from inflight_engine.execution.memory.staging import upload
from inflight_engine.execution.sampling.draws import DrawBatch, argmax, draw
from inflight_engine.execution.sampling.logit_bias import LogitBias
from inflight_engine.execution.sampling.logprobs import LogprobTensors, gather_logprobs, log_softmax
from inflight_engine.execution.sampling.min_tokens import MinTokens
from inflight_engine.execution.sampling.penalties import Penalties, is_penalised
from inflight_engine.request import TokenIds
from inflight_engine.scheduling.plan import Slots, SlotStart, StepPlan

_DRAWN, _LOGPROBS, _BIASED, _PENALISED, _UNSTOPPED = 1, 2, 4, 8, 16
"""What a slot asks for beyond the likeliest token: bits of a number."""


class Reported(msgspec.Struct, frozen=True, eq=False):
    """Log-probabilities that were asked for: of which slots, and how many likeliest tokens of each."""

    tensors: LogprobTensors
    slots: Slots
    num_top: npt.NDArray[np.int64]


class Choice(msgspec.Struct, frozen=True, eq=False):
    """What was chosen for some slots.

    Attributes:
        token_ids: int64 [N], on the device.
        needs_tokens: what is chosen next for these slots depends on it: the host has to learn the tokens through
            `learn` before the next `choose` or `apply`.
    """

    token_ids: torch.Tensor
    reported: Reported | None
    needs_tokens: bool


class SamplingState:
    """The sampling parameters of all slots, and what the penalised ones have generated.

    Args:
        max_num_seqs: number of slots.
    """

    def __init__(self, max_num_seqs: int) -> None:
        self._asks = np.zeros(max_num_seqs, np.uint8)
        self._asked_of: Slots | None = None
        self._asked = 0
        """What those slots ask for, all together; the same array object in steady decode."""
        self._temperature = np.ones(max_num_seqs, np.float64)
        self._min_p = np.zeros(max_num_seqs, np.float64)
        self._top_k = np.zeros(max_num_seqs, np.int64)
        self._top_p = np.ones(max_num_seqs, np.float64)
        self._seed = np.zeros(max_num_seqs, np.uint64)
        self._num_top_logprobs = np.zeros(max_num_seqs, np.int64)
        self._bias = LogitBias(max_num_seqs)
        self._penalties = Penalties(max_num_seqs)
        self._min_tokens = MinTokens()

    def apply(self, plan: StepPlan) -> None:
        """Forget the slots that the plan releases, and learn those that it starts."""
        for slot in plan.releases:
            self._release(slot)
        for start in plan.starts:
            # A step that failed half-way may have lost the release.
            self._release(start.slot)
            self._start(start)

    def choose(
        self,
        logits: torch.Tensor,
        slots: Slots,
        positions: npt.NDArray[np.int64],
        likeliest: torch.Tensor | None = None,
    ) -> Choice:
        """Choose one token for each of some slots; nothing of it waits for the device.

        Args:
            logits: float32 [N, vocab_size]; overwritten.
            slots: [N], no slot twice.
            positions: [N]: index of each token in its sequence.
            likeliest: int64 [N]: `argmax(logits)`, where it is there already; the result when nobody asks for more.
        """
        if slots is not self._asked_of:
            self._asked_of, self._asked = slots, int(np.bitwise_or.reduce(self._asks[slots]))
        asked = self._asked
        if not asked:
            return Choice(argmax(logits) if likeliest is None else likeliest, None, needs_tokens=False)
        asks = self._asks[slots]
        needs_tokens = bool(asked & _PENALISED)
        reported = np.flatnonzero(asks & _LOGPROBS)
        logprobs = log_softmax(logits, reported) if asked & _LOGPROBS else None
        if asked & _BIASED:
            self._bias.apply(logits, slots)
        if asked & _PENALISED:
            self._penalties.apply(logits, slots)
        if asked & _UNSTOPPED:
            for slot in self._min_tokens.apply(logits, slots, positions):
                self._let_stop(slot)
        if likeliest is None or asked & (_BIASED | _PENALISED | _UNSTOPPED):
            likeliest = argmax(logits)
        chosen = likeliest
        if asked & _DRAWN:
            drawn = np.flatnonzero(asks & _DRAWN)
            batch = self._draw_batch(slots[drawn], positions[drawn])
            if len(drawn) == len(slots):
                chosen = draw(logits, batch)
            else:
                chosen = likeliest.index_copy(0, upload(drawn, logits.device), draw(logits, batch, drawn))
        if logprobs is None:
            return Choice(chosen, None, needs_tokens)
        whose = slots[reported]
        num_top = self._num_top_logprobs[whose]
        sampled = chosen[upload(reported, logits.device)]
        tensors = gather_logprobs(logprobs, sampled, int(num_top.max()))
        return Choice(chosen, Reported(tensors, whose, num_top), needs_tokens)

    def learn(self, slots: Slots, token_ids: TokenIds) -> None:
        """What was chosen; those whose penalties count it, do."""
        penalised = np.flatnonzero(self._asks[slots] & _PENALISED)
        self._penalties.append(slots[penalised], token_ids[penalised])

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
        if sampling.logprobs is not None:
            asks |= _LOGPROBS
            self._num_top_logprobs[slot] = sampling.logprobs
        if sampling.logit_bias:
            asks |= _BIASED
            self._bias.start(slot, sampling.logit_bias)
        if is_penalised(sampling):
            asks |= _PENALISED
            self._penalties.start(start)
        if sampling.min_tokens and sampling.stop_token_ids:
            asks |= _UNSTOPPED
            self._min_tokens.start(start)
        self._asks[slot], self._asked_of = asks, None

    def _let_stop(self, slot: int) -> None:
        self._min_tokens.release(slot)
        self._asks[slot] ^= _UNSTOPPED
        self._asked_of = None

    def _release(self, slot: int) -> None:
        asks = int(self._asks[slot])
        if asks & _BIASED:
            self._bias.release(slot)
        if asks & _PENALISED:
            self._penalties.release(slot)
        if asks & _UNSTOPPED:
            self._min_tokens.release(slot)
        self._asks[slot], self._asked_of = 0, None

    def _draw_batch(self, slots: Slots, positions: npt.NDArray[np.int64]) -> DrawBatch:
        return DrawBatch(
            temperature=self._temperature[slots],
            min_p=self._min_p[slots],
            top_k=self._top_k[slots],
            top_p=self._top_p[slots],
            seed=self._seed[slots],
            position=positions,
        )
