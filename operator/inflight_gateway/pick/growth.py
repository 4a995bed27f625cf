"""Growth of the use of a replica's KV cache while its requests decode.

Answers grow by a token a step and free their blocks when they end, so the use peaks just before one of them ends: the
estimate of Gong et al. 2025, "Past-Future Scheduler for LLM Serving under SLA Guarantees" (ASPLOS), with expected
lengths.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple


class Growing(NamedTuple):
    """A request at a replica. Attributes: left: output tokens that it is expected to generate from now on. held: tokens
    that it has in the KV cache now; it frees both when it ends."""

    left: float
    held: float


class _Peaks(NamedTuple):
    """Growth from now until just before each end.

    Attributes:
        ends: tokens until each request ends, first to last.
        freed: tokens that the first so many to end hold now.
        most_until: largest of the first so many, if another request grows beside them.
        most_after: largest from the one with this place on.
    """

    ends: list[float]
    freed: list[float]
    most_until: list[float]
    most_after: list[float]


class Growth:
    """Growth of the use of one replica's KV cache.

    Args:
        requests: requests at the replica. All of them generate a token in each step.
        weight: requests that each of these stands for: the gateway knows only the requests that it sent.
    """

    def __init__(self, requests: Sequence[Growing], weight: float = 1.0) -> None:
        self._requests = requests
        self._weight = weight

    def fits(self, room: float, prompt_tokens: int, answer_tokens: float) -> bool:
        """Returns whether the use grows by at most `room` tokens. The other arguments are those of `most`."""
        return self._all_left + answer_tokens <= room or self.most(prompt_tokens, answer_tokens) <= room

    def most(self, prompt_tokens: int, answer_tokens: float) -> float:
        """Returns the most tokens by which the use grows if another request starts now, beyond the present use and the
        prompt of that request: O(log n) after the first call.

        Args:
            prompt_tokens: prompt tokens to compute. answer_tokens: tokens to generate.
        """
        peaks = self._peaks
        before = bisect_right(peaks.ends, answer_tokens)
        alive = self._weight * (len(peaks.ends) - before) + 1
        own_end = alive * answer_tokens - peaks.freed[before]
        return max(peaks.most_until[before], own_end, peaks.most_after[before] - prompt_tokens)

    @cached_property
    def _all_left(self) -> float:
        return self._weight * sum(left for left, _ in self._requests)

    @cached_property
    def _peaks(self) -> _Peaks:
        by_end = sorted(self._requests)
        ends = [left for left, _ in by_end]
        freed = list(accumulate((self._weight * held for _, held in by_end), initial=0.0))
        grown = [
            self._weight * (len(ends) - place) * left - freed_before
            for place, (left, freed_before) in enumerate(zip(ends, freed, strict=False))
        ]
        beside = (growth + left for growth, left in zip(grown, ends, strict=True))
        return _Peaks(
            ends,
            freed,
            list(accumulate(beside, max, initial=0.0)),
            list(accumulate(reversed(grown), max, initial=0.0))[::-1],
        )


NO_GROWTH = Growth(())
