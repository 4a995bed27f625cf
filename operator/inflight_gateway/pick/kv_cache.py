"""Score: use of a replica's KV cache, and whether the request fits."""

from __future__ import annotations

from inflight_gateway.pick.replica_state import ReplicaState


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
