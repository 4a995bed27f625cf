"""Score: requests that decode on a replica."""

from __future__ import annotations

from inflight_gateway.pick.replica_state import ReplicaState


def running_seconds(state: ReplicaState, tokens_per_ttft: float) -> float:
    """Time that running and starting sequences add between two tokens, in seconds of TTFT.

    Args:
        tokens_per_ttft: TTFT target / TPOT target. A second between tokens uses this many times the share of its target
            that a second before the first token uses.
    """
    return tokens_per_ttft * state.cost.decode_seq_s * max(state.decoding.decode_seqs, state.outstanding)
