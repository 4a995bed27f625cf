"""Log-probabilities of sampled and of likeliest tokens, for the requests that ask for them."""

from __future__ import annotations

import logging
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from inflight_engine.execution.memory.staging import upload
from inflight_engine.native import sample as native
from inflight_engine.output import TokenLogprobs
from inflight_engine.scheduling.plan import Slots, StepPlan

log = logging.getLogger(__name__)

_CHUNK_BYTES = 64 << 20
"""Maximum bytes of the intermediate results of one chunk of rows."""
_BYTES_PER_LOGIT = 24
"""Bytes of intermediate results for each logit: a log-softmax and its magnitude in float32, and two arrays of int64."""


class LogprobTensors(NamedTuple):
    """Log-probabilities of N rows on the device. `sampled`: float32 [N]. `top_token_ids`: int64 [N, count], `top`:
    float32 [N, count], likeliest first."""

    sampled: torch.Tensor
    top_token_ids: torch.Tensor
    top: torch.Tensor


Named = npt.NDArray[np.int64]
"""Tokens whose log-probabilities are asked for by id, [N, count]; -1: the likeliest token of that place is."""


class Reported(msgspec.Struct, frozen=True, eq=False):
    """Log-probabilities that were asked for: of which slots, and of how many tokens each. `tensors`: None where the
    device had no memory for them."""

    tensors: LogprobTensors | None
    slots: Slots
    num_top: npt.NDArray[np.int64]


class LogprobRequests:
    """The slots that ask for log-probabilities.

    Args:
        max_num_seqs: number of slots.
    """

    def __init__(self, max_num_seqs: int) -> None:
        self._num_top = np.full(max_num_seqs, -1, np.int64)
        """Tokens to report with each sampled one; -1: the slot asks for nothing."""
        self._named: dict[int, npt.NDArray[np.int64]] = {}
        """`logprob_token_ids` of the slots that name these tokens; of others they are the likeliest."""
        self.asked = False
        """True while any slot asks."""

    def apply(self, plan: StepPlan) -> None:
        """Forget the slots that the plan releases, and learn those that it starts."""
        if not (plan.releases or plan.starts):
            return
        self._num_top[list(plan.releases)] = -1
        for start in plan.starts:
            count, named = start.sampling.logprobs, start.sampling.logprob_token_ids
            self._num_top[start.slot] = -1 if count is None else len(named) or count
            self._named.pop(start.slot, None)
            if named:
                self._named[start.slot] = np.array(named, np.int64)
        self.asked = bool((self._num_top >= 0).any())

    def report(self, logits: torch.Tensor, token_ids: torch.Tensor, slots: Slots) -> Reported | None:
        """See `Sampler.report`."""
        if not self.asked:
            return None
        num_top = self._num_top[slots]
        rows = np.flatnonzero(num_top >= 0)
        if not len(rows):
            return None
        num_top = num_top[rows]
        tensors = None
        try:
            tensors = gather_logprobs(logits, rows, token_ids, int(num_top.max()), self._named_in(slots[rows]))
        except torch.OutOfMemoryError:
            log.exception("no memory for log-probabilities; the %d requests that ask for them fail", len(rows))
        return Reported(tensors, slots[rows], num_top)

    def _named_in(self, slots: Slots) -> Named | None:
        """The named tokens of some slots' rows."""
        if self._named.keys().isdisjoint(slots.tolist()):
            return None
        named: Named = np.full((len(slots), int(self._num_top[slots].max())), -1, np.int64)
        for row, slot in enumerate(slots.tolist()):
            token_ids = self._named.get(slot)
            if token_ids is not None:
                named[row, : len(token_ids)] = token_ids
        return named


def rows_at_once(vocab_size: int) -> int:
    """Return the number of rows of logits in one chunk."""
    return max(1, _CHUNK_BYTES // (_BYTES_PER_LOGIT * vocab_size))


def gather_logprobs(
    logits: torch.Tensor, rows: npt.NDArray[np.int64], token_ids: torch.Tensor, count: int, named: Named | None = None
) -> LogprobTensors:
    """Compute the log-probabilities of some rows. Equally likely tokens come in the order of their ids, so that a row's
    report does not depend on the others'. Rows are taken in chunks, so that memory does not follow their number.

    Args:
        logits: float32 [M, vocab_size], the model's.
        rows: [N], at least one.
        token_ids: int64 [M]: the sampled tokens.
        count: number of likeliest tokens.
        named: tokens to report in their place; None: none.
    """
    size = rows_at_once(logits.shape[1])
    chunks = [
        _gather(logits, rows[i : i + size], token_ids, count, None if named is None else named[i : i + size])
        for i in range(0, len(rows), size)
    ]
    if len(chunks) == 1:
        return chunks[0]
    return LogprobTensors(*(torch.cat(parts) for parts in zip(*chunks, strict=True)))


def _gather(
    logits: torch.Tensor, rows: npt.NDArray[np.int64], token_ids: torch.Tensor, count: int, named: Named | None
) -> LogprobTensors:
    index = upload(rows, logits.device)
    logprobs = native.log_softmax(logits, rows) if native.can_sample(logits) else logits[index].log_softmax(dim=-1)
    sampled = logprobs.gather(-1, token_ids[index][:, None]).squeeze(-1)
    top_token_ids = _likeliest(logprobs, count)
    if named is not None:
        asked = upload(named[:, : top_token_ids.shape[1]], logits.device)
        top_token_ids = torch.where(asked >= 0, asked, top_token_ids)
    return LogprobTensors(sampled, top_token_ids, logprobs.gather(-1, top_token_ids))


def token_logprobs(
    sampled: npt.NDArray[np.float32],
    top_token_ids: npt.NDArray[np.int64],
    top: npt.NDArray[np.float32],
    slots: Slots,
    num_top: npt.NDArray[np.int64],
) -> list[TokenLogprobs]:
    """Return the reports of some rows.

    Args:
        sampled, top_token_ids, top: `LogprobTensors`, on the host.
        slots: [N]: slots of the rows.
        num_top: [N]: number of likeliest tokens that each row reports.
    """
    return [
        TokenLogprobs(slot, logprob, ids[:count], values[:count])
        for slot, logprob, ids, values, count in zip(
            slots.tolist(), sampled.tolist(), top_token_ids.tolist(), top.tolist(), num_top.tolist(), strict=True
        )
    ]


def _likeliest(logprobs: torch.Tensor, count: int) -> torch.Tensor:
    """Return token ids by falling log-probability, then by rising id, int64 [N, count]."""
    vocab_size = logprobs.shape[-1]
    if count == 0:
        return torch.empty((len(logprobs), 0), dtype=torch.int64, device=logprobs.device)
    if native.can_sample(logprobs):
        return native.likeliest(logprobs, min(count, vocab_size))
    # No log-probability is positive, and the bits of positive floats are ordered as the floats are.
    keys = logprobs.abs().view(torch.int32).long()
    keys *= vocab_size
    keys += torch.arange(vocab_size, device=logprobs.device)
    return keys.topk(min(count, vocab_size), largest=False, sorted=True).values % vocab_size
