"""`dynamo-throughput`: Dynamo's planner in its default mode, by thresholds of the KV cache.

Source: as `dynamo_model`. Every 5 s, for aggregated engines: use = (scheduled + queued KV + queued prompt tokens) / KV
cache; one replica more if any engine's is above 1.0, one less if all are below 0.6. While a replica starts it only
observes. Its GPU budget of 8 is replaced by the fleet's bounds.
"""

from __future__ import annotations

from collections.abc import Sequence

from inflight_simulator.fleet.scalers.dynamo_load import TICK_S, engine_loads, scaling_in_progress
from inflight_simulator.fleet.view import FleetView

UP, DOWN = 1.0, 0.6


def change(uses: Sequence[float]) -> int:
    """1, 0 or -1 replicas for engines of these uses."""
    if any(use > UP for use in uses):
        return 1
    return -1 if uses and all(use < DOWN for use in uses) else 0


class DynamoThroughput:
    interval_s = TICK_S

    def replicas(self, view: FleetView) -> int:
        if scaling_in_progress(view):
            return view.ordered
        capacities = [pod.kv_tokens for pod in view.ready if pod.sample is not None]
        loads = engine_loads(view)
        uses = [(load.kv_tokens + load.queued_tokens) / kv for load, kv in zip(loads, capacities, strict=True)]
        return view.ordered + change(uses)
