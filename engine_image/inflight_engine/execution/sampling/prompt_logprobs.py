"""Log-probabilities of prompt tokens: each from the hidden state of the token before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from inflight_engine.execution.memory.staging import upload
from inflight_engine.execution.sampling.logprobs import gather_logprobs, rows_at_once
from inflight_engine.output import PromptLogprobs


class PromptTensors(NamedTuple):
    """Scores of M prompt tokens on the device. `logprobs`: float32 [M]. `ranks`: int64 [M], see `PromptLogprobs`.
    `top_token_ids`: int64 [M, count], `top`: float32 [M, count], likeliest first."""

    logprobs: torch.Tensor
    ranks: torch.Tensor
    top_token_ids: torch.Tensor
    top: torch.Tensor


class PromptSpan(NamedTuple):
    """Consecutive tokens of one prompt whose log-probabilities are asked for.

    Attributes:
        first: index of the first of them in the prompt.
        num_top: number of likeliest tokens to report with each.
    """

    slot: int
    first: int
    length: int
    num_top: int


def score_prompts(
    logits: Callable[[torch.Tensor], torch.Tensor],
    hidden: torch.Tensor,
    token_ids: npt.NDArray[np.int64],
    count: int,
    vocab_size: int,
) -> PromptTensors:
    """Score tokens by the hidden states of those before them. Rows are taken in slices, so that memory for logits does
    not follow their number.

    Args:
        logits: of a `Model`; a call may overwrite what the one before it returned.
        hidden: [M, hidden_size], at least one.
        token_ids: [M].
        count: number of likeliest tokens to report with each.
    """
    targets, size = upload(token_ids, hidden.device), rows_at_once(vocab_size)
    slices = [_score(logits(hidden[i : i + size]), targets[i : i + size], count) for i in range(0, len(hidden), size)]
    return PromptTensors(*(torch.cat(parts) for parts in zip(*slices, strict=True)))


def prompt_reports(on_host: Sequence[npt.NDArray[Any]], spans: Sequence[PromptSpan]) -> list[PromptLogprobs]:
    """Return the reports of some spans. `on_host`: `PromptTensors` of all their tokens, one span after the other."""
    logprobs, ranks, top_token_ids, top = on_host
    reports, begin = [], 0
    for span in spans:
        rows = slice(begin, begin + span.length)
        begin += span.length
        reports.append(
            PromptLogprobs(
                slot=span.slot,
                first=span.first,
                logprobs=logprobs[rows].tobytes(),
                ranks=ranks[rows].astype(np.int32).tobytes(),
                top_token_ids=top_token_ids[rows, : span.num_top].astype(np.int32).tobytes(),
                top_logprobs=top[rows, : span.num_top].tobytes(),
            )
        )
    return reports


def _score(logits: torch.Tensor, targets: torch.Tensor, count: int) -> PromptTensors:
    scores = gather_logprobs(logits, np.arange(len(targets)), targets, count)
    own = logits.gather(-1, targets[:, None])
    before = torch.arange(logits.shape[-1], device=logits.device) < targets[:, None]
    ranks = 1 + ((logits > own) | ((logits == own) & before)).sum(dim=-1)
    return PromptTensors(scores.sampled, ranks, scores.top_token_ids, scores.top)
