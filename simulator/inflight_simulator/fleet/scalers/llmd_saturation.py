"""`llmd-saturation`: llm-d's recipe for KEDA on the saturation of the pool.

Source: llm-d guides, 321a7e8c (2026-08/09): the largest of saturation / 0.7 and running requests / 16, windows 300 s up
and down. Saturation is a mean over pods and is divided as if it were a total, so that running requests decide almost
alone. Pods whose data are older than 200 ms count as saturated; here data are always fresh. The recipe's bound of 10
replicas is replaced by the fleet's.
"""

from __future__ import annotations

from inflight_simulator.fleet.scalers.actuator import SYNC_S, HorizontalPodAutoscaler
from inflight_simulator.fleet.scalers.llmd_queue import BEHAVIOR, RUNNING_PER_REPLICA
from inflight_simulator.fleet.scalers.signals import running, saturation
from inflight_simulator.fleet.view import FleetView

SATURATION = 0.7


class LlmdSaturation:
    interval_s = SYNC_S

    def __init__(self) -> None:
        self._hpa = HorizontalPodAutoscaler(BEHAVIOR)

    def replicas(self, view: FleetView) -> int:
        return self._hpa.by_totals(view, [(saturation(view), SATURATION), (running(view), RUNNING_PER_REPLICA)])
