"""The Horizontal Pod Autoscaler, `autoscaling/v2`, which applies the result of most recipes.

Source: kubernetes/kubernetes, pkg/controller/podautoscaler (replica_calculator.go, horizontal.go), and its
documentation, "Algorithm details" and "Configurable scaling behavior". Windows and policies are those of the operator's
`decide.behavior`, which follows the same rules.

Metrics are current: real ones are delayed by a Prometheus scrape and an adapter's cache, which would
make each of these scalers slower than it is here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from inflight_operator.decide.behavior import (
    Behavior,
    ScalingHistory,
    ScalingPolicy,
    ScalingRules,
    rate_limited,
    recorded,
    stabilized,
)
from inflight_operator.observe.metrics import Sample
from inflight_simulator.fleet.view import FleetView

TOLERANCE = 0.1
"""`--horizontal-pod-autoscaler-tolerance`."""
SYNC_S = 15.0
"""`--horizontal-pod-autoscaler-sync-period`; also KEDA's usual poll."""

ALL_IN_15_S = ScalingPolicy("Percent", 100, 15.0)

DEFAULT_BEHAVIOR = Behavior(
    scale_up=ScalingRules(0.0, (ALL_IN_15_S, ScalingPolicy("Pods", 4, 15.0))),
    scale_down=ScalingRules(300.0, (ALL_IN_15_S,)),
)
"""Of an HPA without `behavior`."""


def windows(up: float, down: float) -> Behavior:
    """The default policies with these stabilization windows, in seconds."""
    return Behavior(
        ScalingRules(up, DEFAULT_BEHAVIOR.scale_up.policies), ScalingRules(down, DEFAULT_BEHAVIOR.scale_down.policies)
    )


def replicas_by_pods_metric(values: Sequence[float], missing: int, target: float, current: int) -> int | None:
    """Replicas for a metric of type `Pods` with an AverageValue; None: no pod reports it, so nothing changes.

    A pod without the metric (it loads its model) counts as 0 for a scale-up, and as exactly at target for a scale-down.
    If that reverses the direction, or falls within the tolerance, nothing changes.

    Args:
        values: of the pods that show the metric. missing: pods that do not; those being deleted are not among them.
        current: `spec.replicas`.
    """
    if not values:
        return None
    ratio = sum(values) / (len(values) * target)
    if not missing:
        return current if _within_tolerance(ratio) else _ceil(ratio * len(values))
    pods = len(values) + missing
    after = (sum(values) + (missing * target if ratio < 1.0 else 0.0)) / (pods * target)
    if _within_tolerance(after) or (ratio < 1.0) != (after < 1.0):
        return current
    wanted = _ceil(after * pods)
    return current if (wanted > current) != (after > 1.0) else wanted


def replicas_by_total(total: float, target: float, current: int) -> int:
    """Replicas for a metric of type `External` with an AverageValue: all of it by the target of one replica. Starting
    replicas count only for the tolerance."""
    if current == 0 or _within_tolerance(total / (target * current)):
        return current
    return _ceil(total / target)


def _within_tolerance(ratio: float) -> bool:
    return 1.0 - TOLERANCE <= ratio <= 1.0 + TOLERANCE


def _ceil(value: float) -> int:
    """Without rounding errors: 3.0000000000000004 replicas are 3."""
    return math.ceil(round(value, 9))


class HorizontalPodAutoscaler:
    """Windows, policies and bounds around the recommendation of metrics. Syncs every `SYNC_S`."""

    def __init__(self, behavior: Behavior = DEFAULT_BEHAVIOR) -> None:
        self._behavior = behavior
        self._history = ScalingHistory()

    def by_pods_metric(self, view: FleetView, value: Callable[[Sample], float], target: float) -> int:
        """Replicas by one metric of each pod. Pods that start are Running and show no metrics."""
        values = [value(pod.sample) for pod in view.ready if pod.sample is not None]
        missing = sum(not pod.draining and pod.sample is None for pod in view.pods)
        return self._within(view, replicas_by_pods_metric(values, missing, target, view.ordered))

    def by_totals(self, view: FleetView, totals: Iterable[tuple[float, float]]) -> int:
        """Replicas by external metrics, pairs of a total and the target of one replica: the largest counts."""
        return self._within(view, max(replicas_by_total(total, target, view.ordered) for total, target in totals))

    def _within(self, view: FleetView, wanted: int | None) -> int:
        current, now, behavior = view.ordered, view.now, self._behavior
        if wanted is None:
            return current
        wanted = min(max(wanted, view.min_replicas), view.max_replicas)
        history = self._history.at(now, current, starting=0)
        steady = stabilized(wanted, current, behavior, history, now)
        allowed = rate_limited(steady.replicas, current, behavior, history, now).replicas
        self._history = recorded(history, now, wanted=wanted, before=current, after=allowed, behavior=behavior)
        return allowed
