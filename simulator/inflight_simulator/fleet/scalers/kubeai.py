"""`kubeai`: KubeAI's autoscaler on requests in flight.

Source: kubeai-project/kubeai 0.22.1 (2025-10-15). Every 10 s: requests that run or are held at the proxy, their mean
over 10 min (60 samples that start at zero), ceil(mean / 100). More at once; fewer after three lower votes in a row
(30 s). A total over the model, so that replicas that start never count twice.
"""

from __future__ import annotations

import math
from collections import deque

from inflight_simulator.fleet.scalers.signals import in_flight
from inflight_simulator.fleet.view import FleetView

INTERVAL_S = 10.0
SAMPLES = 60
TARGET = 100.0
VOTES = 3


class KubeAI:
    interval_s = INTERVAL_S

    def __init__(self) -> None:
        self._samples = deque([0.0] * SAMPLES, maxlen=SAMPLES)
        self._lower = 0

    def replicas(self, view: FleetView) -> int:
        self._samples.append(in_flight(view))
        wanted = max(view.min_replicas, math.ceil(sum(self._samples) / SAMPLES / TARGET))
        self._lower = self._lower + 1 if wanted < view.ordered else 0
        if wanted < view.ordered and self._lower < VOTES:
            return view.ordered
        self._lower = 0
        return wanted
