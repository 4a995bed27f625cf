"""Picks replicas for a request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from zlib import crc32

from inflight_cost.model import CostModel
from inflight_gateway.pick.late_binding import can_start_soon, most_outstanding
from inflight_gateway.pick.predicted_ttft import predicted_ttft_seconds
from inflight_gateway.pick.replica_state import ReplicaState, is_fresh, replica_state
from inflight_gateway.pick.scoring import scores
from inflight_gateway.types import Endpoint, EndpointLoad, Pick, RequestView, ServiceConfig

LEAST_FIRST_TOKEN_WITHIN_S = 10.0
MOST_FIRST_TOKEN_WITHIN_S = 600.0
PREDICTION_FACTOR = 4.0
"""A first token that takes so many times its prediction, and `LEAST_FIRST_TOKEN_WITHIN_S` more, is considered lost: an
early retry elsewhere would double the load just when it is highest."""
UNPREDICTED_FIRST_TOKEN_WITHIN_S = 60.0


class _Scored(NamedTuple):
    state: ReplicaState
    scores: dict[str, float]

    @property
    def total(self) -> float:
        return sum(self.scores.values())


class Picker:
    """Stateless: equal arguments give equal picks, in any process.

    Of replicas with equal scores, which of them is first depends on the request's id (rendezvous hashing), so an idle
    fleet is used evenly.
    """

    def pick(
        self,
        request: RequestView,
        config: ServiceConfig,
        loads: Sequence[EndpointLoad],
        now: float,
        *,
        above_share: bool = False,
        claimed: int = 0,
    ) -> Pick | None:
        """The replicas to try, best first, at most `config.max_attempts`. Replicas that failed the request come last.

        Args:
            above_share: the request's tenant has more than its share of the requests in flight (`TenantShares`).
            claimed: slots that such a tenant should leave free, over all replicas.

        None: no replica can start the request soon, or none exists; the gateway should hold it.
        """
        usable = [load for load in loads if load.endpoint.address not in request.avoid] or list(loads)
        if not usable:
            return None
        claimed_here = -(-claimed // len(loads))
        if any(is_fresh(load, now) for load in usable):
            return _by_score(request, config, usable, loads, now, above_share, claimed_here)
        return _by_in_flight(request, config, usable, loads, above_share, claimed_here)


def _by_score(
    request: RequestView,
    config: ServiceConfig,
    usable: list[EndpointLoad],
    loads: Sequence[EndpointLoad],
    now: float,
    above_share: bool,
    claimed: int,
) -> Pick | None:
    cost = _any_cost(loads)
    ready: list[_Scored] = []
    busy: list[ReplicaState] = []
    for load in usable:
        state = replica_state(load, request, cost, now)
        if can_start_soon(state, config.ttft_s, above_share, claimed):
            ready.append(_Scored(state, scores(state, config)))
        else:
            busy.append(state)
    if not ready:
        return None

    def key(scored: _Scored) -> tuple[float, int]:
        return scored.total, _tie(request, scored.state.load)

    ready.sort(key=key)
    busy.sort(key=lambda state: (state.backlog_s, _tie(request, state.load)))
    best = ready[0]
    predicted = predicted_ttft_seconds(best.state) if best.state.measured else None
    return Pick(
        endpoints=_in_order(request, config, [state.load for state in [*(each.state for each in ready), *busy]], loads),
        reason=_reason(best, ready, len(loads)),
        predicted_ttft_s=predicted,
        first_token_within_s=first_token_within(predicted),
        cached_tokens=best.state.load.cached_tokens,
        scores=best.scores,
        prefill_s=best.state.own_prefill_s if best.state.measured else None,
    )


def _by_in_flight(
    request: RequestView,
    config: ServiceConfig,
    usable: list[EndpointLoad],
    loads: Sequence[EndpointLoad],
    above_share: bool,
    claimed: int,
) -> Pick | None:
    """Without any sample of loads."""
    most = most_outstanding(config.max_num_seqs, above_share, claimed)
    ready = [load for load in usable if load.in_flight < most]
    if not ready:
        return None
    busy = [load for load in usable if load.in_flight >= most]
    ready.sort(key=lambda load: (load.in_flight, _tie(request, load)))
    return Pick(
        endpoints=_in_order(request, config, ready + busy, loads),
        reason="only" if len(loads) == 1 else "least-requests",
        first_token_within_s=first_token_within(None),
        cached_tokens=ready[0].cached_tokens,
    )


def first_token_within(predicted_ttft_s: float | None) -> float:
    """Seconds after which a request without a first token is retried elsewhere."""
    if predicted_ttft_s is None:
        return UNPREDICTED_FIRST_TOKEN_WITHIN_S
    generous = LEAST_FIRST_TOKEN_WITHIN_S + PREDICTION_FACTOR * predicted_ttft_s
    return min(generous, MOST_FIRST_TOKEN_WITHIN_S)


def _any_cost(loads: Sequence[EndpointLoad]) -> CostModel | None:
    """Replicas of a service run the same model, mostly on the same GPU."""
    return next((load.sample.cost for load in loads if load.sample and load.sample.cost), None)


def _reason(best: _Scored, ready: list[_Scored], count: int) -> str:
    """`prefix` if another replica has less work and the cached prefix outweighed it."""
    if count == 1:
        return "only"
    least = min(ready, key=lambda each: each.state.backlog_s).state
    state = best.state
    if state.load.cached_tokens > least.load.cached_tokens and state.backlog_s > least.backlog_s:
        return "prefix"
    return "least-work"


def _tie(request: RequestView, load: EndpointLoad) -> int:
    return crc32(f"{request.request_id} {load.endpoint.address}".encode())


def _in_order(
    request: RequestView, config: ServiceConfig, best_first: list[EndpointLoad], loads: Sequence[EndpointLoad]
) -> tuple[Endpoint, ...]:
    endpoints = [load.endpoint for load in best_first]
    endpoints += [load.endpoint for load in loads if load.endpoint not in endpoints]
    return tuple(endpoints[: max(1, config.max_attempts)])
