"""Growth of the use of a replica's KV cache while its requests decode.

Answers grow by a token a step and free their blocks when they end, so the use peaks just before one of them ends: the
estimate of Gong et al. 2025, "Past-Future Scheduler for LLM Serving under SLA Guarantees" (ASPLOS), with expected
lengths.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate
from typing import NamedTuple


class Growing(NamedTuple):
    """A request at a replica. Attributes: left: output tokens that it is expected to generate from now on. held: tokens
    in the KV cache now, which it frees with them when it ends."""

    left: float
    held: float


class Growth:
    """
    Args:
        requests: at the replica. All of them generate a token in each step.
        weight: requests that each of these stands for: the gateway knows only those that it sent.
    """

    __slots__ = ("_alive", "_ends", "_freed", "_most_after", "_most_until", "_weight")

    def __init__(self, requests: Iterable[Growing], weight: float = 1.0) -> None:
        by_end = sorted(requests)
        count = len(by_end)
        self._weight = weight
        self._ends = [each.left for each in by_end]
        self._freed = list(accumulate((weight * each.held for each in by_end), initial=0.0))
        """Tokens that the first so many to end hold now."""
        grown = [
            weight * (count - place) * left - freed
            for place, (left, freed) in enumerate(zip(self._ends, self._freed, strict=False))
        ]
        """Growth from now until just before each end."""
        self._most_until = list(
            accumulate((each + left for each, left in zip(grown, self._ends, strict=True)), max, initial=0.0)
        )
        """Largest of the first so many, if another request grows beside them."""
        self._most_after = list(accumulate(reversed(grown), max, initial=0.0))[::-1]
        """Largest from the one with this place on."""

    def most(self, prompt_tokens: int, answer_tokens: float) -> float:
        """Tokens by which the use grows at most if another request starts now, beyond the present one and the prompt of
        that request: O(log n).

        Args:
            prompt_tokens: of its prompt, to be computed. answer_tokens: to be generated.
        """
        before = bisect_right(self._ends, answer_tokens)
        alive = self._weight * (len(self._ends) - before) + 1
        own_end = alive * answer_tokens - self._freed[before]
        return max(self._most_until[before], own_end, self._most_after[before] - prompt_tokens)


NO_GROWTH = Growth(())
