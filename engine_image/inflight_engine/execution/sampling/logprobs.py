"""Log-probabilities of sampled and of likeliest tokens, for the requests that ask for them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from inflight_engine.execution.memory.staging import upload
from inflight_engine.native import sample as native
from inflight_engine.output import TokenLogprobs
from inflight_engine.scheduling.plan import Slots


class LogprobTensors(NamedTuple):
    """On the device, for N rows: `sampled`: float32 [N]. `top_token_ids`: int64 [N, count], `top`: float32 [N, count],
    likeliest first."""

    sampled: torch.Tensor
    top_token_ids: torch.Tensor
    top: torch.Tensor


def gather_logprobs(logprobs: torch.Tensor, token_ids: torch.Tensor, count: int) -> LogprobTensors:
    """What may be reported for some rows. Of equally likely tokens those with smaller ids come first, so that a row's
    report does not depend on the others'.

    Args:
        logprobs: float32 [N, vocab_size], log-softmax of the model's logits.
        token_ids: int64 [N]: what was sampled.
        count: how many of the likeliest tokens.
    """
    sampled = logprobs.gather(-1, token_ids[:, None]).squeeze(-1)
    top_token_ids = _likeliest(logprobs, count)
    return LogprobTensors(sampled, top_token_ids, logprobs.gather(-1, top_token_ids))


def log_softmax(logits: torch.Tensor, rows: npt.NDArray[np.int64]) -> torch.Tensor:
    """float32 [N, vocab_size]: the log-probabilities of some rows of logits."""
    if native.can_sample(logits):
        return native.log_softmax(logits, rows)
    return logits[upload(rows, logits.device)].log_softmax(dim=-1)


def token_logprobs(
    sampled: npt.NDArray[np.float32],
    top_token_ids: npt.NDArray[np.int64],
    top: npt.NDArray[np.float32],
    slots: Slots,
    num_top: npt.NDArray[np.int64],
) -> list[TokenLogprobs]:
    """The reports of some rows.

    Args:
        sampled, top_token_ids, top: `LogprobTensors`, on the host.
        slots: [N]: whose rows they are.
        num_top: [N]: how many of the likeliest tokens each row reports.
    """
    return [
        TokenLogprobs(slot, logprob, ids[:count], values[:count])
        for slot, logprob, ids, values, count in zip(
            slots.tolist(), sampled.tolist(), top_token_ids.tolist(), top.tolist(), num_top.tolist(), strict=True
        )
    ]


def _likeliest(logprobs: torch.Tensor, count: int) -> torch.Tensor:
    """int64 [N, count]: token ids by falling log-probability, then by rising id."""
    vocab_size = logprobs.shape[-1]
    if count == 0:
        return torch.empty((len(logprobs), 0), dtype=torch.int64, device=logprobs.device)
    if native.can_sample(logprobs):
        return native.likeliest(logprobs, min(count, vocab_size))
    # No log-probability is positive, and the bits of positive floats are ordered as the floats are.
    unlikeliness = logprobs.abs().view(torch.int32).long()
    keys = unlikeliness * vocab_size + torch.arange(vocab_size, device=logprobs.device)
    return keys.topk(min(count, vocab_size), largest=False, sorted=True).values % vocab_size
