"""Capacity planning for given traffic: replicas, limits, cost, and the first bottleneck under growth."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace

import msgspec
import numpy as np

from inflight_cost.capacity import Margins, Replica, Steady, Targets, Workload, largest_rate, steady
from inflight_cost.limits import best_limits, largest
from inflight_cost.staffing import smallest
from inflight_settings.limits import Limits, LimitsBounds
from inflight_simulator.fleet.commands.apart import Comparison, compare_sets
from inflight_simulator.fleet.commands.traffic import Traffic, busiest, describe, doubled, workload_of
from inflight_simulator.fleet.config import FleetConfig, PrefillSet, ReplicaModel
from inflight_simulator.fleet.outcome import FleetRun
from inflight_simulator.fleet.requests import Requests
from inflight_simulator.fleet.run import simulate_fleet
from inflight_simulator.fleet.view import Fixed
from inflight_simulator.summary import distribution


@dataclass(frozen=True, slots=True, eq=False)
class FixedRun:
    """The run with the fewest fixed replicas that keep the attainment.

    Attributes:
        one_less: the run with one replica less, which does not keep the attainment; None: there is none less than 1.
    """

    replicas: int
    run: FleetRun
    one_less: FleetRun | None


def smallest_fleet(
    requests: Requests,
    config: FleetConfig,
    attainment: float,
    guess: int,
    most: int,
    known: Mapping[int, FleetRun] | None = None,
) -> FixedRun | None:
    """The smallest number of replicas that reaches `attainment`; None: even `most` do not reach it, so the number of
    replicas is not the cause.

    Args:
        known: runs with some numbers of replicas, which are not simulated again.
    """
    runs = dict(known or {})

    def keeps(replicas: int) -> bool:
        if replicas not in runs:
            runs[replicas] = simulate_fleet(requests, config, Fixed(replicas))
        return runs[replicas].attainment >= attainment

    found = smallest(keeps, guess, most)
    return None if found is None else FixedRun(found, runs[found], runs.get(found - 1))


TTFT, TPOT, KV_CACHE, SLOTS = "TTFT", "TPOT", "KV cache", "slots"

MOST = 1000.0
"""Multiple of the load from which a resource counts as unlimited."""


def breaking_points(
    replica: Replica, workload: Workload, rate: float, targets: Targets, limits: Limits
) -> dict[str, float]:
    """Multiple of `rate`, requests a second of one replica, that each resource sustains, smallest first.

    `TTFT` is prefill: the share of full steps, or of the time, that prompts take. Margins are those of the capacity
    model, so that 1.0 is the load that it would plan for. Targets that are None are left out.
    """
    margins = Margins()
    holds: dict[str, Callable[[Steady], bool]] = {
        KV_CACHE: lambda found: found.running * workload.decode_context <= margins.kv * replica.kv_tokens,
        SLOTS: lambda found: found.running <= limits.max_num_seqs,
    }
    if targets.ttft is not None:
        holds[TTFT] = lambda found: found.prefill_load <= margins.prefill and found.prefill_share <= margins.busy
    if (tpot := targets.tpot) is not None:
        holds[TPOT] = lambda found: found.tpot <= margins.tpot * tpot
    points = {
        name: _largest_factor(lambda factor, each=each: each(steady(replica, workload, factor * rate, limits)))  # type: ignore[misc]
        for name, each in holds.items()
    }
    return dict(sorted(points.items(), key=lambda point: point[1]))


def first_to_break(points: Mapping[str, float]) -> str:
    return min(points, key=points.__getitem__)


def _largest_factor(holds: Callable[[float], bool]) -> float:
    """Returns the largest factor up to `MOST` that holds; infinite if `MOST` does."""
    factor = largest(holds, MOST)
    return factor if factor < MOST else math.inf


_LEAST_LIMITS = Limits(1, 64)
_BUDGETS = (1, 2, 4, 8)
"""Times the budget of the cost model's limits that are tried."""
_HOUR_S = 3600.0


class Cost(msgspec.Struct, frozen=True):
    """Costs in the currency of the price.

    Attributes:
        per_replica_hour: the price. per_hour: of the fleet.
        per_million_output_tokens: all cost by output tokens alone. per_million_tokens: by prompt and output tokens.
    """

    per_replica_hour: float
    per_hour: float
    per_million_output_tokens: float
    per_million_tokens: float


class Served(msgspec.Struct, frozen=True):
    """Results of a simulation that tiers behind the KV cache change.

    Attributes:
        hit_rate: share of the prompt tokens that were in the prefix cache or in the tiers behind it.
        ttft_p50, ttft_p95: seconds; None: no request was served.
    """

    hit_rate: float
    ttft_p50: float | None
    ttft_p95: float | None

    @classmethod
    def of(cls, run: FleetRun) -> Served:
        ttft = distribution(run.ttft[~np.isnan(run.ttft)])
        return cls(run.prefix_hit_rate or 0.0, ttft.p50, ttft.p95)


class HostMemory(msgspec.Struct, frozen=True):
    """Effect of host memory behind the KV cache, and of a disk behind it.

    Attributes:
        size: bytes. tokens: that it holds.
        disk_size, disk_tokens: those of the disk; 0: there is none.
        served: with as many replicas as are needed without it.
        replicas: the fewest that keep the attainment with it; None: none that was tried does.
    """

    size: int
    tokens: int
    disk_size: int
    disk_tokens: int
    served: Served
    replicas: int | None


class Checked(msgspec.Struct, frozen=True):
    """Results of simulations with fixed replicas.

    Attributes:
        replicas: the fewest that keep the attainment.
        attainment, served: with them. one_less: attainment with one less; None: no smaller number.
        twice_attainment: at twice the load.
        twice_missed_ttft, twice_missed_tpot: shares of requests at twice the load; one may miss both.
        host_memory: those that were asked for, each without a disk and then with each; empty where no prompts share
            anything.
    """

    replicas: int
    attainment: float
    served: Served
    one_less: float | None
    twice_attainment: float
    twice_missed_ttft: float
    twice_missed_tpot: float
    host_memory: tuple[HostMemory, ...]


class ReplicaPlan(msgspec.Struct, frozen=True):
    """Plan for one kind of replica.

    Attributes:
        name: of the replica's file.
        limits: max_num_seqs and max_num_batched_tokens, an array in JSON.
        requests_per_second: that one replica carries within the targets; 0: even a single request misses them.
        mean_replicas, peak_replicas, twice_replicas: by the capacity model, in the mean, in the busiest minute, and in
            the busiest minute of twice the load; None: no number is enough.
        checked: None: no number up to the largest allowed keeps the attainment, or the capacity model rules it out.
        cost: of the replicas that were checked; None: without a price or a check.
        breaking: times the load of the busiest minute that each resource holds with the replicas that were checked,
            first to break first. Infinity is null in JSON.
        apart: one set of replicas and two, for each mode that was asked for; empty where one request alone misses the
            targets.
    """

    name: str
    limits: tuple[int, int]
    requests_per_second: float
    mean_replicas: int | None
    peak_replicas: int | None
    twice_replicas: int | None
    checked: Checked | None
    cost: Cost | None
    breaking: dict[str, float]
    apart: tuple[Comparison, ...]


class Plan(msgspec.Struct, frozen=True):
    traffic: Traffic
    attainment: float
    replicas: tuple[ReplicaPlan, ...]


def plan(
    requests: Requests,
    models: dict[str, ReplicaModel],
    config: FleetConfig,
    attainment: float,
    host_memory: Sequence[int] = (),
    disks: Sequence[int] = (),
    apart: Mapping[str, Sequence[PrefillSet]] | None = None,
) -> Plan:
    """
    Args:
        models: replicas by name.
        config: of the fleet but for its replica, its limits, and its number of replicas, of which `max_replicas` is
            the largest that is tried.
        attainment: share of the requests that must keep their targets.
        host_memory: bytes of host memory behind the KV cache that are compared, of models with `kv_bytes_per_token`.
        disks: bytes of disks behind each of these, of models with rates of their disk.
        apart: prefill sets that are compared, by the names of `models`, but for their limits and their number of
            replicas.
    """
    tiers = [(memory, disk) for memory in host_memory for disk in (0, *disks)]
    plans = tuple(
        plan_replica(name, requests, replace(config, replica=model), attainment, tiers, (apart or {}).get(name, ()))
        for name, model in models.items()
    )
    return Plan(describe(requests), attainment, plans)


def plan_replica(
    name: str,
    requests: Requests,
    config: FleetConfig,
    attainment: float,
    tiers: Sequence[tuple[int, int]] = (),
    apart: Sequence[PrefillSet] = (),
) -> ReplicaPlan:
    """
    Args:
        tiers: bytes of host memory and of the disk behind it.
        apart: prefill sets, as in `plan`.
    """
    model, targets = config.replica, config.service_targets
    replica = Replica(model.cost, model.kv_tokens * (1 - model.kv_headroom))
    whole, part = _workload(requests, slice(None)), busiest(requests)
    peak = _workload(requests, part)
    traffic = describe(requests)
    limits = best_limits(replica, peak, targets, LimitsBounds(_LEAST_LIMITS, model.capacity))
    guess = _count(traffic.peak_requests_per_second, largest_rate(replica, peak, targets, limits))
    if guess is not None:
        limits = _best_simulated(requests, replace(config, limits=limits), attainment, min(guess, config.max_replicas))
    config = replace(config, limits=limits)

    peak_rate = largest_rate(replica, peak, targets, limits)
    peak_replicas = _count(traffic.peak_requests_per_second, peak_rate)
    # If a single request misses a target, more replicas do not help, and no simulation is needed.
    found = None if peak_replicas is None else _check(requests, config, attainment, peak_replicas, tiers)
    count = found.replicas if found is not None else peak_replicas or 1
    each = traffic.peak_requests_per_second / count
    splits = [_split(config, replica, peak, one) for one in apart]
    return ReplicaPlan(
        name=name,
        limits=astuple(limits),
        requests_per_second=peak_rate,
        mean_replicas=_count(traffic.requests_per_second, largest_rate(replica, whole, targets, limits)),
        peak_replicas=peak_replicas,
        twice_replicas=_count(2 * traffic.peak_requests_per_second, peak_rate),
        checked=found,
        cost=None if model.price is None or found is None else _cost(model.price, count, traffic),
        breaking=breaking_points(replica, peak, each, targets, limits),
        apart=() if peak_replicas is None else compare_sets(requests, config, splits, attainment, count),
    )


def _split(config: FleetConfig, replica: Replica, peak: Workload, apart: PrefillSet) -> FleetConfig:
    """Returns the fleet with a prefill set. In `Fixed`, each set has the limits for its own part of the requests, as
    the operator tunes each by what it measures there; in `Auto`, both take requests as one, or do as in `Fixed`."""
    bounds = LimitsBounds(_LEAST_LIMITS, config.replica.capacity)
    answers, prompts = (
        best_limits(replica, part, config.service_targets, bounds)
        for part in (replace(peak, computed=1.0), replace(peak, output=1.0, output_square=1.0))
    )
    return replace(config, limits=answers, prefill=replace(apart, limits=prompts if apart.mode == "Fixed" else None))


def _workload(requests: Requests, part: slice) -> Workload:
    return workload_of(requests.prompt_tokens[part], requests.output_tokens[part])


def _count(rate: float, each: float) -> int | None:
    return max(1, math.ceil(round(rate / each, 9))) if each > 0 else None


def _best_simulated(requests: Requests, config: FleetConfig, attainment: float, replicas: int) -> Limits:
    """The limits of `config`, or the same with a larger budget, if those keep more requests in target.

    Limits that hold the TPOT target under overload cut long prompts into many steps, so that they miss the TTFT target
    even on an idle replica; a fleet that is never overloaded does better with larger steps.
    """
    budget, largest = config.limits.max_num_batched_tokens, config.replica.capacity.max_num_batched_tokens
    budgets = dict.fromkeys(min(largest, budget * factor) for factor in _BUDGETS)
    best, best_attainment = config.limits, -1.0
    for each in budgets:
        limits = config.limits.with_("max_num_batched_tokens", each)
        run = simulate_fleet(requests, replace(config, limits=limits, initial_replicas=replicas), Fixed(replicas))
        if run.attainment > best_attainment:
            best, best_attainment = limits, run.attainment
        if best_attainment >= attainment:
            break
    return best


def _check(
    requests: Requests, config: FleetConfig, attainment: float, guess: int, tiers: Sequence[tuple[int, int]]
) -> Checked | None:
    found = smallest_fleet(requests, config, attainment, guess, config.max_replicas)
    if found is None:
        return None
    fixed = replace(config, initial_replicas=found.replicas)
    twice = simulate_fleet(doubled(requests, config.seed), fixed, Fixed(found.replicas))
    return Checked(
        replicas=found.replicas,
        attainment=found.run.attainment,
        served=Served.of(found.run),
        one_less=None if found.one_less is None else found.one_less.attainment,
        twice_attainment=twice.attainment,
        twice_missed_ttft=float((~(twice.ttft <= twice.ttft_target)).mean()),
        twice_missed_tpot=float((twice.tpot > twice.tpot_target).mean()),
        host_memory=tuple(
            _with_host_memory(requests, config, attainment, found.replicas, *sizes)
            for sizes in (tiers if requests.hash_ids else ())
        ),
    )


def _with_host_memory(
    requests: Requests, config: FleetConfig, attainment: float, replicas: int, size: int, disk_size: int
) -> HostMemory:
    model = config.replica
    assert model.kv_bytes_per_token is not None
    tokens, disk_tokens = size // model.kv_bytes_per_token, disk_size // model.kv_bytes_per_token
    with_it = replace(config, replica=replace(model, host_tokens=tokens, disk_tokens=disk_tokens))
    same = simulate_fleet(requests, with_it, Fixed(replicas))
    found = smallest_fleet(requests, with_it, attainment, replicas, config.max_replicas, {replicas: same})
    fewest = None if found is None else found.replicas
    return HostMemory(size, tokens, disk_size, disk_tokens, Served.of(same), fewest)


def _cost(price: float, replicas: int, traffic: Traffic) -> Cost:
    per_hour = price * replicas
    hours = traffic.seconds / _HOUR_S
    outputs = traffic.requests * traffic.output_tokens / 1e6
    tokens = traffic.requests * (traffic.prompt_tokens + traffic.output_tokens) / 1e6
    return Cost(price, per_hour, per_hour * hours / outputs, per_hour * hours / tokens)
