"""Measurements of the engine's own steps, and the predictions and scheduler inputs made from them."""

from __future__ import annotations

import math
from collections.abc import Callable

from inflight_cost.model import StepWork
from inflight_engine.messages import StepCost
from inflight_engine.scheduler_inputs import SchedulerInputs
from inflight_engine.step_times import StepTimes
from inflight_engine.swap_rates import SwapRateMeter
from inflight_fit.online import OnlineFit


class Measurements:
    """Measures the duration of steps by size, the cost of steps, and the speed of prefills and copies.

    Args:
        swap_rates: None: nothing can be swapped.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        inputs: SchedulerInputs,
        step_times: StepTimes,
        cost_fit: OnlineFit,
        swap_rates: SwapRateMeter | None,
        clock: Callable[[], float],
    ) -> None:
        self._inputs = inputs
        self._step_times = step_times
        self._cost_fit = cost_fit
        self._swap_rates = swap_rates
        self._clock = clock
        self._fitted = -math.inf
        """Clock at the end of the latest fit; a step that was in flight meanwhile is measured too long."""

    def longest(self, work: StepWork) -> float:
        """Return how long a step with this work may take, seconds."""
        return self._step_times.longest(work)

    def observe(self, work: StepWork, *, started: float, done: float, seconds: float, computing: float) -> None:
        """Take in a step, after the recorder.

        Args:
            started, done: clock when its planning began and when its tokens were taken in.
            seconds: that the whole step took, and no other step.
            computing: of these, seconds in which it was computed.
        """
        self._step_times.observe(work, seconds)
        if started >= self._fitted:
            self._cost_fit.observe(work, seconds, done)
        if self._swap_rates is not None:
            rates = self._swap_rates.observe(int(work.prefill_tokens), int(work.decode_seqs), computing)
            if rates is not None:
                self._inputs.set_rates(rates)

    def fit_cost(self, now: float) -> StepCost | None:
        """Fit the cost model, which takes some milliseconds; None: too few steps are new since the last time.

        Args:
            now: clock when the latest step was done.
        """
        if not self._cost_fit.due(now):
            return None
        measured = self._cost_fit.fit(now)
        self._fitted = self._clock()
        if measured is None:
            return None
        cost = measured.model if measured.good else None
        self._step_times.cost = cost
        self._inputs.set_prefill_cost(cost)
        return StepCost(measured.model, measured.error, measured.steps)
