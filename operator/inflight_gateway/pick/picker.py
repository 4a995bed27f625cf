"""Picks replicas for a request."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from zlib import crc32

from inflight_cost.model import CostModel
from inflight_gateway.pick.late_binding import has_slot
from inflight_gateway.pick.load import EndpointLoad, is_fresh
from inflight_gateway.pick.ranking import Rank, Ranking
from inflight_gateway.types import Endpoint, Pick, RequestView, ServiceConfig

LEAST_FIRST_TOKEN_WITHIN_S = 10.0
MOST_FIRST_TOKEN_WITHIN_S = 600.0
PREDICTION_FACTOR = 4.0
"""A first token that takes this factor times its prediction, and `LEAST_FIRST_TOKEN_WITHIN_S` more, is considered lost:
an early retry elsewhere would double the load just when it is highest."""
UNPREDICTED_FIRST_TOKEN_WITHIN_S = 60.0

MOST_KEPT_FREE = 0.5
"""Share of the replicas that a late request keeps free at most: the others work on what waits."""

LARGEST_KEPT_FREE = 7
"""Most replicas that a late request keeps free besides its own. Of a large service, the eight with the least load are
ranked, beside those that hold most of the prompt (`engines.fleet`): all of these may be busy while others idle."""


class Picker:
    """Picks replicas. Stateless: equal arguments give equal picks, in any process.

    Of replicas with equal scores, which of them is first depends on the request's id (rendezvous hashing), so an idle
    fleet is used evenly.

    Args:
        ranking: shared with the ledger that chooses candidates; None: one of its own.
    """

    def __init__(self, ranking: Ranking | None = None) -> None:
        self._ranking = ranking or Ranking()

    def pick(
        self,
        request: RequestView,
        config: ServiceConfig,
        loads: Sequence[EndpointLoad],
        now: float,
        *,
        replicas: int | None = None,
        above_share: bool = False,
        below_share: bool = False,
        claimed: int = 0,
        kept_free: float = 0.0,
    ) -> Pick | None:
        """Returns the replicas to try, best first, at most `config.max_attempts`. Replicas that failed the request come
        last.

        Args:
            loads: of the service's replicas, or of those of them that may be the best (`engines.ledger`).
            replicas: number of replicas of the service; None: that of `loads`.
            above_share: the request's tenant has more than its share of the requests in flight (`TenantShares`).
            below_share: the tenant has less than its share.
            claimed: slots that a tenant above its share should leave free, over all replicas.
            kept_free: replicas that must be able to start a request soon, besides the picked one; at most
                `MOST_KEPT_FREE` and `LARGEST_KEPT_FREE` of them are asked for.

        None: no replica can start the request soon, or none exists; the gateway should hold it.
        """
        avoid = request.avoid
        usable = [load for load in loads if load.endpoint.address not in avoid] if avoid else []
        usable = usable or list(loads)
        if not usable:
            return None
        replicas = replicas or len(loads)
        claimed_of_each = -(-claimed // replicas)
        only = "only" if replicas == 1 else ""
        if any(is_fresh(load, now) for load in usable):
            kept_free = min(kept_free, MOST_KEPT_FREE * len(usable), LARGEST_KEPT_FREE)
            return self._by_score(
                *(request, config, usable, loads, now, above_share, below_share, claimed_of_each, kept_free, only)
            )
        return _by_in_flight(request, config, usable, loads, above_share, claimed_of_each, only)

    def _by_score(
        self,
        request: RequestView,
        config: ServiceConfig,
        usable: list[EndpointLoad],
        loads: Sequence[EndpointLoad],
        now: float,
        above_share: bool,
        below_share: bool,
        claimed: int,
        kept_free: float,
        only: str,
    ) -> Pick | None:
        cost = _any_cost(loads)
        ready, busy = self._ranking.rank(
            usable, request, config, cost, now, above_share=above_share, below_share=below_share, claimed=claimed
        )
        if len(ready) <= kept_free:
            return None
        ready.sort()
        if len(ready) < config.max_attempts:
            busy.sort()
        best = ready[0]
        predicted = latest = None if cost is None else best.ttft_s
        if cost is not None and request.handed_over:  # what cannot be read is computed
            latest = best.ttft_s + cost.prefill_seconds(request.prompt_tokens)
        return Pick(
            endpoints=_in_order(
                config, [usable[rank.place] for rank in [*ready, *busy][: max(1, config.max_attempts)]], loads
            ),
            reason=only or _reason(ready, usable),
            predicted_ttft_s=predicted,
            first_token_within_s=first_token_within(latest),
            cached_tokens=usable[best.place].cached_tokens,
            scores=best.scores(config.weights),
            prefill_s=None if cost is None else best.own_prefill_s + best.more_steps_s,
        )


def _by_in_flight(
    request: RequestView,
    config: ServiceConfig,
    usable: list[EndpointLoad],
    loads: Sequence[EndpointLoad],
    above_share: bool,
    claimed: int,
    only: str,
) -> Pick | None:
    """Picks by requests in flight: no replica has a fresh sample."""
    ready: list[EndpointLoad] = []
    busy: list[EndpointLoad] = []
    for load in usable:
        free = has_slot(load.in_flight, config.max_num_seqs, request.choices, above_share, claimed)
        (ready if free else busy).append(load)
    if not ready:
        return None
    ready.sort(key=lambda load: (load.in_flight, _tie(request, load)))
    return Pick(
        endpoints=_in_order(config, ready + busy, loads),
        reason=only or "least-requests",
        first_token_within_s=first_token_within(None),
        cached_tokens=ready[0].cached_tokens,
    )


def first_token_within(predicted_ttft_s: float | None) -> float:
    """Returns the seconds after which a request without a first token is retried elsewhere."""
    if predicted_ttft_s is None:
        return UNPREDICTED_FIRST_TOKEN_WITHIN_S
    generous = LEAST_FIRST_TOKEN_WITHIN_S + PREDICTION_FACTOR * predicted_ttft_s
    return min(generous, MOST_FIRST_TOKEN_WITHIN_S)


def _any_cost(loads: Sequence[EndpointLoad]) -> CostModel | None:
    """Returns the cost model of any replica: the replicas of a service run the same model, mostly on the same GPU."""
    return next((load.sample.cost for load in loads if load.sample and load.sample.cost), None)


def _reason(ready: list[Rank], usable: list[EndpointLoad]) -> str:
    """Returns the reason of the pick: `prefix` if another replica has less work and the cached prefix outweighed it.
    Args: ready: best first."""
    best, least = ready[0], min(ready, key=_backlog_s)
    if usable[best.place].cached_tokens > usable[least.place].cached_tokens and best.backlog_s > least.backlog_s:
        return "prefix"
    return "least-work"


_backlog_s = attrgetter("backlog_s")


def _tie(request: RequestView, load: EndpointLoad) -> int:
    return crc32(f"{request.request_id} {load.endpoint.address}".encode())


def _in_order(
    config: ServiceConfig, best_first: list[EndpointLoad], loads: Sequence[EndpointLoad]
) -> tuple[Endpoint, ...]:
    most = max(1, config.max_attempts)
    endpoints = [load.endpoint for load in best_first[:most]]
    if len(endpoints) < most:
        endpoints += [load.endpoint for load in loads if load.endpoint not in endpoints]
    return tuple(endpoints[:most])
