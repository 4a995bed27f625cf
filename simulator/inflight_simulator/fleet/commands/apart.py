"""Prefill and decode apart for given traffic: the same number of replicas as one set and as two, by simulations."""

from __future__ import annotations

from dataclasses import astuple, replace
from functools import cache, partial

import msgspec
import numpy as np

from inflight_cost.staffing import smallest
from inflight_gateway.types import Apart
from inflight_settings.limits import Limits
from inflight_simulator.fleet.config import FleetConfig
from inflight_simulator.fleet.outcome import FleetRun
from inflight_simulator.fleet.requests import Requests
from inflight_simulator.fleet.run import simulate_fleet
from inflight_simulator.fleet.view import Fixed
from inflight_simulator.summary import distribution

SEEDS = 3
"""Simulations of each fleet that is compared, which differ by the noise of the steps."""

_FEW = (1, 2, 4)
"""Requests at once that are tried as limits of one set, besides its own."""

_LARGER = (2, 4, 8)
"""Times the token budget of one set that are tried."""

_SHARES = (0.2, 0.4, 0.6, 0.8)
"""Shares of the replicas that compute prompts, in the splits that are tried first."""

_MOST = 4
"""Times the guessed number of replicas up to which a split is tried where no number is enough as one set."""


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
    """The same number of replicas as one set, and in the best split."""

    one: Sets
    two: Sets

    @property
    def replicas(self) -> int:
        return self.one.answer

    @property
    def two_better(self) -> bool:
        """True if the split has more requests in target with each seed than one set has with any."""
        return self.two.lowest > self.one.highest


class Comparison(msgspec.Struct, frozen=True):
    """Comparison of one set of replicas with two.

    Attributes:
        mode: `spec.disaggregation.mode`.
        fewest: replicas that one set needs; None: no number is enough.
        needed: the fewest replicas with which a split keeps the attainment with every seed; None: more than one set
            needs, or more than were tried.
        pairs: with as many replicas as one set needs, and with `needed`. Empty: one replica cannot be split.
        pays: the split is better than one set in one of the pairs.
    """

    mode: Apart
    fewest: int | None
    needed: int | None
    pairs: tuple[Pair, ...]
    pays: bool


def compare_sets(
    requests: Requests, one: FleetConfig, two: FleetConfig, attainment: float, fewest: int | None, guess: int
) -> Comparison:
    """
    Args:
        one, two: one set, and a split of it, but for numbers of replicas, of which `max_replicas` is the largest. Both
            sets of a split have the limits of one set where its prefill set has none of its own.
        attainment: share of requests that must keep their targets.
        fewest: replicas that one set needs; None: no number is enough.
        guess: number of replicas to begin with in that case.
    """
    assert two.prefill is not None
    one_set, takes_parts = cache(partial(_best_one_set, requests, one)), two.prefill.limits is not None

    @cache
    def split(count: int) -> Sets:
        return _best_split(requests, two if takes_parts else replace(two, limits=Limits(*one_set(count).limits)), count)

    first = min(guess, one.max_replicas) if fewest is None else fewest
    most = min(_MOST * first, one.max_replicas) if fewest is None else fewest
    needed = smallest(lambda count: count > 1 and split(count).lowest >= attainment, first, most)
    counts = dict.fromkeys((fewest or needed or first, needed or first))
    pairs = tuple(Pair(one_set(count), split(count)) for count in counts if count > 1)
    return Comparison(
        mode=two.prefill.mode,
        fewest=fewest,
        needed=needed,
        pairs=pairs,
        pays=any(pair.two_better for pair in pairs),
    )


def _best_one_set(requests: Requests, config: FleetConfig, replicas: int) -> Sets:
    """Returns one set with the limits that keep the most requests in target with the first seed: its own, or with fewer
    requests at once or larger steps. Where one request alone takes most of the TPOT target, limits for an overload are
    not the best ones."""
    run = cache(lambda limits: _run(requests, replace(config, limits=limits), replicas, 0, 0))
    own, largest = config.limits, config.replica.capacity.max_num_batched_tokens
    fewer = [own.with_("max_num_seqs", number) for number in _FEW if number < own.max_num_seqs]
    best = max((own, *fewer), key=lambda limits: run(limits).attainment)
    budgets = (min(largest, factor * best.max_num_batched_tokens) for factor in _LARGER)
    larger = [best.with_("max_num_batched_tokens", budget) for budget in budgets]
    best = max((best, *larger), key=lambda limits: run(limits).attainment)
    return _over_seeds(requests, replace(config, limits=best), replicas, 0, run(best))


def _best_split(requests: Requests, config: FleetConfig, replicas: int) -> Sets:
    """The split with the most requests in target with the first seed: the best of those that are tried first, and from
    there by one replica at a time."""
    run = cache(lambda prefill: _run(requests, config, replicas, prefill, 0))
    counts = sorted({min(max(1, round(share * replicas)), replicas - 1) for share in _SHARES})
    best = max(counts, key=lambda prefill: run(prefill).attainment)
    while True:
        beside = [prefill for prefill in (best - 1, best + 1) if 0 < prefill < replicas]
        next_best = max((best, *beside), key=lambda prefill: run(prefill).attainment)
        if next_best == best:
            return _over_seeds(requests, config, replicas, best, run(best))
        best = next_best


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
