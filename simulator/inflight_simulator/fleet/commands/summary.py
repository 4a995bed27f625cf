"""A fleet simulation in numbers: the object that `--json` writes, and the table for the terminal."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from inflight_simulator.fleet.config import FleetConfig
from inflight_simulator.fleet.outcome import FleetRun, ReplicaCount
from inflight_simulator.fleet.requests import Requests
from inflight_simulator.summary import Distribution, distribution


class TenantSummary(msgspec.Struct, frozen=True):
    """Requests of one tenant. Attributes: refused, attainment, ttft: as in `FleetSummary`."""

    requests: int
    refused: int
    attainment: float
    ttft: Distribution


class HandOvers(msgspec.Struct, frozen=True):
    """Requests that were handed over.

    Attributes:
        share: of all requests.
        read: seconds until keys and values had come. gap: between the tokens before and after.
    """

    share: float
    read: Distribution
    gap: Distribution


class FleetSummary(msgspec.Struct, frozen=True):
    """Summary of a fleet simulation.

    Attributes:
        scaler: name on the command line.
        requests: that arrived; refused: of them, by the gateway, or because they are longer than the KV cache.
        attainment: share of requests that kept both targets.
        replica_hours: starting and draining pods included, up to the last arrival.
        reversals: changes of direction of the ordered replicas.
        longest_out_of_target_s: longest run of 10 s windows in which less than 99% of arrivals kept their targets.
        ttft, tpot: seconds.
        preemptions: of all requests.
        cost: replica-hours times the replica's price; None without a price.
        output_tokens_per_cost: None without a price.
        replicas: ordered, ready and existing replicas from a second on.
        decisions: of the operator, as text.
        prefix_hit_rate: share of prompt tokens found in a prefix cache; None without prefix caches.
        refusals: requests that the gateway refused, by code.
        tenants: by name; empty where requests have none.
        handed_over: requests that the prefill set began and others went on with; None without a prefill set.
    """

    scaler: str
    requests: int
    refused: int
    attainment: float
    replica_hours: float
    reversals: int
    longest_out_of_target_s: float
    ttft: Distribution
    tpot: Distribution
    preemptions: int
    cost: float | None
    output_tokens_per_cost: float | None
    replicas: tuple[ReplicaCount, ...]
    decisions: tuple[str, ...]
    prefix_hit_rate: float | None = None
    refusals: Mapping[str, int] = {}
    tenants: Mapping[str, TenantSummary] = {}
    handed_over: HandOvers | None = None


def summarize_fleet(scaler: str, requests: Requests, config: FleetConfig, run: FleetRun) -> FleetSummary:
    price = config.replica.price
    cost = None if price is None else price * run.replica_hours
    tokens = int(requests.output_tokens[~np.isnan(run.ttft)].sum())
    return FleetSummary(
        scaler=scaler,
        requests=len(requests),
        refused=run.refused,
        attainment=run.attainment,
        replica_hours=run.replica_hours,
        reversals=run.reversals,
        longest_out_of_target_s=run.longest_out_of_target_s,
        ttft=distribution(run.ttft[~np.isnan(run.ttft)]),
        tpot=distribution(run.tpot[run.tpot > 0]),
        preemptions=run.preemptions,
        cost=cost,
        output_tokens_per_cost=tokens / cost if cost else None,
        replicas=run.replicas,
        decisions=run.decisions,
        prefix_hit_rate=run.prefix_hit_rate,
        refusals=run.refusals,
        tenants=_tenants(run),
        handed_over=_handed_over(run),
    )


def _handed_over(run: FleetRun) -> HandOvers | None:
    if run.reads is None or run.gaps is None:
        return None
    return HandOvers(len(run.reads) / len(run.ttft), distribution(run.reads), distribution(run.gaps))


def _tenants(run: FleetRun) -> dict[str, TenantSummary]:
    names = np.array(run.tenants)
    found = {}
    for name in sorted(set(run.tenants)):
        its = names == name
        ttft = run.ttft[its]
        served = ttft[~np.isnan(ttft)]
        found[name] = TenantSummary(
            len(ttft), len(ttft) - len(served), float(run.kept[its].mean()), distribution(served)
        )
    return found


def fleet_table(summary: FleetSummary) -> str:
    codes = ", ".join(f"{count} {code}" for code, count in summary.refusals.items())
    refused = f", {summary.refused} refused{f' ({codes})' if codes else ''}" if summary.refused else ""
    ordered = [row.ordered for row in summary.replicas]
    existing = max(row.existing for row in summary.replicas)
    lines = [
        f"{summary.requests} requests{refused}, scaler {summary.scaler}",
        "",
        f"attainment              {summary.attainment:.2%} of requests kept their targets",
        f"replica-hours           {summary.replica_hours:.2f}",
        f"replicas                ordered {min(ordered)} to {max(ordered)}, at most {existing} at once",
        f"reversals               {summary.reversals}",
        f"longest out of target   {summary.longest_out_of_target_s:g} s",
        f"preemptions             {summary.preemptions}",
    ]
    if summary.prefix_hit_rate is not None:
        lines.append(f"prefix cache hits       {summary.prefix_hit_rate:.1%} of prompt tokens")
    moved = summary.handed_over
    if moved is not None:
        means = (
            ""
            if moved.gap.mean is None or moved.read.mean is None
            else (
                f", keys and values read in {1e3 * moved.read.mean:.3g} ms, "
                f"{1e3 * moved.gap.mean:.3g} ms between two tokens (means)"
            )
        )
        lines.append(f"handed over             {moved.share:.1%} of requests{means}")
    if summary.cost is not None:
        lines.append(f"cost                    {summary.cost:.2f}")
    if summary.output_tokens_per_cost is not None:
        lines.append(f"output tokens per cost  {summary.output_tokens_per_cost:,.0f}")
    for name, of, unit, factor in (("TTFT", summary.ttft, "s", 1.0), ("TPOT", summary.tpot, "ms", 1e3)):
        if of.p50 is not None and of.p95 is not None and of.p99 is not None:
            shown = " / ".join(f"{factor * each:.3g}" for each in (of.p50, of.p95, of.p99))
            lines.append(f"{f'{name} p50 / p95 / p99':<24}{shown} {unit}")
    for name, tenant in summary.tenants.items():
        p95 = "-" if tenant.ttft.p95 is None else f"{tenant.ttft.p95:.3g} s"
        lines.append(
            f"{f'tenant {name}' if name else 'no tenant':<24}{tenant.requests} requests, {tenant.refused} refused, "
            f"{tenant.attainment:.2%} in target, TTFT p95 {p95}"
        )
    return "\n".join(lines)
