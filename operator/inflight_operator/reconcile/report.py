"""The status and the events of a round. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from pydantic import ValidationError

from inflight_base.manifest import Manifest
from inflight_base.manifest.names import pod_labels, selector_string
from inflight_base.manifest.units import format_price, format_seconds
from inflight_operator.api.resolve import service_url
from inflight_operator.api.status import (
    MAX_DECISIONS,
    MAX_LOADING,
    BracketStatus,
    CanaryStatus,
    Condition,
    CorrectionStatus,
    CostStatus,
    Decision,
    DemandStatus,
    EngineStatus,
    FenceStatus,
    GatewayStatus,
    InferenceServiceStatus,
    LimitsPair,
    LimitsStatus,
    LoadingStatus,
    ModelStatus,
    ObservedStatus,
    OverrideStatus,
    PhasesStatus,
    QueueStatus,
    RolloutDigest,
    StartStatus,
    StartUpStatus,
    TuningStatus,
)
from inflight_operator.api.types import ServiceRecord
from inflight_operator.decide import decision as decided
from inflight_operator.decide.decision import Number, Reason
from inflight_operator.decide.replicas.start_up import Loading
from inflight_operator.decide.status.conditions import ROLLOUT_STUCK, Finding, pool_refused, stuck, summarized
from inflight_operator.decide.status.sentences import change_text, sentence
from inflight_operator.decide.tuning.types import Bracket, Fence
from inflight_operator.observe.metrics import mean_kv_usage
from inflight_operator.observe.pods import PodView
from inflight_operator.reconcile.plan import Outcome, Plan
from inflight_operator.reconcile.prefetch import prefetch_status
from inflight_operator.reconcile.snapshot import Snapshot, engine_image
from inflight_operator.render.inference_pool import pool_children

MAX_MESSAGE = 2048
"""Longest message of a condition, in characters: messages of the API server or a container may be pages long."""

MAX_REASON = 1024
"""Longest reason of a decision, in characters, as the schema of the status has it."""

_NO_VOLUME_TYPE = "must specify a volume type"
"""The API server's words for a volume of a type that it does not know."""

_NO_IMAGE_VOLUMES = (
    "; model.source oci:// needs image volumes, which Kubernetes has by default from 1.35 on: use pvc:// here"
)

_ON_THE_WAY = ("Starting", "Scheduling", "Loading", "Serving", "Asleep", "ScaledToZero", "Idle", "Waking")
"""Transient reasons of Ready."""

EventType = Literal["Normal", "Warning"]


@dataclass(frozen=True, slots=True)
class Event:
    type: EventType
    reason: str
    message: str


def recorded(decision: decided.Decision, at: datetime) -> Decision:
    """Returns a decision in the form of the status: its numbers, and its sentence."""
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


def findings_after(name: str, plan: Plan, outcome: Outcome) -> tuple[Finding, ...]:
    """Returns all conditions of the service called `name`, after execution of the plan."""
    if not outcome.failures:
        return plan.findings
    why = _messages(outcome.failures.values())
    if _NO_VOLUME_TYPE in why and any(_has_image_volume(child) for child in plan.children):
        why += _NO_IMAGE_VOLUMES
    findings = stuck(plan.findings, "ApplyFailed", why)
    planned = {(child["kind"], child["metadata"]["name"]) for child in plan.children}
    of_pool = outcome.failures.keys() & pool_children(name) & planned
    if not of_pool:
        return findings
    return pool_refused(findings, "ApplyFailed", _messages(outcome.failures[child] for child in of_pool))


def _has_image_volume(child: Manifest) -> bool:
    return child["kind"] in ("Deployment", "Job") and any(
        "image" in volume for volume in child["spec"]["template"]["spec"]["volumes"]
    )


def _messages(failures: Iterable[str]) -> str:
    return "; ".join(sorted(set(failures)))


def build_status(
    snapshot: Snapshot, plan: Plan, outcome: Outcome, unreported: Sequence[Decision]
) -> InferenceServiceStatus:
    """Returns the status to write; the snapshot has the previous one.

    Args:
        unreported: decisions that no status contains yet, including those of this plan.
    """
    service, before = snapshot.service, snapshot.service.status
    replicas = snapshot.replicas
    return InferenceServiceStatus(
        observed_generation=service.metadata.generation,
        conditions=_conditions(findings_after(service.metadata.name, plan, outcome), service, snapshot.at),
        url=None if snapshot.policy.prefill_of else service_url(service),
        replicas=len(replicas),
        ready_replicas=sum(pod.ready for pod in replicas),
        blocked_replicas=plan.blocked,
        desired_replicas=plan.desired,
        selector=selector_string(pod_labels(service.metadata.name)),
        engine=_engine(snapshot, plan),
        model=_model(plan),
        prefetch=prefetch_status(plan.prefetch),
        limits=_limits(snapshot, plan),
        tuning=_tuning(snapshot, plan),
        demand=_demand(snapshot, plan),
        start_up=_start_up(snapshot, plan),
        loading=_loading(snapshot),
        gateway=_gateway(snapshot),
        queue=_queue(snapshot),
        cost=_cost(snapshot, plan, len(replicas)),
        observed=_unless_same(_observed(snapshot, plan), before.observed),
        decisions=[*before.decisions, *unreported][-MAX_DECISIONS:],
    )


def unreadable_status(
    record: ServiceRecord, findings: tuple[Finding, ...], pods: Sequence[PodView], now: datetime
) -> InferenceServiceStatus:
    """Returns the status of a service whose spec cannot be read: `record.status`, with findings and the observed
    state."""
    alive = [pod for pod in pods if not pod.deleting]
    return record.status.model_copy(
        update={
            "observed_generation": record.metadata.generation,
            "conditions": _conditions(findings, record, now),
            "replicas": len(alive),
            "ready_replicas": sum(pod.ready for pod in alive),
            "blocked_replicas": None,
            "observed": None,
            "queue": None,
            "demand": None,
            "loading": None,
            "gateway": None,
        }
    )


def spec_problem(error: ValidationError) -> str:
    """Returns the first invalid field, the reason, and the number of further errors: `spec.engine.dtype: Input should
    be ...`."""
    first, *more = error.errors(include_url=False, include_context=False, include_input=False)
    field = ".".join(str(part) for part in first["loc"])
    return f"{field}: {first['msg']}" + (f" (and {len(more)} more)" if more else "")


def events_of(
    before: InferenceServiceStatus, after: InferenceServiceStatus, decisions: Sequence[Decision]
) -> list[Event]:
    """Returns an event for a transition of Ready, one for a rollout that gets stuck, one for the begin and one for the
    end of a long load, one for the end of fetching the model and one for each new problem with it, and one for each
    decision. A ready pod that the Service does not route to yet lasts seconds, and causes no event."""
    events = []
    was, now = (_condition_of(status, "Progressing") for status in (before, after))
    if now is not None and now.reason == ROLLOUT_STUCK and (was is None or was.reason != now.reason):
        events.append(Event("Warning", now.reason, now.message))
    was, now = (_condition_of(status, "Ready") for status in (before, after))
    changed = now is not None and (was is None or (was.status, was.reason) != (now.status, now.reason))
    if now is not None and changed and now.reason != "NotRouted":
        events.append(Event("Normal" if now.reason in _ON_THE_WAY else "Warning", now.reason, now.message))
    events += [*_loading_events(before, after), *_prefetch_events(before, after)]
    for decision in decisions:
        reason = "Scaled" if decision.kind == "Scaling" else "Tuned" if decision.applied else "TuningAdvice"
        events.append(Event("Normal", reason, f"{decision.change}: {decision.reason}"))
    return events


def _prefetch_events(before: InferenceServiceStatus, after: InferenceServiceStatus) -> list[Event]:
    was, now = before.prefetch, after.prefetch
    if now is None or now.reason in ("Prefetching", None if was is None else was.reason):
        return []
    return [Event("Normal" if now.reason == "Prefetched" else "Warning", now.reason, now.message)]


def _loading_events(before: InferenceServiceStatus, after: InferenceServiceStatus) -> list[Event]:
    """Returns the events of loads that are new, and of those that are over: their pods may be Ready, or gone."""
    was, now = ({one.pod: one for one in status.loading or ()} for status in (before, after))
    begun = [Event("Normal", "LoadingModel", one.summary) for pod, one in now.items() if pod not in was]
    over = [pod for pod in was if pod not in now]
    if not over or (after.ready_replicas or 0) <= (before.ready_replicas or 0):
        return begun
    text = sentence(Reason("ModelRead", {"pods": ", ".join(over), "total": was[over[0]].total_bytes}))
    return [*begun, Event("Normal", "ModelLoaded", text)]


def _conditions(findings: tuple[Finding, ...], service: ServiceRecord, now: datetime) -> list[Condition]:
    return [_condition(finding, service, now) for finding in summarized(findings)]


def _condition(finding: Finding, service: ServiceRecord, now: datetime) -> Condition:
    """Returns the condition, the same object while it is equal."""
    before = next((one for one in service.status.conditions if one.type == finding.type), None)
    message, generation = _cut(finding.message, MAX_MESSAGE), service.metadata.generation
    if before is not None and before.status == finding.status:
        if (before.reason, before.message, before.observed_generation) == (finding.reason, message, generation):
            return before
        now = before.last_transition_time
    return Condition(
        type=finding.type,
        status=finding.status,
        reason=finding.reason,
        message=message,
        observed_generation=generation,
        last_transition_time=now,
    )


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _engine(snapshot: Snapshot, plan: Plan) -> EngineStatus | None:
    """Returns the engine release of the template for new pods."""
    rendered = next((child for child in plan.children if child["kind"] == "Deployment"), snapshot.deployment)
    if rendered is None:
        return None
    return EngineStatus(image=engine_image(rendered), upgrade=plan.upgrade)


def _cost(snapshot: Snapshot, plan: Plan, pods: int) -> CostStatus | None:
    """Returns the cost of the service; None without `spec.cost`. Starting and pending pods cost the same as serving
    pods."""
    policy = snapshot.policy
    if policy.price is None:
        return None
    per_hour, tokens = policy.price * pods, plan.memory.demand.tokens_per_s
    numbers: dict[str, Number] = {"per_hour": per_hour, "replicas": pods, "currency": policy.currency}
    if snapshot.asleep:
        numbers["asleep"] = snapshot.asleep
    if tokens > 0:
        numbers["per_million"] = per_hour / 3600 / tokens * 1e6
    return CostStatus(
        per_hour=format_price(per_hour),
        per_million_tokens=format_price(float(numbers["per_million"])) if tokens > 0 else None,
        summary=sentence(Reason("Cost", numbers)),
    )


def _demand(snapshot: Snapshot, plan: Plan) -> DemandStatus | None:
    """Returns the demand with three digits; None without a cost model for the service."""
    if plan.sizing is None:
        return None
    refused = plan.memory.demand.offered.refused
    rate, each, need, refused = (float(f"{number:.3g}") for number in (*plan.sizing, refused))
    return DemandStatus(
        requests_per_second=rate,
        replica_requests_per_second=each,
        needed_replicas=need,
        refused_requests_per_second=refused if snapshot.gateway is not None and snapshot.gateway.counts else None,
    )


def _start_up(snapshot: Snapshot, plan: Plan) -> StartUpStatus | None:
    """Returns the lead time of a replica in milliseconds; None before any start was seen."""
    lead, startups = plan.lead_time, plan.memory.startups
    if lead.basis == "Default":
        return None
    phases = _rounded(lead.phases._asdict())
    numbers: dict[str, Number] = {**lead.phases._asdict(), "total": lead.phases.total, "starts": lead.starts}
    return StartUpStatus(
        seconds=round(lead.phases.total, 3),
        phases=PhasesStatus(**phases),
        basis=lead.basis,
        starts=lead.starts,
        summary=sentence(Reason("StartUp", {**numbers, "basis": lead.basis})),
        engine=startups.engine,
        recent=[StartStatus(node=start.node, **_rounded(start.phases)) for start in startups.starts],
    )


def _loading(snapshot: Snapshot) -> list[LoadingStatus] | None:
    """Returns the progress of engines that load for long; None without any."""
    known = [(pod.name, snapshot.loading[pod.uid]) for pod in snapshot.pods if pod.uid in snapshot.loading]
    slowest = sorted(known, key=lambda one: -(math.inf if one[1].left is None else one[1].left))
    return [_progress(name, loading) for name, loading in slowest[:MAX_LOADING]] or None


def _progress(name: str, loading: Loading) -> LoadingStatus:
    numbers: dict[str, Number] = {"pod": name, "read": loading.read, "total": loading.total, "rate": loading.rate}
    if loading.left is not None:
        numbers["left"] = loading.left
    return LoadingStatus(
        pod=name,
        bytes=int(loading.read),
        total_bytes=int(loading.total),
        bytes_per_second=int(loading.rate),
        seconds_left=None if loading.left is None else math.ceil(loading.left),
        summary=sentence(Reason("ReadingModel", numbers)),
    )


def _rounded(phases: Mapping[str, float | None]) -> dict[str, Any]:
    return {name: None if seconds is None else round(seconds, 3) for name, seconds in phases.items()}


def _gateway(snapshot: Snapshot) -> GatewayStatus | None:
    """Returns the reports of the gateway; None for a service that is not behind it."""
    view = snapshot.gateway
    if view is None:
        return None
    return GatewayStatus(in_flight=view.in_flight)


def _queue(snapshot: Snapshot) -> QueueStatus | None:
    """Returns the waiting requests; None while nothing reports them."""
    fresh, view = snapshot.fresh.values(), snapshot.gateway
    if not fresh and (view is None or not view.heard):
        return None
    at_gateway, in_engines = 0 if view is None else view.held, sum(one.waiting for one in fresh)
    return QueueStatus(waiting=at_gateway + in_engines, at_gateway=at_gateway, in_engines=in_engines)


def _observed(snapshot: Snapshot, plan: Plan) -> ObservedStatus | None:
    """Returns the combined reports of the engines; None without a fresh sample."""
    fresh, measured = snapshot.fresh.values(), plan.measured
    if not fresh:
        return None
    kv = mean_kv_usage(fresh)
    return ObservedStatus(
        running=sum(one.running for one in fresh),
        asleep=snapshot.asleep or None,
        kv_utilization=None if kv is None else round(kv, 3),
        ttft_p95=None if measured.ttft_p95 is None else format_seconds(measured.ttft_p95),
        tpot_p95=None if measured.tpot_p95 is None else format_seconds(measured.tpot_p95),
        preemptions_per_minute=round(measured.preemptions_per_min, 1),
        at=snapshot.at,
    )


def _model(plan: Plan) -> ModelStatus | None:
    """Returns the version of the model by rollout; None before a pod has reported one."""
    if not plan.memory.digests:
        return None
    rollouts = [RolloutDigest(rollout=rollout, digest=digest) for rollout, digest in plan.memory.digests]
    return ModelStatus(digest=rollouts[-1].digest, rollouts=rollouts)


def _limits(snapshot: Snapshot, plan: Plan) -> LimitsStatus | None:
    """Returns the limits in force; None for engines whose limits the operator does not know."""
    if not snapshot.policy.engine_type.limits:
        return None
    limits, before, wanted = plan.limits.limits, plan.memory.before_override, snapshot.policy.override
    override, canary = None, plan.canary
    if before is not None and wanted is not None:
        override = OverrideStatus(until=wanted.until, before=LimitsPair(**asdict(before)))
    untuned: Literal["Capacity", "Tuning"] = "Capacity" if limits == snapshot.policy.capacity else "Tuning"
    return LimitsStatus(
        **asdict(limits),
        revision=plan.limits.revision,
        pods_in_force=plan.in_force,
        source=untuned if override is None else "Override",
        override=override,
        modelled=None if plan.modelled is None else LimitsPair(**asdict(plan.modelled)),
        canary=None if canary is None else CanaryStatus(pod=canary.name, **asdict(canary.in_force.limits)),
    )


def _tuning(snapshot: Snapshot, plan: Plan) -> TuningStatus | None:
    """Returns the corrections of the cost model, the interval of the search and its fences; None without any."""
    state = plan.memory.tuning
    known = TuningStatus(
        tpot_target=_correction(snapshot, state.tighten, state.tighten_until),
        kv_cache=_correction(snapshot, state.memory, state.memory_until),
        bracket=_bracket(snapshot, state.bracket),
        fences=[_fence(snapshot, one) for one in state.fences if one.until > snapshot.now] or None,
    )
    return None if known == TuningStatus() else known


def _correction(snapshot: Snapshot, share: float, until: float) -> CorrectionStatus | None:
    left = min(until - snapshot.now, snapshot.tuning.corrected)
    if share >= 1.0 or left <= 0:
        return None
    return CorrectionStatus(share=round(share, 3), until=_end(snapshot, left))


def _bracket(snapshot: Snapshot, known: Bracket | None) -> BracketStatus | None:
    if known is None or known.until <= snapshot.now:
        return None
    good, bad, modelled = (LimitsPair(**asdict(one)) for one in (known.good, known.bad, known.wanted))
    return BracketStatus(good=good, bad=bad, modelled=modelled, until=_end(snapshot, known.until - snapshot.now))


def _fence(snapshot: Snapshot, known: Fence) -> FenceStatus:
    return FenceStatus(
        limit="maxNumSeqs" if known.knob == "max_num_seqs" else "maxNumBatchedTokens",
        direction="Up" if known.up else "Down",
        value=known.value,
        until=_end(snapshot, known.until - snapshot.now),
    )


def _end(snapshot: Snapshot, left: float) -> datetime:
    """Returns an end in whole minutes: the same in each round. Args: left: seconds until it."""
    return (snapshot.at + timedelta(seconds=left, minutes=1)).replace(second=0, microsecond=0)


def _unless_same(observed: ObservedStatus | None, before: ObservedStatus | None) -> ObservedStatus | None:
    """Returns the old measurement if the new one is equal: a changed timestamp alone does not cause a write."""
    if observed is None or before is None or observed.model_copy(update={"at": before.at}) != before:
        return observed
    return before


def _condition_of(status: InferenceServiceStatus, kind: str) -> Condition | None:
    return next((one for one in status.conditions if one.type == kind), None)
