"""All scores together."""

from __future__ import annotations

from inflight_gateway.pick.kv_cache import kv_cache_seconds
from inflight_gateway.pick.pending_tokens import pending_tokens_seconds
from inflight_gateway.pick.predicted_ttft import predicted_ttft_seconds
from inflight_gateway.pick.prefix import prefix_seconds
from inflight_gateway.pick.replica_state import ReplicaState
from inflight_gateway.pick.running import running_seconds
from inflight_gateway.types import ServiceConfig


def scores(state: ReplicaState, config: ServiceConfig) -> dict[str, float]:
    """Seconds by the name of each score, times its weight; the replica with the smallest sum is the best.

    Every score is a prediction in seconds, so weights have no unit and 1 is right for all: none needs tuning to the
    size of a model, a GPU or a prompt. `predicted_ttft` is the wait of the request. `pending_tokens` and `prefix` count
    its two parts once more, as the replica's backlog and the work added by this request, which delays later requests.
    `running` and `kv_cache` are the cost of decoding beside the others, in seconds of TTFT by the ratio of the two
    targets.
    """
    weights = config.weights
    per_ttft = tokens_per_ttft(config)
    return {
        "pending_tokens": weights.pending_tokens * pending_tokens_seconds(state),
        "running": weights.running * running_seconds(state, per_ttft),
        "kv_cache": weights.kv_cache * kv_cache_seconds(state, per_ttft),
        "predicted_ttft": weights.predicted_ttft * predicted_ttft_seconds(state),
        "prefix": weights.prefix * prefix_seconds(state),
    }


def tokens_per_ttft(config: ServiceConfig) -> float:
    """Ratio of the two targets, see `running_seconds`."""
    return config.ttft_s / config.tpot_s if config.tpot_s > 0 else 0.0
