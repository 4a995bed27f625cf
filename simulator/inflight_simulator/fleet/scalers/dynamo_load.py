"""`dynamo-load`: the load loop of Dynamo's planner in SLA mode, for aggregated engines.

Source: as `dynamo_model`. Every 5 s: one replica more if all engines are predicted to miss TTFT, or all to miss the
time between tokens; one less only if, with the load of n on n - 1, every engine keeps the part of TTFT that its queue
adds below 0.8 of what the target leaves, the time between tokens below 0.8 of its target, and the KV cache suffices.
While a replica starts it only observes: one replica each start-up at most. Its GPU budget of 8 is replaced by the
fleet's bounds.
"""

from __future__ import annotations

from collections.abc import Sequence

from inflight_simulator.fleet.scalers.dynamo_model import EngineLoad, IterationModel, Means
from inflight_simulator.fleet.scalers.signals import uncomputed_tokens
from inflight_simulator.fleet.scalers.windows import Traffic
from inflight_simulator.fleet.view import FleetView

TICK_S = 5.0
MEANS_S = 180.0
SENSITIVITY = 0.8


def engine_loads(view: FleetView) -> list[EngineLoad]:
    return [
        EngineLoad(pod.sample.running, pod.sample.kv_usage * pod.kv_tokens, uncomputed_tokens(pod.sample))
        for pod in view.ready
        if pod.sample is not None
    ]


def scaling_in_progress(view: FleetView) -> bool:
    return len(view.ready) != view.ordered


def change(loads: Sequence[EngineLoad], model: IterationModel, means: Means, ttft: float, tpot: float) -> int:
    """1, 0 or -1 replicas for engines of which each has one of `loads`."""
    if all(model.ttft(load, means) > ttft for load in loads) or all(model.itl(load, means) > tpot for load in loads):
        return 1
    after = [load.consolidated(len(loads)) for load in loads] if len(loads) > 1 else []
    return -1 if after and all(_keeps(load, model, means, ttft, tpot) for load in after) else 0


def _keeps(load: EngineLoad, model: IterationModel, means: Means, ttft: float, tpot: float) -> bool:
    own = model.ttft(EngineLoad(load.running, load.kv_tokens, 0.0), means)
    combined = EngineLoad(load.running, load.kv_tokens + load.queued_tokens, 0.0)
    return (
        model.ttft(load, means) - own < SENSITIVITY * (ttft - own)
        and model.itl(combined, means) < SENSITIVITY * tpot
        and combined.kv_tokens < model.kv_capacity
    )


class DynamoLoad:
    """
    Args:
        ttft, tpot: targets in seconds.
    """

    interval_s = TICK_S

    def __init__(self, model: IterationModel, ttft: float, tpot: float) -> None:
        self._model, self._ttft, self._tpot = model, ttft, tpot
        self._traffic = Traffic(MEANS_S)

    def replicas(self, view: FleetView) -> int:
        self._traffic.observe(view)
        growth, loads = self._traffic.growth, engine_loads(view)
        if not loads or growth.prompt is None or scaling_in_progress(view):
            return view.ordered
        means = Means(growth.prompt, growth.output or 1.0, growth.hit_rate, growth.step_prefill)
        return view.ordered + change(loads, self._model, means, self._ttft, self._tpot)
