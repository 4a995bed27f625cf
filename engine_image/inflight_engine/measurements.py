"""Measurements of the engine's own steps, and the predictions and scheduler inputs made from them."""

from __future__ import annotations

from inflight_cost.model import StepWork
from inflight_engine.load_rates import LoadRateMeter
from inflight_engine.messages import StepCost
from inflight_engine.scheduler_inputs import SchedulerInputs
from inflight_engine.step_times import StepTimes


class Measurements:
    """Measures the duration of steps by size, and the speed of prefills and copies; the API process fits their cost.

    Args:
        load_rates: None: there is no tier.
    """

    def __init__(
        self,
        inputs: SchedulerInputs,
        step_times: StepTimes,
        load_rates: LoadRateMeter | None,
    ) -> None:
        self._inputs = inputs
        self._step_times = step_times
        self._load_rates = load_rates

    def longest(self, work: StepWork) -> float:
        """Return how long a step with this work may take, seconds."""
        return self._step_times.longest(work)

    def observe(self, work: StepWork, *, seconds: float, computing: float) -> None:
        """Take in a step, after the recorder.

        Args:
            seconds: that the whole step took, and no other step.
            computing: of these, seconds in which it was computed.
        """
        self._step_times.observe(work, seconds)
        if self._load_rates is not None:
            rates = self._load_rates.observe(int(work.prefill_tokens), int(work.decode_seqs), computing)
            if rates is not None:
                self._inputs.set_rates(rates)

    def set_cost(self, measured: StepCost) -> None:
        """Predict steps by this cost, where it is good."""
        cost = measured.model if measured.good else None
        self._step_times.cost = cost
        self._inputs.set_prefill_cost(cost)
