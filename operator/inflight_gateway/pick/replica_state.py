"""Expected work of a replica, as known to the gateway at the time of a pick."""

from __future__ import annotations

from typing import NamedTuple

from inflight_cost.backlog import backlog_seconds
from inflight_cost.model import CostModel, StepWork
from inflight_gateway.pick.growth import Growth
from inflight_gateway.types import Endpoint, EngineSample, RequestView

STALE_S = 10.0
"""An older sample is not used for the load; sizes and cost model still hold."""

DEFAULT_COST = CostModel(
    base_s=5.5e-3,
    decode_seq_s=15e-6,
    prefill_token_s=30e-6,
    decode_kv_token_s=0.045e-6,
    prefill_context_token_s=1.05e-9,
)
"""An 8B model on one H100-class GPU, by public arithmetic: ranks replicas until one of them has fitted its own cost.
Nothing is promised to a client by it."""


class EndpointLoad(NamedTuple):
    """One endpoint and its known load at the time of a pick.

    Attributes:
        sample: None: never scraped.
        in_flight: unfinished requests that this gateway sent there.
        sent_tokens: estimated prompt tokens sent there that the sample cannot include yet: by this gateway since the
            scrape began, and by its peers according to their reports.
        cached_tokens: tokens of the request's prompt that the replica's prefix cache should hold.
        computed_tokens: of the sample's waiting prompt tokens and of `sent_tokens`, those that the engine should have
            computed since the scrape.
        others: requests there that this gateway did not send, by the sample and by what peers report.
        growth: of its KV cache's use from the sample on, by the requests there; None: not known.
        answer_tokens: expected output of the request.
    """

    endpoint: Endpoint
    sample: EngineSample | None
    in_flight: int = 0
    sent_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    others: int = 0
    growth: Growth | None = None
    answer_tokens: float = 0.0


class ReplicaState(NamedTuple):
    """Attributes:
    load: input of the state.
    cost: of its steps. measured: `cost` is the engine's own, or that of another replica of the service.
    pending_tokens: prompt tokens computed before those of the request.
    uncached_tokens: tokens of the request's prompt that the replica would compute.
    attended_tokens: mean context of a pending prompt token.
    decoding: work of each step besides prefill.
    outstanding: unfinished requests sent there.
    backlog_s: seconds until the pending tokens are computed.
    own_prefill_s: seconds that the request's own prompt adds there.
    """

    load: EndpointLoad
    sample: EngineSample
    cost: CostModel
    measured: bool
    pending_tokens: int
    uncached_tokens: int
    attended_tokens: float
    decoding: StepWork
    outstanding: int
    backlog_s: float
    own_prefill_s: float

    @property
    def used_kv_tokens(self) -> float:
        return self.sample.kv_utilization * self.sample.kv_cache_tokens


def is_fresh(load: EndpointLoad, now: float) -> bool:
    return load.sample is not None and now - load.sample.at <= STALE_S


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
    return ReplicaState(
        load=load,
        sample=sample,
        cost=used,
        measured=known is not None,
        pending_tokens=pending_tokens,
        uncached_tokens=uncached_tokens,
        attended_tokens=attended_tokens,
        decoding=decoding,
        outstanding=load.in_flight + load.others,
        backlog_s=backlog_seconds(used, pending_tokens, attended_tokens, decoding, sample.max_num_batched_tokens),
        own_prefill_s=used.prefill_seconds(uncached_tokens, load.cached_tokens),
    )


def decode_work(sample: EngineSample, running: int) -> StepWork:
    """A step in which all running requests decode."""
    return StepWork(running, 0, sample.kv_utilization * sample.kv_cache_tokens, 0)
