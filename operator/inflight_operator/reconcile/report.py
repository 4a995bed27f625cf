"""What a round tells: the status, whether it is worth writing now, and the events of transitions. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from pydantic import ValidationError

from inflight_operator.api.resolve import service_url
from inflight_operator.api.types import (
    MAX_DECISIONS,
    CanaryStatus,
    Condition,
    CostStatus,
    Decision,
    DemandStatus,
    EngineStatus,
    InferenceServiceStatus,
    LimitsPair,
    LimitsStatus,
    ObservedStatus,
    OverrideStatus,
    ServiceRecord,
)
from inflight_operator.decide import decision as decided
from inflight_operator.decide.conditions import Finding, stuck
from inflight_operator.decide.decision import Number, Reason
from inflight_operator.decide.sentences import change_text, sentence
from inflight_operator.limits import Limits
from inflight_operator.observe.pods import PodView
from inflight_operator.quantities import format_price, format_seconds, parse_duration
from inflight_operator.reconcile.plan import Outcome, Plan
from inflight_operator.reconcile.snapshot import Snapshot, engine_container
from inflight_operator.render import selector_string

MAX_MESSAGE = 2048
"""Longest message of a condition, in characters: what the API server or a container said may be pages long."""

MAX_REASON = 1024
"""Longest reason of a decision, in characters, as the schema of the status has it."""

NUMBERS_SECONDS = 60.0
"""Seconds between two writes of a status in which only measurements and wording changed; they belong to metrics."""

MOVED_SHARE = 0.25
"""A measurement within this share of the one last written has not moved."""

_ON_THE_WAY = ("Starting", "Scheduling", "Loading", "Serving", "ScaledToZero")
"""Reasons of Ready that come and go by themselves."""

_STEADY = (
    "AsDesired",
    "Concurrency",
    "Demand",
    "DemandNotKnown",
    "KvUtilization",
    "LatelyNeeded",
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

EventType = Literal["Normal", "Warning"]


@dataclass(frozen=True, slots=True)
class Event:
    type: EventType
    reason: str
    message: str


def recorded(decision: decided.Decision, at: datetime) -> Decision:
    """A decision as the status keeps it: its numbers, and its sentence."""
    reason = decision.reason
    return Decision(
        time=at,
        kind=decision.kind,
        knob=decision.knob,
        from_=decision.frm,
        to=decision.to,
        code=reason.code,
        numbers={name: round(value, 6) for name, value in reason.numbers.items() if not isinstance(value, str)},
        change=change_text(decision),
        reason=_cut(sentence(reason), MAX_REASON),
        applied=decision.applied,
    )


def findings_after(plan: Plan, outcome: Outcome) -> tuple[Finding, ...]:
    """All conditions, once it was tried to do what the plan says."""
    if not outcome.failures:
        return plan.findings
    return stuck(plan.findings, "ApplyFailed", "; ".join(sorted(set(outcome.failures.values()))))


def build_status(
    snapshot: Snapshot, plan: Plan, outcome: Outcome, unreported: Sequence[Decision]
) -> InferenceServiceStatus:
    """The status to be written; the snapshot's is the one it follows on.

    Args:
        unreported: decisions that are in no status yet, those of this plan included.
    """
    service, before = snapshot.service, snapshot.service.status
    replicas = snapshot.replicas
    return InferenceServiceStatus(
        observed_generation=service.metadata.generation,
        conditions=[_condition(finding, service, snapshot.at) for finding in findings_after(plan, outcome)],
        url=service_url(service),
        replicas=len(replicas),
        ready_replicas=sum(pod.ready for pod in replicas),
        blocked_replicas=plan.blocked,
        desired_replicas=plan.desired,
        selector=selector_string(service.metadata.name),
        engine=_engine(snapshot, plan),
        limits=_limits(snapshot, plan),
        demand=_demand(plan),
        cost=_cost(snapshot, plan, len(replicas)),
        observed=_unless_same(_observed(snapshot, plan), before.observed),
        decisions=[*before.decisions, *unreported][-MAX_DECISIONS:],
    )


def unreadable_status(
    record: ServiceRecord, findings: tuple[Finding, ...], pods: Sequence[PodView], now: datetime
) -> InferenceServiceStatus:
    """The status of a service whose spec cannot be read: `record.status`, with what is found and what is there."""
    alive = [pod for pod in pods if not pod.deleting]
    return record.status.model_copy(
        update={
            "observed_generation": record.metadata.generation,
            "conditions": [_condition(finding, record, now) for finding in findings],
            "replicas": len(alive),
            "ready_replicas": sum(pod.ready for pod in alive),
            "blocked_replicas": None,
            "observed": None,
            "demand": None,
        }
    )


def spec_problem(error: ValidationError) -> str:
    """The first field that is wrong, why, and how many more there are: `spec.engine.dtype: Input should be ...`."""
    first, *more = error.errors(include_url=False, include_context=False, include_input=False)
    field = ".".join(str(part) for part in first["loc"])
    return f"{field}: {first['msg']}" + (f" (and {len(more)} more)" if more else "")


def is_due(before: InferenceServiceStatus, after: InferenceServiceStatus, since_written: float) -> bool:
    """Whether `after` should be written now: news at once, numbers that moved and wording once in a while.

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
    )


def events_of(
    before: InferenceServiceStatus, after: InferenceServiceStatus, decisions: Sequence[Decision]
) -> list[Event]:
    """One event for a transition of Ready, one for each decision. That the Service is about to route to a pod that is
    ready passes within seconds, and is no event."""
    events = []
    was, now = _ready(before), _ready(after)
    changed = now is not None and (was is None or (was.status, was.reason) != (now.status, now.reason))
    if now is not None and changed and now.reason != "NotRouted":
        events.append(Event("Normal" if now.reason in _ON_THE_WAY else "Warning", now.reason, now.message))
    for decision in decisions:
        reason = "Scaled" if decision.kind == "Scaling" else "Tuned" if decision.applied else "TuningAdvice"
        events.append(Event("Normal", reason, f"{decision.change}: {decision.reason}"))
    return events


def _condition(finding: Finding, service: ServiceRecord, now: datetime) -> Condition:
    before = next((one for one in service.status.conditions if one.type == finding.type), None)
    same = before is not None and before.status == finding.status
    return Condition(
        type=finding.type,
        status=finding.status,
        reason=finding.reason,
        message=_cut(finding.message, MAX_MESSAGE),
        observed_generation=service.metadata.generation,
        last_transition_time=before.last_transition_time if before is not None and same else now,
    )


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _engine(snapshot: Snapshot, plan: Plan) -> EngineStatus | None:
    """Of the template that pods are made from from now on."""
    rendered = next((child for child in plan.children if child["kind"] == "Deployment"), snapshot.deployment)
    if rendered is None:
        return None
    return EngineStatus(image=engine_container(rendered)["image"], upgrade=plan.upgrade)


def _cost(snapshot: Snapshot, plan: Plan, pods: int) -> CostStatus | None:
    """None without `spec.cost`. Pods that start or wait cost as much as those that serve."""
    policy = snapshot.policy
    if policy.price is None:
        return None
    per_hour, tokens = policy.price * pods, plan.memory.demand.tokens_per_s
    numbers: dict[str, Number] = {"per_hour": per_hour, "replicas": pods, "currency": policy.currency}
    if tokens > 0:
        numbers["per_million"] = per_hour / 3600 / tokens * 1e6
    return CostStatus(
        per_hour=format_price(per_hour),
        per_million_tokens=format_price(float(numbers["per_million"])) if tokens > 0 else None,
        summary=sentence(Reason("Cost", numbers)),
    )


def _demand(plan: Plan) -> DemandStatus | None:
    """With three digits; None while no cost model sizes the service."""
    if plan.sizing is None:
        return None
    rate, each, need = (float(f"{number:.3g}") for number in plan.sizing)
    return DemandStatus(requests_per_second=rate, replica_requests_per_second=each, needed_replicas=need)


def _observed(snapshot: Snapshot, plan: Plan) -> ObservedStatus | None:
    """What the engines report together; None without a fresh sample."""
    fresh, measured = snapshot.fresh.values(), plan.measured
    if not fresh:
        return None
    return ObservedStatus(
        queue_depth=sum(one.waiting for one in fresh),
        running=sum(one.running for one in fresh),
        kv_utilization=round(sum(one.kv_usage for one in fresh) / len(fresh), 3),
        ttft_p95=None if measured.ttft_p95 is None else format_seconds(measured.ttft_p95),
        tpot_p95=None if measured.tpot_p95 is None else format_seconds(measured.tpot_p95),
        preemptions_per_minute=round(measured.preemptions_per_min, 1),
        at=snapshot.at,
    )


def _limits(snapshot: Snapshot, plan: Plan) -> LimitsStatus:
    limits, before, asked = plan.limits.limits, plan.memory.before_override, snapshot.policy.override
    override = None
    if before is not None and asked is not None:
        override = OverrideStatus(until=asked.until, before=_pair(before))
    untuned: Literal["Capacity", "Tuning"] = "Capacity" if limits == snapshot.policy.capacity else "Tuning"
    return LimitsStatus(
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        revision=plan.limits.revision,
        pods_in_force=plan.in_force,
        source=untuned if override is None else "Override",
        override=override,
        modelled=None if plan.modelled is None else _pair(plan.modelled),
        canary=_canary(plan),
    )


def _pair(limits: Limits) -> LimitsPair:
    return LimitsPair(max_num_seqs=limits.max_num_seqs, max_num_batched_tokens=limits.max_num_batched_tokens)


def _canary(plan: Plan) -> CanaryStatus | None:
    if plan.canary is None:
        return None
    limits = plan.canary.in_force.limits
    return CanaryStatus(
        pod=plan.canary.name,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
    )


def _unless_same(observed: ObservedStatus | None, before: ObservedStatus | None) -> ObservedStatus | None:
    """The old measurement where the new one says the same: a quiet service's status is not written for its time."""
    if observed is None or before is None or observed.model_copy(update={"at": before.at}) != before:
        return observed
    return before


def _news(status: InferenceServiceStatus) -> tuple[Any, ...]:
    """All that is written at once. Numbers, wording and reasons that follow the traffic are not in it."""
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
        [(one.time, one.change) for one in status.decisions],
        [(one.type, one.status, one.observed_generation) for one in status.conditions],
    )


def _new_reasons(before: InferenceServiceStatus, after: InferenceServiceStatus) -> bool:
    """Whether a condition has another reason that is news. One that follows the traffic is none: where it takes the
    place of MaxReplicas, say, and that comes back a moment later, the status stays as it is."""
    was = {one.type: one.reason for one in before.conditions}
    return any(one.reason not in _STEADY and one.reason != was.get(one.type) for one in after.conditions)


def _wording(status: InferenceServiceStatus) -> list[str]:
    """Messages but those that follow the traffic."""
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
    """Whether a million tokens cost more or less by more than steady traffic varies."""
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


def _seconds(duration: str | None) -> float:
    return 0.0 if duration is None else parse_duration(duration)


def _ready(status: InferenceServiceStatus) -> Condition | None:
    return next((one for one in status.conditions if one.type == "Ready"), None)
