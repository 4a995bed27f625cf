"""`llmd-queue`: llm-d's default recipe for KEDA, on the queue of the endpoint picker's flow control.

Source: llm-d guides, 54a46d3e and 057abb4a (2026-08/09): the largest of queue / 1 and running requests / 16, windows
300 s up and down, 100% in 15 s. Its bounds of 1 to 8 replicas are replaced by the fleet's.

The simulation has no flow control: `signals.flow_control_queue` says what stands in for its queue.
"""

from __future__ import annotations

from inflight_operator.decide.behavior import Behavior, ScalingRules
from inflight_simulator.fleet.scalers.actuator import ALL_IN_15_S, SYNC_S, HorizontalPodAutoscaler
from inflight_simulator.fleet.scalers.signals import flow_control_queue, running
from inflight_simulator.fleet.view import FleetView

QUEUED_PER_REPLICA = 1.0
RUNNING_PER_REPLICA = 16.0
BEHAVIOR = Behavior(ScalingRules(300.0, (ALL_IN_15_S,)), ScalingRules(300.0, (ALL_IN_15_S,)))


class LlmdQueue:
    interval_s = SYNC_S

    def __init__(self) -> None:
        self._hpa = HorizontalPodAutoscaler(BEHAVIOR)

    def replicas(self, view: FleetView) -> int:
        totals = [(flow_control_queue(view), QUEUED_PER_REPLICA), (running(view), RUNNING_PER_REPLICA)]
        return self._hpa.by_totals(view, totals)
