"""`llmd-slo`: llm-d's SLO-aware recipe, which scales on how near the 90th percentiles are to their targets.

Source: llm-d guides, 560d420e (2026-09), manifests of fork c397e679. Every 15 s: the larger of P90 TTFT and P90 TPOT
over 1 min, each by its target, at most 2; their mean over 45 s is s. With n replicas of which r are ready, g = r / n:
above 0.55 n + ceil(n (s g / 0.55 - 1)), below 0.40 n - floor(n (1 - s / 0.40)). Up: window 30 s, the larger of 100% and
4 pods in 60 s; down: window 180 s, 1 pod in 120 s. Bounds of 3 to 8 are replaced by the fleet's.

Measured latencies stand in for predicted ones, as in the recipe where no predictor runs. Targets are the fleet's in
place of the recipe's 3 s and 0.1 s: a user would set their own. The number goes through the HPA with a target of 1.
"""

from __future__ import annotations

import math

from inflight_operator.decide.behavior import Behavior, ScalingPolicy, ScalingRules
from inflight_simulator.fleet.scalers.actuator import SYNC_S, HorizontalPodAutoscaler
from inflight_simulator.fleet.scalers.windows import Recent, Traffic
from inflight_simulator.fleet.view import FleetView

UP, DOWN = 0.55, 0.40
MOST = 2.0
PERCENTILE = 0.9
MEAN_S, LATENCY_S = 45.0, 60.0
BEHAVIOR = Behavior(
    ScalingRules(30.0, (ScalingPolicy("Percent", 100, 60.0), ScalingPolicy("Pods", 4, 60.0))),
    ScalingRules(180.0, (ScalingPolicy("Pods", 1, 120.0),)),
)


def replicas_by_score(score: float, replicas: int, ready: int) -> int:
    """Replicas wanted at a mean score of `score`; ones that start are credited in the order for more."""
    started = ready / replicas if 0 < ready < replicas else 1.0
    if score > UP:
        return replicas + math.ceil(round(replicas * (score * started / UP - 1), 9))
    if score < DOWN:
        return replicas - math.floor(round(replicas * (1 - score / DOWN), 9))
    return replicas


class LlmdSlo:
    """
    Args:
        ttft, tpot: targets in seconds.
    """

    interval_s = SYNC_S

    def __init__(self, ttft: float, tpot: float) -> None:
        self._ttft, self._tpot = ttft, tpot
        self._traffic = Traffic(LATENCY_S)
        self._scores = Recent(MEAN_S)
        self._hpa = HorizontalPodAutoscaler(BEHAVIOR)

    def replicas(self, view: FleetView) -> int:
        self._traffic.observe(view)
        self._scores.add(view.now, self._score())
        wanted = replicas_by_score(self._scores.mean, view.ordered, len(view.ready))
        return self._hpa.by_totals(view, [(wanted, 1.0)])

    def _score(self) -> float:
        growth = self._traffic.growth
        ttft, tpot = growth.ttft.percentile(PERCENTILE), growth.tpot.percentile(PERCENTILE)
        return min(MOST, max((ttft or 0.0) / self._ttft, (tpot or 0.0) / self._tpot))
