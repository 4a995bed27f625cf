"""`knative`: the Knative Pod Autoscaler on concurrent requests.

Source: knative/serving 1.23.0, 98e5ef90 (2026-08-21), pkg/autoscaler/scaling/autoscaler.go. Tick 2 s, windows of 60 s
(stable) and 6 s (panic), target 70% of 100 concurrent requests. Replicas wanted = ceil(mean / target), between half and
1,000 times those that are ready. Panic begins where the panic window wants at least twice the ready pods, and ends 60 s
after that was last so; until then replicas never fall. The ratio is to ready pods, so that slow loading prolongs panic.
"""

from __future__ import annotations

import math

from inflight_simulator.fleet.scalers.signals import Recent, in_flight
from inflight_simulator.fleet.view import FleetView

TICK_S = 2.0
STABLE_S, PANIC_S = 60.0, 6.0
TARGET = 70.0
PANIC_THRESHOLD = 2.0
MOST_UP, MOST_DOWN = 1000.0, 2.0


def wanted(mean: float, ready: int) -> int:
    """Replicas for a mean of concurrent requests, within the rates of change."""
    pods = max(1, ready)
    return int(min(max(math.ceil(mean / TARGET), math.floor(pods / MOST_DOWN)), math.ceil(MOST_UP * pods)))


class Knative:
    interval_s = TICK_S

    def __init__(self) -> None:
        self._stable, self._panic = Recent(STABLE_S), Recent(PANIC_S)
        self._panicked_s: float | None = None
        self._most = 0

    def replicas(self, view: FleetView) -> int:
        concurrent, ready = in_flight(view), len(view.ready)
        self._stable.add(view.now, concurrent)
        self._panic.add(view.now, concurrent)
        if math.ceil(self._panic.mean / TARGET) / max(1, ready) >= PANIC_THRESHOLD:
            self._panicked_s = view.now
        elif self._panicked_s is not None and view.now - self._panicked_s > STABLE_S:
            self._panicked_s, self._most = None, 0
        desired = wanted(self._stable.mean, ready)
        if self._panicked_s is None:
            return desired
        self._most = max(self._most, desired, wanted(self._panic.mean, ready))
        return self._most
