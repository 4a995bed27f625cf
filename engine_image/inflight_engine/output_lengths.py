"""How many tokens requests generate, estimated without waiting for the longest to end.

The mean of the requests that have ended is too small while others still run: short outputs end first. So requests that
run, and those that were cancelled, count as censored observations: of them it is known that they were at least so long.
The estimator is the occurrence/exposure life table (actuarial form of Kaplan and Meier 1958; Hoem 1971), in discrete
time with ranges of tokens: in each range the chance that an output ends with a token is the number of ends there over
the number of tokens that were generated there by anybody. What is longer than anything seen is taken to end there
(Efron 1967).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

HALF_LIFE_SECONDS = 600.0
"""In which the weight of what was seen falls by half."""
_ENDS_TO_KEEP = 200.0
"""So many ends are remembered however long they took to come."""
_RANGES_IN_AN_OCTAVE = 8
_SINGLE_TOKENS = 16
"""Up to here each range is one token."""
_LONGEST = 1 << 20

Counts = npt.NDArray[np.float64]


class OutputLength(NamedTuple):
    """Tokens of an output: `mean`, and `second_moment`, the mean of the squares."""

    mean: float
    second_moment: float


class OutputLengths:
    """Counts tokens and ends. Tokens are counted about when they are generated, so that what is forgotten of a range is
    the same share of its tokens as of its ends."""

    def __init__(self) -> None:
        octaves = int(np.log2(_LONGEST / _SINGLE_TOKENS))
        steps = np.arange(1, octaves * _RANGES_IN_AN_OCTAVE + 1) / _RANGES_IN_AN_OCTAVE
        longer = (_SINGLE_TOKENS * np.exp2(steps)).astype(np.int64)
        self._ends_of_ranges = np.concatenate([np.arange(1, _SINGLE_TOKENS + 1), longer])
        self._begins = np.concatenate([[0], self._ends_of_ranges[:-1]])
        self._tokens: Counts = np.zeros(len(self._begins))
        self._ended: Counts = np.zeros(len(self._begins))
        self._forgot_at: float | None = None

    def generated(self, begin: int, end: int) -> None:
        """The tokens [begin, end) of some output were generated."""
        self._tokens += np.clip(np.minimum(self._ends_of_ranges, end) - np.maximum(self._begins, begin), 0, None)

    def ended(self, length: int) -> None:
        """An output is complete with its last token, which was counted by `generated`."""
        if length > 0:
            self._ended[min(int(np.searchsorted(self._ends_of_ranges, length)), len(self._ended) - 1)] += 1

    def forget(self, now: float) -> None:
        """Let the past weigh less; `now`: seconds, monotonic."""
        before, self._forgot_at = self._forgot_at, now
        ends = self._ended.sum()
        if before is None or ends <= _ENDS_TO_KEEP:
            return
        keep = max(np.exp2((before - now) / HALF_LIFE_SECONDS), _ENDS_TO_KEEP / ends)
        self._tokens *= keep
        self._ended *= keep

    def estimate(self) -> OutputLength | None:
        """None: nothing has ended yet."""
        if not self._ended.any():
            return None
        count = int(np.flatnonzero(self._tokens)[-1]) + 1
        chance = np.minimum(self._ended[:count] / np.maximum(self._tokens[:count], 1e-9), 1.0)
        widths = (self._ends_of_ranges - self._begins)[:count]
        # Chance that an output has more than 0, 1, 2, ... tokens.
        longer = np.concatenate([[1.0], np.cumprod(np.repeat(1 - chance, widths))[:-1]])
        return OutputLength(float(longer.sum()), float(longer @ (2 * np.arange(len(longer)) + 1)))
