"""`keda-production-stack`: vLLM production-stack's recipe for KEDA.

Source: vllm-project/production-stack 0.1.12, a6c01db0 (2026-08-05): a Prometheus trigger on `vllm:num_requests_waiting`
with threshold 5 (AverageValue), poll 15 s, and the HPA's own windows; the cooldown of 360 s is of the way to zero only.

The fleet's bounds replace those of the recipe, 1 to 3 replicas, and its query is summed here: as published it returns a
series for each pod, which KEDA rejects as soon as there are two.
"""

from __future__ import annotations

from inflight_simulator.fleet.scalers.actuator import SYNC_S, HorizontalPodAutoscaler
from inflight_simulator.fleet.scalers.signals import waiting
from inflight_simulator.fleet.view import FleetView

WAITING_PER_REPLICA = 5.0


class KedaProductionStack:
    interval_s = SYNC_S

    def __init__(self) -> None:
        self._hpa = HorizontalPodAutoscaler()

    def replicas(self, view: FleetView) -> int:
        return self._hpa.by_totals(view, [(waiting(view), WAITING_PER_REPLICA)])
