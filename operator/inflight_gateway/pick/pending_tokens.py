"""Score: prompt tokens that a replica still has to compute."""

from __future__ import annotations

from inflight_gateway.pick.replica_state import ReplicaState


def pending_tokens_seconds(state: ReplicaState) -> float:
    """Seconds until the tokens ahead of the request are computed: those of the sample, plus those sent since its scrape
    began, minus those in prefix caches and those computed meanwhile."""
    return state.backlog_s
