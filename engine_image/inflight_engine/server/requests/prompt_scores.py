"""Log-probabilities of one prompt, gathered from the reports of the steps that compute it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from inflight_engine.output import PromptLogprobs


class PromptToken(NamedTuple):
    """A prompt token with its log-probability given the tokens before it, natural logarithm.

    Attributes:
        rank: its place among all tokens by falling log-probability; the likeliest one's is 1.
        top: the likeliest tokens and their log-probabilities, likeliest first.
    """

    token_id: int
    logprob: float
    rank: int
    top: list[tuple[int, float]]


class PromptScores:
    """Log-probabilities of a prompt of P tokens; the first token has none. They are kept by their place in the prompt,
    so a part that a preempted request computes and reports once more changes nothing but, maybe, last bits.

    Args:
        token_ids: [P], at least one.
    """

    def __init__(self, token_ids: Sequence[int]) -> None:
        self.token_ids = token_ids
        size = len(token_ids) - 1
        self._known = np.zeros(size, np.bool_)
        self._logprobs = np.empty(size, np.float32)
        self._ranks = np.empty(size, np.int32)
        # How many likeliest tokens there are with each token, the first report shows.
        self._top_token_ids = np.empty((size, 0), np.int32)
        self._top_logprobs = np.empty((size, 0), np.float32)

    def __len__(self) -> int:
        """P."""
        return len(self.token_ids)

    def add(self, report: PromptLogprobs) -> None:
        """Store the engine's report on some of the tokens."""
        logprobs = np.frombuffer(report.logprobs, "<f4")
        top_token_ids = np.frombuffer(report.top_token_ids, "<i4").reshape(len(logprobs), -1)
        if not self._known.any():
            shape = (len(self._known), top_token_ids.shape[1])
            self._top_token_ids, self._top_logprobs = np.empty(shape, np.int32), np.empty(shape, np.float32)
        rows = slice(report.first - 1, report.first - 1 + len(logprobs))
        self._known[rows] = True
        self._logprobs[rows] = logprobs
        self._ranks[rows] = np.frombuffer(report.ranks, "<i4")
        self._top_token_ids[rows] = top_token_ids
        self._top_logprobs[rows] = np.frombuffer(report.top_logprobs, "<f4").reshape(top_token_ids.shape)

    def after_first(self, num_top: int) -> Iterator[PromptToken]:
        """The second token of the prompt and all after it. `num_top`: at most as many as the engine reports."""
        if not self._known.all():
            raise AssertionError("log-probabilities of prompt tokens are missing")
        columns = zip(
            self.token_ids[1:],
            self._logprobs.tolist(),
            self._ranks.tolist(),
            self._top_token_ids[:, :num_top].tolist(),
            self._top_logprobs[:, :num_top].tolist(),
            strict=True,
        )
        for token_id, logprob, rank, top_token_ids, top_logprobs in columns:
            yield PromptToken(token_id, logprob, rank, list(zip(top_token_ids, top_logprobs, strict=True)))
