"""`hpa-queue:T`, `hpa-kv:T`, `hpa-concurrency:T`: an HPA on one metric of the pods, by an adapter for custom metrics.

Metric type `Pods` with AverageValue T and no `behavior`: as in most guides. The usual queue target is 5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from inflight_operator.observe.metrics import Sample
from inflight_simulator.fleet.scalers.actuator import SYNC_S, HorizontalPodAutoscaler
from inflight_simulator.fleet.view import FleetView

METRICS: Mapping[str, Callable[[Sample], float]] = {
    "queue": lambda sample: sample.waiting,
    "kv": lambda sample: sample.kv_usage,
    "concurrency": lambda sample: sample.running + sample.waiting,
}
"""Of a pod: requests that wait, share of the KV cache in use (0 to 1), requests that run or wait."""


class Hpa:
    """An HPA on one of `METRICS`."""

    interval_s = SYNC_S

    def __init__(self, metric: str, target: float) -> None:
        self._value = METRICS[metric]
        self._target = target
        self._hpa = HorizontalPodAutoscaler()

    def replicas(self, view: FleetView) -> int:
        return self._hpa.by_pods_metric(view, self._value, self._target)
