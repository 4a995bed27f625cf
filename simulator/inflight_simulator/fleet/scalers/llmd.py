"""llm-d's recipes for KEDA and for targets, from its guides (2026-08/09). The fleet's bounds replace those of each
recipe."""

from __future__ import annotations

import math

from inflight_cost.model import CostModel, StepWork, attended_tokens
from inflight_operator.decide.replicas.behavior import Behavior, ScalingPolicy, ScalingRules
from inflight_settings.limits import Limits
from inflight_simulator.fleet.scalers.hpa import ALL_IN_15_S, Hpa, by_totals
from inflight_simulator.fleet.scalers.signals import (
    Recent,
    Traffic,
    flow_control_queue,
    kv_usage,
    rounded_up,
    running,
    saturation,
    uncomputed_tokens,
)
from inflight_simulator.fleet.view import FleetView

RUNNING_PER_REPLICA = 16.0
_300_S = ScalingRules(300.0, (ALL_IN_15_S,))


def llmd_queue() -> Hpa:
    """`llmd-queue`: llm-d's default recipe, on the queue of the endpoint picker's flow control.

    Source: 54a46d3e and 057abb4a: the largest of queue / 1 and running requests / 16, windows 300 s up and down, 100%
    in 15 s. The simulation has no flow control: `signals.flow_control_queue` says what stands in for its queue.
    """
    return Hpa(by_totals((flow_control_queue, 1.0), (running, RUNNING_PER_REPLICA)), Behavior(_300_S, _300_S))


def llmd_saturation() -> Hpa:
    """`llmd-saturation`: on the saturation of the pool.

    Source: 321a7e8c: the largest of saturation / 0.7 and running requests / 16, windows 300 s up and down. Saturation
    is a mean over pods and is divided as if it were a total, so that running requests decide almost alone. Pods whose
    data are older than 200 ms count as saturated; here data are always fresh.
    """
    return Hpa(by_totals((saturation, 0.7), (running, RUNNING_PER_REPLICA)), Behavior(_300_S, _300_S))


def llmd_token_aware(prefill_rate: float) -> Hpa:
    """`llmd-token-aware`: an experimental recipe, on prompt tokens in flight.

    Source: b06ec635: the largest of uncached tokens in flight / V / 1.5 s and the sum of KV cache usage / 0.8; up
    without a window and 1 pod in 180 s, down after 300 s and 1 pod in 300 s. Prompt tokens that the pods have not
    computed yet stand in for the endpoint picker's count of tokens in flight.

    Args:
        prefill_rate: V, prompt tokens that an idle replica computes in a second; the guide calibrates it by hand
            (15,928 for Qwen3-32B on two H100).
    """
    up, down = ScalingPolicy("Pods", 1, 180.0), ScalingPolicy("Pods", 1, 300.0)
    return Hpa(
        by_totals((uncomputed_tokens, prefill_rate * 1.5), (kv_usage, 0.8)),
        Behavior(ScalingRules(0.0, (up,)), ScalingRules(300.0, (down,))),
    )


def idle_prefill_rate(cost: CostModel, limits: Limits) -> float:
    """Prompt tokens a second of a replica that does nothing else: one step that is a full budget of one prompt."""
    tokens = limits.max_num_batched_tokens
    return tokens / cost.seconds(StepWork(0, tokens, 0, attended_tokens(0, tokens)))


def llmd_slo(ttft: float, tpot: float) -> Hpa:
    """`llmd-slo`: the SLO-aware recipe, which scales on how near the 90th percentiles are to their targets.

    Source: 560d420e, manifests of fork c397e679. Every 15 s: the larger of P90 TTFT and P90 TPOT over 1 min, each by
    its target, at most 2; their mean over 45 s is the score. Up: window 30 s, the larger of 100% and 4 pods in 60 s;
    down: window 180 s, 1 pod in 120 s. The number goes through the HPA with a target of 1.

    Measured latencies stand in for predicted ones, as in the recipe where no predictor runs. Targets are the fleet's in
    place of the recipe's 3 s and 0.1 s: a user would set their own.

    Args:
        ttft, tpot: targets in seconds.
    """
    traffic, scores = Traffic(60.0), Recent(45.0)

    def wanted(view: FleetView) -> int:
        growth = traffic.observe(view)
        p90_ttft, p90_tpot = growth.ttft.percentile(0.9) or 0.0, growth.tpot.percentile(0.9) or 0.0
        scores.add(view.now, min(2.0, max(p90_ttft / ttft, p90_tpot / tpot)))
        return replicas_by_score(scores.mean, view.ordered, len(view.ready))

    up = (ScalingPolicy("Percent", 100, 60.0), ScalingPolicy("Pods", 4, 60.0))
    down = (ScalingPolicy("Pods", 1, 120.0),)
    return Hpa(by_totals((wanted, 1.0)), Behavior(ScalingRules(30.0, up), ScalingRules(180.0, down)))


def replicas_by_score(score: float, replicas: int, ready: int) -> int:
    """Returns the replicas for a score. With n replicas of which r are ready, g = r / n: above a score of 0.55 n +
    ceil(n (score g / 0.55 - 1)), below 0.40 n - floor(n (1 - score / 0.40)). Replicas that start are credited in the
    order for more."""
    started = ready / replicas if 0 < ready < replicas else 1.0
    if score > 0.55:
        return replicas + rounded_up(replicas * (score * started / 0.55 - 1))
    if score < 0.40:
        return replicas - math.floor(round(replicas * (1 - score / 0.40), 9))
    return replicas
