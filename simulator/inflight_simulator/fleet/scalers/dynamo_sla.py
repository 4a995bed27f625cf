"""`dynamo-sla`: the forecast loop of Dynamo's planner, which SLA mode runs without the load loop.

Source: as `dynamo_model`. Every 180 s: predict the requests, prompt and output tokens of the next interval (`forecast`
says how), divide the rate by that of the batch that gives most within both targets, round up. No limit on the step.
Its GPU budget of 8 is replaced by the fleet's bounds.
"""

from __future__ import annotations

import math

from inflight_simulator.fleet.scalers.dynamo_load import scaling_in_progress
from inflight_simulator.fleet.scalers.dynamo_model import IterationModel, Means
from inflight_simulator.fleet.scalers.forecast import next_value
from inflight_simulator.fleet.scalers.windows import Traffic
from inflight_simulator.fleet.view import FleetView

TICK_S = 180.0


class DynamoSla:
    """
    Args:
        ttft, tpot: targets in seconds.
    """

    interval_s = TICK_S

    def __init__(self, model: IterationModel, ttft: float, tpot: float) -> None:
        self._model, self._ttft, self._tpot = model, ttft, tpot
        self._traffic = Traffic(TICK_S)
        self._rates: list[float] = []
        self._prompts: list[float] = []
        self._outputs: list[float] = []

    def replicas(self, view: FleetView) -> int:
        self._traffic.observe(view)
        growth = self._traffic.growth
        if growth.prompt is None or growth.output is None:
            return view.ordered
        self._rates.append(growth.requests_per_second)
        self._prompts.append(growth.prompt)
        self._outputs.append(growth.output)
        if scaling_in_progress(view):
            return view.ordered
        means = Means(next_value(self._prompts), max(1.0, next_value(self._outputs)), growth.hit_rate)
        each = self._model.largest_rate(means, self._ttft, self._tpot)
        return max(1, math.ceil(round(next_value(self._rates) / each, 9)))
