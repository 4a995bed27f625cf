"""How many tokens requests generate, estimated without waiting for the longest to end.

The mean of the requests that have ended is too small while others still run: short outputs end first. So requests that
run, and those that were cancelled, count as censored observations: their outputs are known to be at least that long.
The estimator is the occurrence/exposure life table (actuarial form of Kaplan and Meier 1958; Hoem 1971), in discrete
time with ranges of tokens: in each range the chance that an output ends with a token is the number of ends there over
the number of tokens that all requests generated there. Outputs longer than any that has ended are taken to end there
(Efron 1967).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

HALF_LIFE_SECONDS = 600.0
"""Time in which the weight of an observation halves."""
_ENDS_TO_KEEP = 200.0
"""Number of ends that are remembered, however old they are."""
_RANGES_IN_AN_OCTAVE = 8
_SINGLE_TOKENS = 16
"""Number of ranges of one token each; longer ones follow."""
_LONGEST = 1 << 20
_NO_TOKENS = 1e-9


class OutputLength(NamedTuple):
    """Length of outputs in tokens: `mean`, and `second_moment`, the mean of the squares."""

    mean: float
    second_moment: float


class OutputLengths:
    """Counts tokens and ends. Tokens are counted about when they are generated, so that what is forgotten of a range is
    the same share of its tokens as of its ends."""

    def __init__(self) -> None:
        octaves = int(math.log2(_LONGEST / _SINGLE_TOKENS))
        longer = [
            int(_SINGLE_TOKENS * 2 ** (each / _RANGES_IN_AN_OCTAVE)) for each in range(octaves * _RANGES_IN_AN_OCTAVE)
        ]
        self._bounds = [*range(_SINGLE_TOKENS), *longer, _LONGEST]
        """Range i is the tokens [bounds[i], bounds[i + 1])."""
        self._tokens = [0.0] * (len(self._bounds) - 1)
        self._ended = [0.0] * (len(self._bounds) - 1)
        self._forgot_at: float | None = None

    def generated(self, begin: int, end: int) -> None:
        """The tokens [begin, end) of some output were generated."""
        bounds, end = self._bounds, min(end, _LONGEST)
        if begin >= end:
            return
        index = bisect_right(bounds, begin) - 1
        while begin < end:
            until = min(end, bounds[index + 1])
            self._tokens[index] += until - begin
            begin, index = until, index + 1

    def generated_many(self, begins: Sequence[int], ends: Sequence[int]) -> None:
        """Call `generated` for each pair; none of `begins` is above its end."""
        lengths = np.minimum((*ends, *begins), _LONGEST)
        signs = np.repeat((1.0, -1.0), len(begins))
        bounds = np.array(self._bounds)
        ranges = np.searchsorted(bounds, lengths, side="right") - 1
        in_last = np.bincount(ranges, signs * (lengths - bounds[ranges]), len(bounds))[:-1]
        longer = np.bincount(ranges, signs, len(bounds))[:0:-1].cumsum()[::-1]
        self._tokens = (np.array(self._tokens) + (longer * np.diff(bounds) + in_last)).tolist()

    def ended(self, length: int) -> None:
        """An output is complete with its last token, which was counted by `generated`."""
        if length > 0:
            self._ended[bisect_right(self._bounds, min(length, _LONGEST) - 1) - 1] += 1

    def forget(self, now: float) -> None:
        """Let the past weigh less; `now`: seconds, monotonic."""
        before, self._forgot_at = self._forgot_at, now
        ends = sum(self._ended)
        if before is None or ends <= _ENDS_TO_KEEP:
            return
        keep = max(2 ** ((before - now) / HALF_LIFE_SECONDS), _ENDS_TO_KEEP / ends)
        self._tokens = [each * keep for each in self._tokens]
        self._ended = [each * keep for each in self._ended]

    def estimate(self) -> OutputLength | None:
        """None: nothing has ended yet, or only outputs that others generated."""
        if not (any(self._ended) and any(self._tokens)):
            return None
        tokens, ended = np.array(self._tokens), np.array(self._ended)
        count = int(np.flatnonzero(tokens)[-1]) + 1
        chance = np.minimum(ended[:count] / np.maximum(tokens[:count], _NO_TOKENS), 1.0)
        # Chance that an output has more than 0, 1, 2, ... tokens.
        longer = np.concatenate([[1.0], np.cumprod(np.repeat(1 - chance, np.diff(self._bounds[: count + 1])))[:-1]])
        return OutputLength(float(longer.sum()), float(longer @ (2 * np.arange(len(longer)) + 1)))
