"""Score: the part of the prompt that a replica's prefix cache does not hold."""

from __future__ import annotations

from inflight_gateway.pick.replica_state import ReplicaState


def prefix_seconds(state: ReplicaState) -> float:
    """Seconds of work that the request adds to the replica: all later requests there wait for it."""
    return state.own_prefill_s
