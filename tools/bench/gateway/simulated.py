"""Simulation of the same load with the same policies, with the cost model that the replicas fitted themselves.

The fit is the mean of a replica's steps; the spread around it goes into the simulation as noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from inflight_cost.model import StepWork
from inflight_operator.observe.metrics import Sample
from inflight_settings.limits import Limits
from inflight_simulator.fleet.config import ROUTINGS, FleetConfig, ReplicaModel, RequestTargets, Routing
from inflight_simulator.fleet.requests import Requests
from inflight_simulator.fleet.run import simulate_fleet
from inflight_simulator.fleet.view import Fixed
from tools.bench.gateway.conversations import BLOCK_TOKENS, Turn
from tools.measure.report import percentile

POLICIES: tuple[Routing, ...] = tuple(each for each in ROUTINGS if each != "least-work")
"""Measured policies that are simulated: without plain Service, as the simulator has no clients with connections."""

_SEEDS = 20
_TYPICAL = StepWork(4, 256, 1600, 65_536)
_MEDIAN_OF_NORMAL = 0.6745
"""Median of the absolute value of a standard normal variable."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """Results of one policy, medians over seeds of the noise. Attributes: ttft_*: seconds; _low and _high are the tenth
    and ninetieth percentiles over the seeds. hit_rate: see `Routed`."""

    policy: str
    ttft_p50: float
    ttft_p95: float
    ttft_p95_low: float
    ttft_p95_high: float
    hit_rate: float


def replica_model(samples: Sequence[Sample]) -> ReplicaModel:
    """The replica with the median duration of a typical step.

    Raises:
        RuntimeError: no replica reports a cost model.
    """
    fitted = sorted(
        (cost.seconds(_TYPICAL), number) for number, each in enumerate(samples) if (cost := each.cost) is not None
    )
    if not fitted:
        raise RuntimeError("no replica fitted a cost model: the load was too short")
    chosen = samples[fitted[(len(fitted) - 1) // 2][1]]
    assert chosen.cost is not None
    error = chosen.cost_error or 0.0
    return ReplicaModel(
        cost=chosen.cost, kv_tokens=int(chosen.kv_tokens or 0), noise=math.log1p(error) / _MEDIAN_OF_NORMAL
    )


def simulate(
    turns: Sequence[Turn], replica: ReplicaModel, replicas: int, limits: Limits, ttft_s: float
) -> list[Simulated]:
    """The load by each of `POLICIES`.

    Args:
        ttft_s: target of the service, which bounds what the gateway queues at a replica.
    """
    requests = Requests.sorted(
        np.array([turn.at_s for turn in turns]),
        np.array([len(turn.prompt) for turn in turns], np.int64),
        np.array([turn.output_tokens for turn in turns], np.int64),
        tuple(turn.hash_ids for turn in turns),
        hash_tokens=BLOCK_TOKENS,
    )
    targets = RequestTargets(ttft=ttft_s, long_ttft=ttft_s)
    found = []
    for routing in POLICIES:
        config = FleetConfig(replica=replica, limits=limits, routing=routing, targets=targets)
        rows = [_figures(requests, replace(config, seed=seed), replicas) for seed in range(_SEEDS)]
        p50, p95, hits = zip(*rows, strict=True)
        low, middle, high = np.quantile(p95, (0.1, 0.5, 0.9)).tolist()
        found.append(Simulated(routing, float(np.median(p50)), middle, low, high, float(np.median(hits))))
    return found


def _figures(requests: Requests, config: FleetConfig, replicas: int) -> tuple[float, float, float]:
    run = simulate_fleet(requests, config, Fixed(replicas))
    ttfts = run.ttft.tolist()
    return percentile(ttfts, 0.5), percentile(ttfts, 0.95), run.prefix_hits / max(1, run.prefix_queries)
