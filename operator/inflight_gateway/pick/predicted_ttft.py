"""Score: predicted time to first token."""

from __future__ import annotations

from inflight_gateway.pick.replica_state import ReplicaState


def predicted_ttft_seconds(state: ReplicaState) -> float:
    """Backlog, then the request's own prefill, in a step that the replica's decodes share. The step in progress when
    the request arrives, if any, counts half."""
    step_s = state.cost.seconds(state.decoding)
    under_way_s = step_s / 2 if state.decoding.decode_seqs or state.pending_tokens else 0.0
    return under_way_s + state.backlog_s + state.own_prefill_s + step_s
