"""Rate limit of status writes: state changes at once, measurements and wording periodically. Pure."""

from __future__ import annotations

from typing import Any

from inflight_base.manifest.units import parse_duration
from inflight_operator.api.types import (
    CostStatus,
    DemandStatus,
    GatewayStatus,
    InferenceServiceStatus,
    LimitsStatus,
    ObservedStatus,
)

NUMBERS_SECONDS = 60.0
"""Seconds between two writes of a status in which only measurements and wording changed; they belong to metrics."""

MOVED_SHARE = 0.25
"""A measurement within this share of the one last written has not moved."""

_STEADY = (
    "AsDesired",
    "Concurrency",
    "Demand",
    "DemandNotKnown",
    "EnginesBusy",
    "InUse",
    "KvUtilization",
    "LatelyNeeded",
    "LatelyUsed",
    "MinReplicas",
    "NoDemand",
    "NoRequestsWait",
    "ScaleDownHeld",
    "ScaleUpHeld",
    "SeasonNeeded",
    "TargetsOutOfReach",
    "TpotBeyondLimits",
    "TtftOverTarget",
    "WaitingRequests",
    "AsModelled",
    "BracketClosed",
    "ByCostModel",
    "Canary",
    "CanaryEnded",
    "CanaryHeld",
    "CanaryLost",
    "Draining",
    "InDeadBand",
    "IntoBounds",
    "Kept",
    "MoveTakenBack",
    "NoTraffic",
    "NoWayBack",
    "Preemptions",
    "Recommending",
    "RequestsWait",
    "TakenBack",
    "TpotOverTarget",
)
"""Reasons of ScalingActive and TuningActive that come and go with the traffic. What they led to is a decision."""


def is_due(before: InferenceServiceStatus, after: InferenceServiceStatus, since_written: float) -> bool:
    """Whether `after` should be written now: state changes at once, changed numbers and wording periodically.

    Args:
        since_written: seconds since the status was last written.
    """
    if _news(before) != _news(after) or _new_reasons(before, after):
        return True
    return since_written >= NUMBERS_SECONDS and (
        _wording(before) != _wording(after)
        or _moved(before.observed, after.observed)
        or _cost_moved(before.cost, after.cost)
        or _modelled_moved(before.limits, after.limits)
        or _demand_moved(before.demand, after.demand)
        or _gateway_moved(before.gateway, after.gateway)
    )


def _news(status: InferenceServiceStatus) -> tuple[Any, ...]:
    """The parts that are written at once: no numbers, no wording and no reasons that follow the traffic."""
    limits, engine = status.limits, status.engine
    external = any(one.reason in ("External", "ReplicasUnset") for one in status.conditions)
    return (
        status.observed_generation,
        status.url,
        status.selector,
        status.replicas,
        status.ready_replicas,
        status.blocked_replicas,
        None if external else status.desired_replicas,
        limits and (limits.max_num_seqs, limits.max_num_batched_tokens, limits.revision, limits.canary),
        limits and (limits.source, limits.override, limits.modelled is None),
        limits and limits.pods_in_force == status.ready_replicas,
        engine and (engine.image, engine.upgrade),
        status.cost and status.cost.per_hour,
        status.observed is None,
        status.gateway is None,
        [(one.time, one.change) for one in status.decisions],
        [(one.type, one.status, one.observed_generation) for one in status.conditions],
    )


def _new_reasons(before: InferenceServiceStatus, after: InferenceServiceStatus) -> bool:
    """Whether a condition has a new reason that is written at once. Reasons that follow the traffic are not: if one
    replaces MaxReplicas, for example, and MaxReplicas returns soon after, the status is not written."""
    was = {one.type: one.reason for one in before.conditions}
    return any(one.reason not in _STEADY and one.reason != was.get(one.type) for one in after.conditions)


def _wording(status: InferenceServiceStatus) -> list[str]:
    """Messages except those that follow the traffic."""
    return [one.message for one in status.conditions if one.reason not in _STEADY]


def _moved(before: ObservedStatus | None, after: ObservedStatus | None) -> bool:
    """Whether a measurement differs from the one last written by more than steady traffic varies."""
    if before is None or after is None:
        return before is not after
    pairs = (
        (before.queue_depth, after.queue_depth, 2.0),
        (before.running, after.running, 2.0),
        (before.kv_utilization, after.kv_utilization, 0.05),
        (_seconds(before.ttft_p95), _seconds(after.ttft_p95), 0.01),
        (_seconds(before.tpot_p95), _seconds(after.tpot_p95), 0.001),
        (before.preemptions_per_minute, after.preemptions_per_minute, 1.0),
    )
    return any(abs(was - now) > max(least, MOVED_SHARE * max(was, now)) for was, now, least in pairs)


def _cost_moved(before: CostStatus | None, after: CostStatus | None) -> bool:
    """Whether the cost of a million tokens differs by more than steady traffic varies."""
    was, now = (float(one.per_million_tokens or 0) if one is not None else 0.0 for one in (before, after))
    return abs(was - now) > MOVED_SHARE * max(was, now)


def _modelled_moved(before: LimitsStatus | None, after: LimitsStatus | None) -> bool:
    """Whether the cost model finds limits best that differ by more than steady traffic varies."""
    was, now = (one.modelled if one is not None else None for one in (before, after))
    if was is None or now is None:
        return was is not now
    pairs = ((was.max_num_seqs, now.max_num_seqs), (was.max_num_batched_tokens, now.max_num_batched_tokens))
    return any(abs(one - other) > MOVED_SHARE * max(one, other) for one, other in pairs)


def _demand_moved(before: DemandStatus | None, after: DemandStatus | None) -> bool:
    """Whether the demand or what one replica sustains differs by more than steady traffic varies."""
    if before is None or after is None:
        return before is not after
    pairs = (
        (before.requests_per_second, after.requests_per_second),
        (before.replica_requests_per_second, after.replica_requests_per_second),
    )
    return any(abs(was - now) > MOVED_SHARE * max(was, now) for was, now in pairs)


def _gateway_moved(before: GatewayStatus | None, after: GatewayStatus | None) -> bool:
    """Whether held or in-flight requests differ by more than steady traffic varies."""
    if before is None or after is None:
        return before is not after
    pairs = ((before.held, after.held), (before.in_flight, after.in_flight))
    return any(abs(was - now) > max(2.0, MOVED_SHARE * max(was, now)) for was, now in pairs)


def _seconds(duration: str | None) -> float:
    return 0.0 if duration is None else parse_duration(duration)
