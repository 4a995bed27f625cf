"""Prefill and decode apart for given traffic: the same number of replicas as one set and as two, by simulations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, replace
from functools import cache, partial
from typing import TypeVar

import msgspec
import numpy as np

from inflight_cost.staffing import smallest
from inflight_gateway.types import Apart
from inflight_settings.limits import Limits
from inflight_simulator.fleet.config import FleetConfig, PrefillSet
from inflight_simulator.fleet.outcome import FleetRun
from inflight_simulator.fleet.requests import Requests
from inflight_simulator.fleet.run import simulate_fleet
from inflight_simulator.fleet.view import Fixed
from inflight_simulator.summary import distribution

_Tried = TypeVar("_Tried")

SEEDS = 3
"""Simulations of each fleet that is compared, which differ by the noise of the steps."""

_FEW = (1, 2, 4)
"""Requests at once that are tried as limits of one set, besides its own."""

_LARGER = (2, 4, 8)
"""Times the token budget of one set that are tried."""

_APART = 4
"""Times the token budget of one set that is tried for two without limits of their own: prompts that are not computed
beside answers need no small steps."""

_SHARES = (0.2, 0.4, 0.6, 0.8)
"""Shares of the replicas that compute prompts, in the splits that are tried first."""

_MOST = 4
"""Largest number of replicas that is tried, in times the number to begin with."""

_MARGIN = 2
"""Requests that a split must have more in target than one set, to pay."""


class Sets(msgspec.Struct, frozen=True):
    """Results of a fleet over all seeds.

    Attributes:
        answer: replicas that answer. prefill: those that compute prompts for them; 0: all are one set.
        lowest, highest: share of requests in target, of the worst and of the best seed.
        ttft_p95, tpot_p95: seconds, of the requests of all seeds; None: no request was served.
        handed_over: share of requests.
        limits, prefill_limits: max_num_seqs and max_num_batched_tokens of the replicas that answer, and of those that
            compute prompts, arrays in JSON.
    """

    answer: int
    prefill: int
    lowest: float
    highest: float
    ttft_p95: float | None
    tpot_p95: float | None
    handed_over: float
    limits: tuple[int, int]
    prefill_limits: tuple[int, int] | None


class Pair(msgspec.Struct, frozen=True):
    """The same number of replicas as one set, and in the best split.

    Attributes:
        pays: the split hands requests over, and has at least two requests more in target with each seed than one set
            has with any.
    """

    one: Sets
    two: Sets
    pays: bool

    @classmethod
    def of(cls, one: Sets, two: Sets, requests: int) -> Pair:
        """Args: requests: the number of all requests."""
        more = round((two.lowest - one.highest) * requests)
        return cls(one, two, two.handed_over > 0 and more >= _MARGIN)

    @property
    def replicas(self) -> int:
        return self.one.answer


class Comparison(msgspec.Struct, frozen=True):
    """Comparison of one set of replicas with two.

    Attributes:
        mode: `spec.disaggregation.mode`.
        fewest: the fewest replicas with which one set keeps the attainment with every seed; None: more than were tried.
        needed: the same of a split; None: more than one set needs, or more than were tried.
        pairs: with `fewest` and with `needed` replicas; with as many as were tried if both are None. Empty: one replica
            cannot be split.
        pays: the split pays in one of the pairs.
    """

    mode: Apart
    fewest: int | None
    needed: int | None
    pairs: tuple[Pair, ...]
    pays: bool


def compare_sets(
    requests: Requests, one: FleetConfig, splits: Sequence[FleetConfig], attainment: float, guess: int
) -> tuple[Comparison, ...]:
    """
    Args:
        one, splits: one set, and splits of it, but for numbers of replicas, of which `max_replicas` is the largest.
            Where the prefill set of a split has no limits of its own, both sets have those of one set, or with as many
            requests at once as the split has and larger steps.
        attainment: share of requests that must keep their targets.
        guess: number of replicas to begin with.
    """
    most = min(_MOST * guess, one.max_replicas)
    if not splits or most == 1:
        return tuple(Comparison(_prefill(two).mode, None, None, (), False) for two in splits)
    more = {number for two in splits if (number := two.limits.max_num_seqs) > one.limits.max_num_seqs}
    one_set = cache(partial(_best_one_set, requests, one, sorted(more)))
    fewest = smallest(lambda count: one_set(count).lowest >= attainment, guess, most)
    return tuple(_compare(requests, two, one_set, fewest, attainment, guess, most) for two in splits)


def _compare(
    requests: Requests,
    two: FleetConfig,
    one_set: Callable[[int], Sets],
    fewest: int | None,
    attainment: float,
    guess: int,
    most: int,
) -> Comparison:
    prefill = _prefill(two)

    @cache
    def split(count: int) -> Sets:
        if prefill.limits is not None:
            return _best_split(requests, two, count)
        own = Limits(*one_set(count).limits)
        most = own.with_("max_num_seqs", max(own.max_num_seqs, two.limits.max_num_seqs))
        larger = min(two.replica.capacity.max_num_batched_tokens, _APART * most.max_num_batched_tokens)
        tried = dict.fromkeys((own, most, most.with_("max_num_batched_tokens", larger)))
        found = [_best_split(requests, replace(two, limits=limits), count) for limits in tried]
        return max(found, key=lambda each: each.lowest)

    needed = smallest(lambda count: count > 1 and split(count).lowest >= attainment, fewest or guess, fewest or most)
    if needed is not None and one_set(needed).lowest >= attainment:
        fewest = needed  # The share in target need not grow with each replica, so the search may end above it.
    counts = dict.fromkeys((fewest or needed or most, needed or fewest or most))
    pairs = tuple(Pair.of(one_set(count), split(count), len(requests)) for count in counts if count > 1)
    return Comparison(prefill.mode, fewest, needed, pairs, any(pair.pays for pair in pairs))


def _prefill(two: FleetConfig) -> PrefillSet:
    assert two.prefill is not None
    return two.prefill


def _best_one_set(requests: Requests, config: FleetConfig, more: Sequence[int], replicas: int) -> Sets:
    """Returns one set with the limits that keep the most requests in target with the first seed: its own, or with fewer
    requests at once, or as many as a split (`more`), or larger steps. Where one request alone takes most of the TPOT
    target, limits for an overload are not the best ones."""
    run = cache(lambda limits: _run(requests, replace(config, limits=limits), replicas, 0, 0))
    own, largest = config.limits, config.replica.capacity.max_num_batched_tokens
    numbers = [number for number in _FEW if number < own.max_num_seqs]
    best = _best(run, (own, *(own.with_("max_num_seqs", number) for number in (*numbers, *more))))
    budgets = (min(largest, factor * best.max_num_batched_tokens) for factor in _LARGER)
    best = _best(run, (best, *(best.with_("max_num_batched_tokens", budget) for budget in budgets)))
    return _over_seeds(requests, replace(config, limits=best), replicas, 0, run(best))


def _best_split(requests: Requests, config: FleetConfig, replicas: int) -> Sets:
    """The split with the most requests in target with the first seed: the best of those that are tried first, and from
    there by one replica at a time."""
    run = cache(lambda prefill: _run(requests, config, replicas, prefill, 0))
    best = _best(run, sorted({min(max(1, round(share * replicas)), replicas - 1) for share in _SHARES}))
    while True:
        next_best = _best(run, (best, *(prefill for prefill in (best - 1, best + 1) if 0 < prefill < replicas)))
        if next_best == best:
            return _over_seeds(requests, config, replicas, best, run(best))
        best = next_best


def _best(run: Callable[[_Tried], FleetRun], tried: Iterable[_Tried]) -> _Tried:
    """Returns the first of those with the most requests in target, without a run of any that comes after one with all
    of them."""
    best, most = None, -1.0
    for each in tried:
        if most < 1 and (share := run(each).attainment) > most:
            best, most = each, share
    assert best is not None
    return best


def _over_seeds(requests: Requests, config: FleetConfig, replicas: int, prefill: int, first: FleetRun) -> Sets:
    """Args: first: the run with the first seed."""
    runs = [first]
    runs += [_run(requests, config, replicas, prefill, number) for number in range(1, SEEDS)]
    shares = [run.attainment for run in runs]
    ttft, tpot = (np.concatenate([getattr(run, name) for run in runs]) for name in ("ttft", "tpot"))
    return Sets(
        answer=replicas - prefill,
        prefill=prefill,
        lowest=min(shares),
        highest=max(shares),
        ttft_p95=distribution(ttft[~np.isnan(ttft)]).p95,
        tpot_p95=distribution(tpot[tpot > 0]).p95,
        handed_over=float(np.mean([0 if run.reads is None else len(run.reads) / len(requests) for run in runs])),
        limits=astuple(config.limits),
        prefill_limits=None if config.prefill is None else astuple(config.prefill.limits or config.limits),
    )


def _run(requests: Requests, config: FleetConfig, replicas: int, prefill: int, number: int) -> FleetRun:
    apart = replace(config.prefill, replicas=prefill) if config.prefill is not None and prefill else None
    return simulate_fleet(
        requests, replace(config, seed=config.seed + number, prefill=apart), Fixed(replicas - prefill)
    )
