"""`aibrix-apa` and `aibrix-kpa`: the two algorithms of AIBrix's PodAutoscaler, on the KV cache in use.

Source: vllm-project/aibrix 0.7.0, e3e10f9e (2026-08-22). Loop 10 s, mean over the pods that answer, windows of 180 s
(stable) and 60 s (panic), tolerance 0.10, at most twice and at least half as many, target 0.5 as in its sample. On the
way down the cooldown of 300 s takes the smallest recommendation of its window, where an HPA takes the largest: it
delays nothing.
"""

from __future__ import annotations

from typing import Literal

from inflight_simulator.fleet.scalers.signals import Recent, rounded_up, samples
from inflight_simulator.fleet.view import FleetView

LOOP_S = 10.0
STABLE_S, PANIC_S, COOLDOWN_S = 180.0, 60.0, 300.0
TOLERANCE = 0.10
TARGET = 0.5
PANIC_THRESHOLD = 2.0


def apa(mean: float, target: float, replicas: int) -> int:
    """Replicas by the stable mean. `replicas` counts those that start, so that overload doubles each loop: 2, 4, 8."""
    share = mean / target
    wanted = rounded_up(replicas * share)
    if share > 1 + TOLERANCE:
        return min(wanted, 2 * replicas)
    return max(wanted, replicas // 2) if share < 1 - TOLERANCE else replicas


def kpa(stable: float, panic: float, target: float, replicas: int) -> int:
    """Replicas by both means. A mean per pod is taken for a total: eight replicas at 0.6 with a target of 0.5 become
    four. Panic is detected again in each loop, and so has no hold time."""
    mean = max(stable, panic) if stable > 0 and panic / stable > PANIC_THRESHOLD else stable
    return min(max(rounded_up(mean / target), replicas // 2), 2 * replicas)


class Aibrix:
    interval_s = LOOP_S

    def __init__(self, algorithm: Literal["apa", "kpa"]) -> None:
        self._algorithm = algorithm
        self._stable, self._panic = Recent(STABLE_S), Recent(PANIC_S)
        self._wanted = Recent(COOLDOWN_S)

    def replicas(self, view: FleetView) -> int:
        usages = [sample.kv_usage or 0.0 for sample in samples(view)]
        if not usages:
            return view.ordered
        for window in (self._stable, self._panic):
            window.add(view.now, sum(usages) / len(usages))
        if self._algorithm == "apa":
            wanted = apa(self._stable.mean, TARGET, view.ordered)
        else:
            wanted = kpa(self._stable.mean, self._panic.mean, TARGET, view.ordered)
        wanted = view.bounded(wanted)
        self._wanted.add(view.now, wanted)
        return int(self._wanted.smallest) if wanted < view.ordered else wanted
