"""Until when a request can start, to have its first token by its deadline."""

from __future__ import annotations

from inflight_cost.model import CostModel, StepWork

_OTHERS = 0.2
"""Margin for other requests, as a share of the target. In simulated fleets under overload 0 keeps 1 to 3 points fewer
requests in time, and 0.1 nearly as many."""


def latest_start(
    cost: CostModel,
    deadline: float,
    target: float,
    *,
    computed: int,
    cached: int,
    num_running: int,
    kv_tokens: int,
    max_num_batched_tokens: int,
) -> float:
    """Returns the deadline - what computing the prompt adds to steps - these steps with the decodes that run: as many
    as the token budget makes of it - what others take of the time: the step under way, and the rest of the last one,
    full ones both where requests wait, but at most `_OTHERS` of the target.

    Args:
        deadline: in seconds, on any clock.
        target: seconds from the arrival to the deadline.
        computed, cached: tokens of the prompt that are to be computed, and those that come before them.
        num_running, kv_tokens: requests that run, and the tokens that their decodes read.
    """
    num_steps = -(-computed // max_num_batched_tokens)
    decodes = cost.seconds(StepWork(num_running, 0, kv_tokens, 0))
    full = cost.seconds(StepWork(num_running, max(0, max_num_batched_tokens - num_running), kv_tokens, 0))
    own = cost.prefill_seconds(computed, cached) + num_steps * decodes
    return deadline - own - min(2 * full, _OTHERS * target)
