"""The cost model of a running engine, from the steps it has lately done."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np

from inflight_cost.model import CostModel, StepWork
from inflight_fit.fit import SIZES, fit_steps

HALF_LIFE_SECONDS = 60.0
"""Seconds in which a step's weight falls by half: an engine that got slower is followed within minutes."""
_LEAST_WEIGHT = 0.1
"""Minimum weight of a step: the costs of kinds that are no longer done are known from nothing else."""
_ROWS = 32
"""Number of latest steps of each kind that are kept, so that no kind crowds another out."""
_KINDS = 64
_NONE = -1
"""In place of the tokens that each token of a kind attends to: it has no decodes, or no prompts."""
_GAP_SECONDS = 1.0
"""Minimum seconds between two kept steps of a kind that has all its rows: a pause of some seconds must not fill
them."""
_FIRST_INTERVAL, _LONGEST_INTERVAL, _INTERVAL_GROWTH = 1.0, 15.0, 1.5
"""Seconds between two fits, which take some milliseconds each."""
_FEWEST_STEPS = 16

GOOD_ERROR = 0.25
"""Median error up to which a model predicts steps; above it, only what was seen counts."""

_Row: TypeAlias = tuple[float, float, float, float, float, float, float]
"""The numbers of `StepWork`, the step's seconds, and the time of the step."""


class MeasuredCost(NamedTuple):
    """A cost model fitted to recent steps.

    Attributes:
        error: median relative error of the steps that it is fitted to.
        steps: number of these steps; steps that were forgotten in part count in part.
    """

    model: CostModel
    error: float
    steps: float

    @property
    def good(self) -> bool:
        return self.error <= GOOD_ERROR


class OnlineFit:
    """Keeps some of the latest steps of each kind, and fits the cost model to them now and then.

    A kind is a range of tokens and of tokens attended to. Steps of each kind are kept apart, or an hour of decoding
    would leave nothing of prefill, and steady load nothing of the sizes that the next limit will bring.

    Args:
        compiles: the first step of a size includes what is done only once, and is left out.
    """

    def __init__(self, *, compiles: bool = False) -> None:
        self._warm: set[tuple[int, bool]] | None = set() if compiles else None
        self._kinds: dict[tuple[int, int, int], deque[_Row]] = {}
        self._prefills = False
        self._latest = CostModel(0.0, 0.0, 0.0, 0.0, 0.0)
        self._num_kept = self._num_fitted = 0
        self._interval = _FIRST_INTERVAL
        self._next_fit = -1.0

    def observe(self, work: StepWork, seconds: float, now: float) -> None:
        """Take in the duration of a step. `now`: seconds, monotonic."""
        if seconds <= 0:
            return
        decodes, prefill, read, attended, _ = work
        size = bisect_left(SIZES, decodes + prefill)
        if self._warm is not None and (size, prefill > 0) not in self._warm:
            self._warm.add((size, prefill > 0))
            return
        kind = (size, _magnitude(read, decodes), _magnitude(attended, prefill))
        rows = self._kinds.get(kind)
        if rows is None:
            if len(self._kinds) == _KINDS:
                self._drop_a_kind()
            rows = self._kinds[kind] = deque(maxlen=_ROWS)
        elif len(rows) == _ROWS and now - rows[-1][-1] < _GAP_SECONDS:
            return
        rows.append((*work, seconds, now))
        self._num_kept += 1
        self._prefills = self._prefills or prefill > 0

    def _drop_a_kind(self) -> None:
        """Drop the kind that was seen least recently, of steps that only decode or of those with prompts, whichever
        are more. So a long time of either leaves something of the other."""
        decodes: list[tuple[int, int, int]] = []
        prefills: list[tuple[int, int, int]] = []
        for kind in self._kinds:
            (decodes if kind[2] == _NONE else prefills).append(kind)
        more = decodes if len(decodes) >= len(prefills) else prefills
        del self._kinds[min(more, key=lambda each: self._kinds[each][-1][-1])]

    def due(self, now: float) -> bool:
        """Return whether enough is new for another fit."""
        return now >= self._next_fit and self._num_kept > self._num_fitted

    def fit(self, now: float) -> MeasuredCost | None:
        """Return the model of the steps that are kept; None: they are too few, or no prompt was computed yet. Factors
        of what no step did are those of the last model, 0 at first."""
        compute = self.prepare(now)
        return None if compute is None else compute()

    def prepare(self, now: float) -> Callable[[], MeasuredCost] | None:
        """Return what computes the fit. Steps may be observed meanwhile, in another thread."""
        self._next_fit = now + self._interval
        if self._num_kept < _FEWEST_STEPS or not self._prefills:
            return None
        self._interval = min(_LONGEST_INTERVAL, self._interval * _INTERVAL_GROWTH)
        self._num_fitted = self._num_kept
        kept = [row for rows in self._kinds.values() for row in rows]
        return lambda: self._compute(kept)

    def _compute(self, kept: list[_Row]) -> MeasuredCost:
        rows = np.array(kept)
        weights = np.maximum(np.exp2((rows[:, -1] - rows[:, -1].max()) / HALF_LIFE_SECONDS), _LEAST_WEIGHT)
        found = fit_steps(rows[:, :-2], rows[:, -2], self._latest, weights)
        self._latest = found.cost
        return MeasuredCost(found.cost, found.median_error, float(weights.sum()))


def _magnitude(attended: float, tokens: float) -> int:
    """Return the number of tokens that each token attends to, in powers of 4; `_NONE`: there is none."""
    return int(attended / tokens).bit_length() >> 1 if tokens else _NONE
