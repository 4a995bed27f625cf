"""How long a step may take before the engine hangs: by the cost model, and never less than earlier steps took.

Without a cost model that fits: a step of t tokens that attend to c tokens each on average takes at most
a + b t (1 + c / P) seconds. a, b and P are the machine's and the model's (P is 4,000 in a model of 135 million
parameters and 30,000 in one of 8 billion); of them only P > `_CONTEXT` is assumed. So a step with more tokens or more
context than a measured one takes at most as much longer as t (`_CONTEXT` + c) is larger, and one with less takes at
most as long.
"""

from __future__ import annotations

from typing import TypeAlias

from inflight_cost.model import CostModel, StepWork

SAFETY = 3.0
"""Factor by which a step may take longer than comparable steps: they are not equal, and the machine's load varies."""

FIRST_OF_A_SIZE = 2.0
"""Further factor where only the cost model predicts the duration of comparable steps."""

_REACH = 4.0
"""Ratio to the largest measured work, in each number, up to which the cost model predicts steps."""

_CONTEXT = 1024

_COLD_SECONDS_PER_TOKEN = 0.05
"""Duration before anything was measured, with no context."""

_LONGEST_GUESS = 600.0
"""Seconds, for a step of a size that was never measured: the default of --request-timeout. A request that is computed
in longer steps gets no answer anyway."""

_FADE = 0.99
"""Factor by which the time of the slowest step falls with each step of its size."""

_Size: TypeAlias = tuple[int, int]
"""Bit lengths of tokens and context: steps of one size are comparable."""


class StepTimes:
    """Predicts how long a step may take, from the slowest recent step of its size and from the cost model.

    Args:
        cold_seconds: additional time of the first step of a size, where kernels are compiled when first used. Where it
            is not 0, the time of that step says nothing about the next ones and is not kept.
        measured: a step, and the seconds that it took when it was not the first of its size.

    Attributes:
        cost: predicts steps; None: no model fits well enough.
    """

    def __init__(self, cold_seconds: float = 0.0, measured: tuple[StepWork, float] | None = None) -> None:
        self.cost: CostModel | None = None
        self._cold_seconds = cold_seconds
        self._warm: set[_Size] = set()
        """Sizes of which a step was computed; used only where kernels are compiled."""
        self._slowest: dict[_Size, float] = {}
        """Seconds of the slowest step of each size, divided by t (_CONTEXT + c)."""
        self._largest = StepWork(0, 0, 0, 0, 0)
        """Largest measured value of each number."""
        self._reach = self._largest
        """Largest work that the cost model predicts."""
        if measured is not None:
            self._warm.add(_size(measured[0])[0])
            self.observe(*measured)

    def observe(self, work: StepWork, seconds: float) -> None:
        """Take in the duration of a step with this work."""
        size, bound = _size(work)
        if self._cold_seconds > 0 and size not in self._warm:
            self._warm.add(size)
            return
        self._slowest[size] = max(seconds / bound, self._slowest.get(size, 0.0) * _FADE)
        if not _within(work, self._largest):
            self._largest = StepWork(*map(max, work, self._largest))
            self._reach = StepWork(*(_REACH * each for each in self._largest))

    def longest(self, work: StepWork) -> float:
        """Return how long a step with this work may take, seconds."""
        size, bound = _size(work)
        predicted = 0.0
        if self.cost is not None and _within(work, self._reach):
            predicted = SAFETY * self.cost.seconds(work)
        slowest = self._slowest.get(size)
        if slowest is not None:
            return max(SAFETY * slowest * bound, predicted)
        if predicted:
            return self._cold_seconds + FIRST_OF_A_SIZE * predicted
        tokens, context = _tokens_and_context(work)
        guess = min(
            (
                slowest * max(tokens, _least(size_tokens)) * (_CONTEXT + max(context, _least(size_context)))
                for (size_tokens, size_context), slowest in self._slowest.items()
            ),
            default=_COLD_SECONDS_PER_TOKEN * tokens * (1 + context / _CONTEXT),
        )
        return min(self._cold_seconds + SAFETY * guess, _LONGEST_GUESS)


def _tokens_and_context(work: StepWork) -> tuple[int, float]:
    """Return the number of computed tokens, at least 1, and the tokens that each attends to, on average; decodes count
    with none, since steps of decodes differ little from those before them."""
    tokens = int(work.decode_seqs + work.prefill_tokens) or 1
    return tokens, work.prefill_context_tokens / tokens


def _size(work: StepWork) -> tuple[_Size, float]:
    """Return the size of a step, and t (_CONTEXT + c)."""
    tokens, context = _tokens_and_context(work)
    return (tokens.bit_length(), int(context).bit_length()), tokens * (_CONTEXT + context)


def _within(work: StepWork, most: StepWork) -> bool:
    decodes, prefill, read, attended, copied = work
    return decodes <= most[0] and prefill <= most[1] and read <= most[2] and attended <= most[3] and copied <= most[4]


def _least(bits: int) -> int:
    """Return the least number of that bit length."""
    return 1 << bits >> 1
