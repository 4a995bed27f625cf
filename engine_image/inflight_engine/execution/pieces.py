"""A step for which the device has no memory is computed in pieces, one after another.

A piece is a range of the step's tokens. Any cut is right: decodes are independent of each other, the rest of a chunk
attends to the keys and values that its beginning wrote, and a sequence that shares blocks of another one of the same
step comes behind it. What an attempt that failed has written is written again with the same values.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import TypeVar

import torch

from inflight_engine.scheduling.plan import PrefillChunk, StepPlan

log = logging.getLogger(__name__)

LEAST_TOKENS = 64
"""Minimum number of tokens in a piece."""

_MOST_PIECES = 128
"""Maximum number of pieces of a step, about: each takes some ten milliseconds, in which the step's decodes wait; and a
step that takes many seconds more than others of its size counts as hung."""

_MOST_TOKENS = 1 << 31
"""More tokens than any step has."""

_STEPS_UNTIL_LARGER = 128
"""Steps without a failure until pieces twice as large are tried."""

_Result = TypeVar("_Result")


class Pieces:
    """Cuts steps into pieces, whose size follows from recent failures.

    Args:
        give_back: returns memory to the device that is only kept for later allocations.

    Attributes:
        largest: tokens of a piece.
        ran_out: an attempt to compute the last step had no memory.
        failed_slots: slots of the last step whose chunk failed in a piece of the smallest size.
    """

    def __init__(self, give_back: Callable[[], None]) -> None:
        self.largest = _MOST_TOKENS
        self.ran_out = False
        self.failed_slots: list[int] = []
        self._give_back = give_back
        self._steps_since = 0

    def compute(self, plan: StepPlan, compute: Callable[[StepPlan], _Result]) -> Iterator[_Result]:
        """Compute a step, piece by piece as the results are taken.

        Args:
            compute: computes the tokens of a plan and nothing else of it. It may raise torch.OutOfMemoryError as long
                as a call with the same tokens again is right.

        Raises:
            torch.OutOfMemoryError: decodes failed in a piece of the smallest size, or all that there is to compute did.
        """
        self.ran_out, self.failed_slots = False, []
        self._steps_since += 1
        if self._steps_since >= _STEPS_UNTIL_LARGER:
            self.largest = min(2 * self.largest, _MOST_TOKENS)
            self._steps_since = 0
        first, num_computed, failure = 0, 0, ""
        least = max(LEAST_TOKENS, plan.num_tokens // _MOST_PIECES)
        while first < plan.num_tokens:
            largest = max(self.largest, least)
            last = _end(plan, first, largest, alone=largest == least)
            piece = plan if last - first == plan.num_tokens else piece_of(plan, first, last)
            try:
                result = [compute(piece)]
            except torch.OutOfMemoryError as error:
                # Not the error: its traceback holds tensors, which have to go before the next attempt.
                result, failure = [], str(error)
            if result:
                yield result.pop()
                first, num_computed = last, num_computed + 1
                continue
            self.ran_out = True
            if largest > least:
                self._shrink(last - first, least, plan, failure)
                continue
            if not piece.prefills:
                raise torch.OutOfMemoryError(failure)
            log.error("out of memory for %d tokens of one chunk; its request is aborted: %s", last - first, failure)
            self.failed_slots.append(piece.prefills[0].slot)
            first = _part_end(plan, first)
        if not num_computed:
            raise torch.OutOfMemoryError(failure)

    def _shrink(self, num_tokens: int, least: int, plan: StepPlan, failure: str) -> None:
        """Halve the pieces after one of `num_tokens` failed, to `least` tokens at least."""
        self.largest = max(least, num_tokens // 2)
        self._steps_since = 0
        log.warning(
            "out of memory for %d tokens of a step of %d (%d decodes, %d prefill chunks); it is computed in pieces of "
            "at most %d: %s",
            *(num_tokens, plan.num_tokens, len(plan.decode_slots), len(plan.prefills), self.largest, failure),
        )
        self._give_back()


def piece_of(plan: StepPlan, first: int, last: int) -> StepPlan:
    """Tokens [first, last) of a plan, counted from the first decode, as a plan that changes nothing."""
    chunks, begin = [], len(plan.decode_slots)
    for chunk in plan.prefills:
        start, end = max(first - begin, 0), min(last - begin, chunk.length)
        begin += chunk.length
        if start < end:
            samples = chunk.samples and end == chunk.length
            chunks.append(PrefillChunk(chunk.slot, chunk.start + start, end - start, samples))
    return StepPlan(plan.step, (), (), (), None, tuple(chunks), plan.decode_slots[first:last], last - first)


def _end(plan: StepPlan, first: int, largest: int, *, alone: bool) -> int:
    """The end of the piece that begins at a token. The decodes of a step that is cut have pieces of their own, which a
    CUDA graph may hold. `alone`: so does each chunk, so that it is known whose chunk fails."""
    if plan.num_tokens <= largest and not alone:
        return plan.num_tokens
    last = min(first + largest, plan.num_tokens)
    return min(last, _part_end(plan, first)) if alone or first < len(plan.decode_slots) else last


def _part_end(plan: StepPlan, token: int) -> int:
    """The end of the decodes, or of the chunk, that a token is part of."""
    ends = accumulate([len(plan.decode_slots), *(chunk.length for chunk in plan.prefills)])
    return next(end for end in ends if token < end)
