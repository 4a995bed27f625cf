"""The scores of a replica by their plain formulas, which `ranking.py` computes from its own constants."""

from __future__ import annotations

from typing import NamedTuple

from inflight_cost.backlog import backlog_seconds
from inflight_cost.model import CostModel, StepWork
from inflight_gateway.pick.load import DEFAULT_COST, EndpointLoad, decode_work, is_fresh, load_seconds
from inflight_gateway.pick.ranking import tokens_per_ttft
from inflight_gateway.types import EngineSample, RequestView, ServiceConfig


class ReplicaState(NamedTuple):
    """State of a replica.

    Attributes:
        load: input of the state.
        cost: of its steps. measured: `cost` is the engine's own, or that of another replica of the service.
        pending_tokens: prompt tokens computed before those of the request.
        uncached_tokens: tokens of the request's prompt that the replica would compute.
        needed_tokens: those that it would compute or load.
        attended_tokens: mean context of a pending prompt token.
        decoding: work of each step besides prefill.
        outstanding: unfinished requests sent there.
        backlog_s: seconds until the pending tokens are computed.
        own_prefill_s: seconds that the request's own prompt adds there, loads among them.
    """

    load: EndpointLoad
    sample: EngineSample
    cost: CostModel
    measured: bool
    pending_tokens: int
    uncached_tokens: int
    needed_tokens: int
    attended_tokens: float
    decoding: StepWork
    outstanding: int
    backlog_s: float
    own_prefill_s: float

    @property
    def used_kv_tokens(self) -> float:
        return self.sample.kv_utilization * self.sample.kv_cache_tokens


def replica_state(load: EndpointLoad, request: RequestView, cost: CostModel | None, now: float) -> ReplicaState:
    """
    Args:
        cost: of another replica of the service, for one that has not fitted its own; None: no replica has.
    """
    sample = load.sample or EngineSample(at=now)
    fresh = is_fresh(load, now)
    waiting_tokens = sample.waiting_prompt_tokens if fresh else 0
    running = sample.running if fresh else max(0, load.in_flight)
    mean_prompt = waiting_tokens / sample.waiting if fresh and sample.waiting else request.prompt_tokens
    known = sample.cost or cost
    used = known or DEFAULT_COST
    pending_tokens = max(0, waiting_tokens + load.sent_tokens - load.computed_tokens)
    uncached_tokens = max(1, request.prompt_tokens - load.cached_tokens)
    attended_tokens = mean_prompt / 2
    decoding = decode_work(sample, running)
    own_prefill_s = used.prefill_seconds(uncached_tokens, load.cached_tokens)
    if load.loaded_tokens:
        own_prefill_s += load_seconds(used, load)
    return ReplicaState(
        load=load,
        sample=sample,
        cost=used,
        measured=known is not None,
        pending_tokens=pending_tokens,
        uncached_tokens=uncached_tokens,
        needed_tokens=uncached_tokens + load.loaded_tokens,
        attended_tokens=attended_tokens,
        decoding=decoding,
        outstanding=load.in_flight + load.others,
        backlog_s=backlog_seconds(
            used, pending_tokens, attended_tokens, decoding, sample.limits.max_num_batched_tokens
        ),
        own_prefill_s=own_prefill_s,
    )


def scores(state: ReplicaState, config: ServiceConfig) -> dict[str, float]:
    """Seconds by the name of each score, times its weight."""
    weights = config.weights
    per_ttft = tokens_per_ttft(config)
    return {
        "pending_tokens": weights.pending_tokens * state.backlog_s,
        "running": weights.running * running_seconds(state, per_ttft),
        "kv_cache": weights.kv_cache * kv_cache_seconds(state, per_ttft),
        "predicted_ttft": weights.predicted_ttft * predicted_ttft_seconds(state),
        "prefix": weights.prefix * state.own_prefill_s,
    }


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
    lacking = max(0.0, used + state.pending_tokens + state.needed_tokens - size)
    return reading + state.cost.prefill_seconds(min(lacking, size))


def predicted_ttft_seconds(state: ReplicaState) -> float:
    """Backlog, then the request's own prefill, in as many steps as it takes, at least one, which the replica's decodes
    share. The step in progress when the request arrives, if any, counts half."""
    step_s = state.cost.seconds(state.decoding)
    room = max(1.0, state.sample.limits.max_num_batched_tokens - state.decoding.decode_seqs)
    under_way_s = step_s / 2 if state.decoding.decode_seqs or state.pending_tokens else 0.0
    return under_way_s + state.backlog_s + state.own_prefill_s + step_s * max(1.0, state.uncached_tokens / room)
