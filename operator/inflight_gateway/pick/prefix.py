"""Score: what of the prompt a replica's prefix cache does not hold."""

from __future__ import annotations

from inflight_gateway.pick.replica_state import ReplicaState


def prefix_seconds(state: ReplicaState) -> float:
    """Seconds of work that the request brings to the replica: everything sent there later waits for it."""
    return state.own_prefill_s
