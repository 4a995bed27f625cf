"""Scores of a replica for a request: each is a prediction in seconds."""

from __future__ import annotations

from inflight_gateway.pick.replica_state import ReplicaState
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
        "pending_tokens": weights.pending_tokens * state.backlog_s,
        "running": weights.running * running_seconds(state, per_ttft),
        "kv_cache": weights.kv_cache * kv_cache_seconds(state, per_ttft),
        "predicted_ttft": weights.predicted_ttft * predicted_ttft_seconds(state),
        "prefix": weights.prefix * state.own_prefill_s,
    }


def tokens_per_ttft(config: ServiceConfig) -> float:
    """Ratio of the two targets, see `running_seconds`."""
    return config.ttft_s / config.tpot_s if config.tpot_s > 0 else 0.0


def running_seconds(state: ReplicaState, tokens_per_ttft: float) -> float:
    """Time that running and starting sequences add between two tokens, in seconds of TTFT.

    Args:
        tokens_per_ttft: TTFT target / TPOT target. A second between tokens uses this many times the share of its target
            that a second before the first token uses.
    """
    return tokens_per_ttft * state.cost.decode_seq_s * max(state.decoding.decode_seqs, state.outstanding)


def kv_cache_seconds(state: ReplicaState, tokens_per_ttft: float) -> float:
    """Time that KV cache reads add between two tokens, in seconds of TTFT, plus the seconds of lost prefill if tokens
    do not fit: another request is then preempted and recomputed.

    Args:
        tokens_per_ttft: as in `running_seconds`.
    """
    used, size = state.used_kv_tokens, state.sample.kv_cache_tokens
    reading = tokens_per_ttft * state.cost.decode_kv_token_s * used
    if not size:
        return reading
    lacking = max(0.0, used + state.pending_tokens + state.uncached_tokens - size)
    return reading + state.cost.prefill_seconds(min(lacking, size))


def predicted_ttft_seconds(state: ReplicaState) -> float:
    """Backlog, then the request's own prefill, in a step that the replica's decodes share. The step in progress when
    the request arrives, if any, counts half."""
    step_s = state.cost.seconds(state.decoding)
    under_way_s = step_s / 2 if state.decoding.decode_seqs or state.pending_tokens else 0.0
    return under_way_s + state.backlog_s + state.own_prefill_s + step_s
