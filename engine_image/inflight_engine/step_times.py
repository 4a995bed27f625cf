"""How long a step may take, by what earlier steps took: longer than that, the engine hangs.

A step of t tokens that attend to c tokens each on average takes at most a + b t (1 + c / P) seconds. a, b and P are the
machine's and the model's (P is 4,000 in a model of 135 million parameters and 30,000 in one of 8 billion); of them only
P > `_CONTEXT` is assumed. So a step with more tokens or more context than a measured one takes at most as much longer
as t (`_CONTEXT` + c) is larger, and one with less takes at most as long.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from inflight_engine.scheduling.plan import StepPlan

SAFETY = 3.0
"""How much longer than comparable steps one may take: they are not equal, and neighbours on the machine come and go."""

_CONTEXT = 1024

_COLD_SECONDS_PER_TOKEN = 0.05
"""Before anything was measured, with no context."""

_LONGEST_GUESS = 600.0
"""Seconds, for a step of a size that was never measured: the default of --request-timeout. A request that is computed
in longer steps gets no answer anyway."""

_FADE = 0.99
"""Of the slowest step, for each step of its size."""

_Size: TypeAlias = tuple[int, int]
"""Bit lengths of tokens and context: steps of one size are comparable."""


class Work(NamedTuple):
    """`tokens`: at least 1. `context`: what each attends to, on average; decodes are counted with none, since steps of
    decodes differ little from those before them."""

    tokens: int
    context: float

    @property
    def size(self) -> _Size:
        return self.tokens.bit_length(), int(self.context).bit_length()


class StepTimes:
    """The slowest step of each size, lately.

    Args:
        cold_seconds: what the first step of a size may take on top, where kernels are compiled when first used. Where
            it is not 0, the time of that step says nothing about the next ones and is not kept.
        measured: a step, and the seconds that it took when it was not the first of its size.
    """

    def __init__(self, cold_seconds: float = 0.0, measured: tuple[Work, float] | None = None) -> None:
        self._cold_seconds = cold_seconds
        self._warm: set[_Size] = set()
        """Sizes that were computed once; only where kernels are compiled."""
        self._slowest: dict[_Size, float] = {}
        """Seconds over t (_CONTEXT + c)."""
        if measured is not None:
            self._warm.add(measured[0].size)
            self.observe(*measured)

    def observe(self, work: Work, seconds: float) -> None:
        """A step with so much work took so long."""
        size = work.size
        if self._cold_seconds > 0 and size not in self._warm:
            self._warm.add(size)
            return
        slowness = seconds / (work.tokens * (_CONTEXT + work.context))
        self._slowest[size] = max(slowness, self._slowest.get(size, 0.0) * _FADE)

    def longest(self, work: Work) -> float:
        """Seconds that a step with so much work may take."""
        slowest = self._slowest.get(work.size)
        if slowest is not None:
            return SAFETY * slowest * work.tokens * (_CONTEXT + work.context)
        guess = min(
            (
                slowest * max(work.tokens, _least(tokens)) * (_CONTEXT + max(work.context, _least(context)))
                for (tokens, context), slowest in self._slowest.items()
            ),
            default=_COLD_SECONDS_PER_TOKEN * work.tokens * (1 + work.context / _CONTEXT),
        )
        return min(self._cold_seconds + SAFETY * guess, _LONGEST_GUESS)


def _least(bits: int) -> int:
    """The least number of that bit length."""
    return 1 << bits >> 1


def work_of(plan: StepPlan) -> Work:
    """What there is to compute."""
    if not plan.prefills:
        return Work(max(1, plan.num_tokens), 0.0)
    attended = sum(chunk.length * (chunk.start + chunk.length) for chunk in plan.prefills)
    return Work(plan.num_tokens, attended / plan.num_tokens)
