"""Bottlenecks of a replica under growing load, by the capacity model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from inflight_cost.capacity import Margins, Replica, Steady, StepLimits, Targets, Workload, steady

TTFT, TPOT, KV_CACHE, SLOTS = "TTFT", "TPOT", "KV cache", "slots"

MOST = 1000.0
"""Multiple of the load from which a resource counts as unlimited."""
_HALVINGS = 40


def breaking_points(
    replica: Replica, workload: Workload, rate: float, targets: Targets, limits: StepLimits
) -> dict[str, float]:
    """Multiple of `rate`, requests a second of one replica, that each resource sustains, smallest first.

    `TTFT` is prefill: the share of full steps, or of the time, that prompts take. Margins are those of the capacity
    model, so that 1.0 is the load that it would plan for. Targets that are None are left out.
    """
    margins = Margins()
    holds: dict[str, Callable[[Steady], bool]] = {
        KV_CACHE: lambda found: found.running * workload.decode_context <= margins.kv * replica.kv_tokens,
        SLOTS: lambda found: found.running <= limits.max_num_seqs,
    }
    if targets.ttft is not None:
        holds[TTFT] = lambda found: found.prefill_load <= margins.prefill and found.prefill_share <= margins.busy
    if (tpot := targets.tpot) is not None:
        holds[TPOT] = lambda found: found.tpot <= margins.tpot * tpot
    points = {
        name: _largest_factor(lambda factor, each=each: each(steady(replica, workload, factor * rate, limits)))  # type: ignore[misc]
        for name, each in holds.items()
    }
    return dict(sorted(points.items(), key=lambda point: point[1]))


def first_to_break(points: Mapping[str, float]) -> str:
    return min(points, key=points.__getitem__)


def _largest_factor(holds: Callable[[float], bool]) -> float:
    """Up to `MOST`; infinite if it holds even there."""
    if holds(MOST):
        return math.inf
    low, high = 0.0, MOST
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
