"""Log-probabilities of sampled and of likeliest tokens, for the requests that ask for them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from inflight_engine.output import TokenLogprobs
from inflight_engine.scheduling.plan import Slots


def token_logprobs(
    logprobs: torch.Tensor, token_ids: torch.Tensor, slots: Slots, num_top: npt.NDArray[np.int64]
) -> list[TokenLogprobs]:
    """What to report for some rows. Of equally likely tokens those with smaller ids come first, so that a row's report
    does not depend on the others'.

    Args:
        logprobs: float32 [N, vocab_size], log-softmax of the model's logits.
        token_ids: int64 [N]: what was sampled.
        slots: [N]: whose rows they are.
        num_top: [N]: how many of the likeliest tokens each row reports.
    """
    if not len(slots):
        return []
    sampled = logprobs.gather(-1, token_ids[:, None]).squeeze(-1).tolist()
    top_ids = _likeliest(logprobs, int(num_top.max()))
    top = logprobs.gather(-1, top_ids).tolist()
    return [
        TokenLogprobs(slot, logprob, ids[:count], values[:count])
        for slot, logprob, ids, values, count in zip(
            slots.tolist(), sampled, top_ids.tolist(), top, num_top.tolist(), strict=True
        )
    ]


def _likeliest(logprobs: torch.Tensor, count: int) -> torch.Tensor:
    """int64 [N, count]: token ids by falling log-probability, then by rising id."""
    vocab_size = logprobs.shape[-1]
    if count == 0:
        return torch.empty((len(logprobs), 0), dtype=torch.int64, device=logprobs.device)
    # No log-probability is positive, and the bits of positive floats are ordered as the floats are.
    unlikeliness = logprobs.abs().view(torch.int32).long()
    keys = unlikeliness * vocab_size + torch.arange(vocab_size, device=logprobs.device)
    return keys.topk(min(count, vocab_size), largest=False, sorted=True).values % vocab_size
