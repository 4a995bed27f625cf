"""Time that an engine needs for its waiting prompt tokens."""

from __future__ import annotations

from inflight_cost.model import CostModel, StepWork


def backlog_seconds(
    cost: CostModel,
    tokens: float,
    attended: float,
    decoding: StepWork,
    max_num_batched_tokens: int,
    copied: float = 0.0,
) -> float:
    """Seconds until so many prompt tokens are computed, in steps that also do what `decoding` says and fill the rest of
    their budget with them.

    Args:
        attended: tokens that a prompt token attends to, on average.
        copied: tokens that are copied to or from host memory for each of them, on average.
    """
    if not tokens:
        return 0.0
    room = max(1.0, max_num_batched_tokens - decoding.decode_seqs)
    full, rest = divmod(tokens, room)

    def seconds(prefill: float) -> float:
        return cost.seconds(
            decoding._replace(
                prefill_tokens=prefill, prefill_context_tokens=prefill * attended, copied_tokens=prefill * copied
            )
        )

    return full * seconds(room) + (seconds(rest) if rest else 0.0)
