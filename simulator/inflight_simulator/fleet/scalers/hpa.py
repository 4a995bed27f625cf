"""The Horizontal Pod Autoscaler, `autoscaling/v2`, which applies the replicas that a formula wants; its recipes.

Source: kubernetes/kubernetes, pkg/controller/podautoscaler (replica_calculator.go, horizontal.go), and its
documentation, "Algorithm details" and "Configurable scaling behavior". Windows and policies are those of the operator's
`decide.replicas.behavior`, which follows the same rules.

Metrics are current: real ones are delayed by a Prometheus scrape and an adapter's cache, which would
make each of these scalers slower than it is here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from inflight_operator.decide.replicas.behavior import (
    Behavior,
    ScalingHistory,
    ScalingPolicy,
    ScalingRules,
    rate_limited,
    recorded,
    stabilized,
)
from inflight_operator.observe.metrics import Sample
from inflight_simulator.fleet.scalers.signals import rounded_up, samples, waiting
from inflight_simulator.fleet.view import FleetView

TOLERANCE = 0.1
"""Default of `--horizontal-pod-autoscaler-tolerance`."""
SYNC_S = 15.0
"""Default of `--horizontal-pod-autoscaler-sync-period`; also KEDA's usual poll."""

ALL_IN_15_S = ScalingPolicy("Percent", 100, 15.0)

DEFAULT_BEHAVIOR = Behavior(
    scale_up=ScalingRules(0.0, (ALL_IN_15_S, ScalingPolicy("Pods", 4, 15.0))),
    scale_down=ScalingRules(300.0, (ALL_IN_15_S,)),
)
"""Behavior of an HPA whose spec has none."""

Formula = Callable[[FleetView], int | None]
"""Returns the replicas wanted for a view; None: it has no metrics, so nothing changes."""


class Hpa:
    """Windows, policies and bounds around a formula."""

    interval_s = SYNC_S

    def __init__(self, wanted: Formula, behavior: Behavior = DEFAULT_BEHAVIOR) -> None:
        self._wanted, self._behavior = wanted, behavior
        self._history = ScalingHistory()

    def replicas(self, view: FleetView) -> int:
        current, now, behavior = view.ordered, view.now, self._behavior
        wanted = self._wanted(view)
        if wanted is None:
            return current
        wanted = view.bounded(wanted)
        history = self._history.at(now, current, starting=0)
        steady = stabilized(wanted, current, behavior, history, now)
        allowed = rate_limited(steady.replicas, current, behavior, history, now).replicas
        self._history = recorded(history, now, wanted=wanted, before=current, after=allowed, behavior=behavior)
        return allowed


def windows(up: float, down: float) -> Behavior:
    """The default policies with these stabilization windows, in seconds."""
    return Behavior(
        ScalingRules(up, DEFAULT_BEHAVIOR.scale_up.policies), ScalingRules(down, DEFAULT_BEHAVIOR.scale_down.policies)
    )


def by_pods_metric(value: Callable[[Sample], float], target: float) -> Formula:
    """Scales by one metric of each pod. Pods that start are Running and have no metrics."""

    def wanted(view: FleetView) -> int | None:
        values = list(map(value, samples(view)))
        missing = sum(not pod.draining and pod.sample is None for pod in view.pods)
        return replicas_by_pods_metric(values, missing, target, view.ordered)

    return wanted


def by_totals(*totals: tuple[Callable[[FleetView], float], float]) -> Formula:
    """Scales by external metrics, pairs of a total and the target of one replica: the largest counts."""
    return lambda view: max(replicas_by_total(total(view), target, view.ordered) for total, target in totals)


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
        return current if _within_tolerance(ratio) else rounded_up(ratio * len(values))
    pods = len(values) + missing
    after = (sum(values) + (missing * target if ratio < 1.0 else 0.0)) / (pods * target)
    if _within_tolerance(after) or (ratio < 1.0) != (after < 1.0):
        return current
    wanted = rounded_up(after * pods)
    return current if (wanted > current) != (after > 1.0) else wanted


def replicas_by_total(total: float, target: float, current: int) -> int:
    """Replicas for a metric of type `External` with an AverageValue: all of it by the target of one replica. Starting
    replicas count only for the tolerance."""
    if current == 0 or _within_tolerance(total / (target * current)):
        return current
    return rounded_up(total / target)


def _within_tolerance(ratio: float) -> bool:
    return 1.0 - TOLERANCE <= ratio <= 1.0 + TOLERANCE


def hpa_queue(target: float) -> Hpa:
    """`hpa-queue:T`: an HPA on requests that wait. Here and below the metric comes from an adapter for custom metrics,
    of type `Pods` with AverageValue T and no `behavior`: as in most guides. The usual target is 5."""
    return Hpa(by_pods_metric(lambda sample: sample.waiting, target))


def hpa_kv(target: float) -> Hpa:
    """`hpa-kv:T`: on the share of the KV cache in use, 0 to 1."""
    return Hpa(by_pods_metric(lambda sample: sample.kv_usage or 0.0, target))


def hpa_concurrency(target: float) -> Hpa:
    """`hpa-concurrency:T`: on requests that run or wait."""
    return Hpa(by_pods_metric(lambda sample: sample.running + sample.waiting, target))


def keda_production_stack() -> Hpa:
    """`keda-production-stack`: vLLM production-stack's recipe for KEDA.

    Source: vllm-project/production-stack 0.1.12, a6c01db0 (2026-08-05): a Prometheus trigger on
    `vllm:num_requests_waiting` with threshold 5 (AverageValue), poll 15 s, and the HPA's own windows; the cooldown of
    360 s is of the way to zero only.

    The fleet's bounds replace those of the recipe, 1 to 3 replicas, and its query is summed here: as published it
    returns a series for each pod, which KEDA rejects as soon as there are two.
    """
    return Hpa(by_totals((waiting, 5.0)))
