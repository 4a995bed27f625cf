"""`llmd-token-aware`: llm-d's experimental recipe for KEDA on prompt tokens in flight.

Source: llm-d guides, b06ec635 (2026-09): the largest of uncached tokens in flight / V / 1.5 s and the sum of KV cache
usage / 0.8; up without a window and 1 pod in 180 s, down after 300 s and 1 pod in 300 s. The bound of 10 replicas is
replaced by the fleet's.

V, the prompt tokens that an idle replica computes in a second, is calibrated by hand (15,928 for Qwen3-32B on two
H100). Here it comes from the replica's cost model: one step that is a full budget of one prompt. Prompt tokens that the
pods have not computed yet stand in for the endpoint picker's count of tokens in flight.
"""

from __future__ import annotations

from inflight_cost.capacity import StepLimits
from inflight_cost.model import CostModel, StepWork, attended_tokens
from inflight_operator.decide.behavior import Behavior, ScalingPolicy, ScalingRules
from inflight_simulator.fleet.scalers.actuator import SYNC_S, HorizontalPodAutoscaler
from inflight_simulator.fleet.scalers.signals import samples, uncomputed_tokens
from inflight_simulator.fleet.view import FleetView

BACKLOG_S = 1.5
KV_USAGE = 0.8
BEHAVIOR = Behavior(
    ScalingRules(0.0, (ScalingPolicy("Pods", 1, 180.0),)), ScalingRules(300.0, (ScalingPolicy("Pods", 1, 300.0),))
)


def idle_prefill_rate(cost: CostModel, limits: StepLimits) -> float:
    """Prompt tokens a second of a replica that does nothing else."""
    tokens = limits.max_num_batched_tokens
    return tokens / cost.seconds(StepWork(0, tokens, 0, attended_tokens(0, tokens)))


class LlmdTokenAware:
    """
    Args:
        prefill_rate: V, prompt tokens a second.
    """

    interval_s = SYNC_S

    def __init__(self, prefill_rate: float) -> None:
        self._tokens_per_replica = prefill_rate * BACKLOG_S
        self._hpa = HorizontalPodAutoscaler(BEHAVIOR)

    def replicas(self, view: FleetView) -> int:
        tokens = sum(map(uncomputed_tokens, samples(view)))
        kv = sum(sample.kv_usage for sample in samples(view))
        return self._hpa.by_totals(view, [(tokens, self._tokens_per_replica), (kv, KV_USAGE)])
