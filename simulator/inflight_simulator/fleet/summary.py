"""A fleet simulation in numbers: the object that `--json` prints, and its row in a table."""

from __future__ import annotations

import msgspec

from inflight_simulator.fleet.outcome import FleetRun, ReplicaCount

PERCENTILES = (50, 95, 99)


class Percentiles(msgspec.Struct, frozen=True):
    """Seconds."""

    p50: float
    p95: float
    p99: float


class FleetSummary(msgspec.Struct, frozen=True):
    """Attributes:
    attainment: share of requests that kept their targets.
    replica_hours: of all pods from order to end, starting and draining ones included.
    reversals: how often the order turned from rising to falling or back.
    longest_out_of_target_s: seconds of the longest time in which less than 99% of requests kept their targets.
    replicas: rows of time, ordered, ready, and existing replicas; one for each change.
    """

    num_requests: int
    attainment: float
    replica_hours: float
    reversals: int
    longest_out_of_target_s: float
    ttft: Percentiles
    tpot: Percentiles
    preemptions: int
    refused: int
    replicas: tuple[ReplicaCount, ...]


def summarize(run: FleetRun) -> FleetSummary:
    return FleetSummary(
        num_requests=len(run.arrival_s),
        attainment=run.attainment,
        replica_hours=run.replica_hours,
        reversals=run.reversals,
        longest_out_of_target_s=run.longest_out_of_target_s,
        ttft=Percentiles(*map(run.ttft_percentile, PERCENTILES)),
        tpot=Percentiles(*map(run.tpot_percentile, PERCENTILES)),
        preemptions=run.preemptions,
        refused=run.refused,
        replicas=run.replicas,
    )
