"""Late binding by its formula, which `ranking.py` computes from its own constants."""

from __future__ import annotations

from inflight_cost.model import StepWork
from inflight_gateway.pick.late_binding import LEAST_STEPS, TTFT_SHARE, leaves_kv_cache, most_outstanding
from inflight_gateway.pick.load import waits_for_blocks
from tests.gateway.pick.formulas import ReplicaState


def can_start_soon(
    state: ReplicaState,
    ttft_s: float,
    above_share: bool = False,
    below_share: bool = False,
    claimed: int = 0,
    choices: int = 1,
) -> bool:
    """Considers only the work ahead of the request, so that a prompt of any length starts at an idle replica."""
    most = most_outstanding(state.sample.limits.max_num_seqs, above_share, claimed)
    # The slots that a tenant above its share leaves free take none of its choices.
    if state.outstanding + (min(choices, most) if above_share else 1) > most:
        return False
    # The engine lets it pass those that wait for blocks, if they are of another tenant.
    passes = below_share and waits_for_blocks(state.sample)
    if not passes and not _backlog_is_short(state, ttft_s):
        return False
    held_tokens = state.used_kv_tokens + state.sample.waiting_prompt_tokens + state.load.sent_tokens
    return not above_share or leaves_kv_cache(state.sample, state.load, held_tokens, state.needed_tokens, choices)


def _backlog_is_short(state: ReplicaState, ttft_s: float) -> bool:
    pending, budget = state.pending_tokens, state.sample.limits.max_num_batched_tokens
    if pending <= LEAST_STEPS * budget:
        return True
    if not state.measured:
        return False
    return state.backlog_s <= max(TTFT_SHARE * ttft_s, LEAST_STEPS * _full_step_s(state)) + _saved_prefill_s(state)


def _full_step_s(state: ReplicaState) -> float:
    budget = state.sample.limits.max_num_batched_tokens
    work: StepWork = state.decoding._replace(
        prefill_tokens=budget, prefill_context_tokens=budget * state.attended_tokens
    )
    return state.cost.seconds(work)


def _saved_prefill_s(state: ReplicaState) -> float:
    """Seconds that the prefix cache saves the replica."""
    cached = state.load.cached_tokens
    return state.cost.prefill_seconds(state.uncached_tokens + cached) - state.own_prefill_s if cached else 0.0
