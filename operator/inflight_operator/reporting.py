"""The status of a service from what a round of the loop found; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from pydantic import ValidationError

from inflight_operator.api.quantities import format_seconds
from inflight_operator.api.resolve import service_url
from inflight_operator.api.types import (
    MAX_DECISIONS,
    Condition,
    Decision,
    InferenceService,
    InferenceServiceStatus,
    LimitsStatus,
    ObservedStatus,
    ServiceRecord,
)
from inflight_operator.decide.conditions import Finding
from inflight_operator.decide.scaling import ScalingDecision
from inflight_operator.decide.tuning import TuningDecision
from inflight_operator.observe.metrics import Sample
from inflight_operator.observe.pods import PodView
from inflight_operator.observe.window import Window
from inflight_operator.render import LimitsInForce, selector_string

MAX_MESSAGE = 2048
"""Longest message of a condition, in characters: what the API server or a container said may be pages long."""

_ON_THE_WAY = ("Starting", "Scheduling", "Loading", "Serving", "ScaledToZero")
"""Reasons of Ready that come and go by themselves."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a round found.

    Attributes:
        findings: all conditions.
        pods: of the service, those on their way out included.
        desired: replicas the operator finds right.
        limits: in force.
        pods_in_force: ready pods that run with them.
        observed: None while nothing was measured.
        decided: decisions of this round.
    """

    findings: tuple[Finding, ...]
    pods: Sequence[PodView]
    desired: int
    limits: LimitsInForce
    pods_in_force: int
    observed: ObservedStatus | None
    decided: tuple[Decision, ...]


def build_status(service: InferenceService, report: Report, now: datetime) -> InferenceServiceStatus:
    """The status to be written; `service.status` is the one it follows on."""
    before = service.status
    alive = [pod for pod in report.pods if not pod.deleting]
    return InferenceServiceStatus(
        observed_generation=service.metadata.generation,
        conditions=[_condition(finding, service, now) for finding in report.findings],
        url=service_url(service),
        replicas=len(alive),
        ready_replicas=sum(pod.ready for pod in alive),
        desired_replicas=report.desired,
        selector=selector_string(service.metadata.name),
        limits=LimitsStatus(
            max_num_seqs=report.limits.max_num_seqs,
            max_num_batched_tokens=report.limits.max_num_batched_tokens,
            revision=report.limits.revision,
            pods_in_force=report.pods_in_force,
        ),
        observed=_unless_same(report.observed, before.observed),
        decisions=[*before.decisions, *report.decided][-MAX_DECISIONS:],
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
            "observed": None,
        }
    )


def spec_problem(error: ValidationError) -> str:
    """The first field that is wrong, why, and how many more there are: `spec.engine.dtype: Input should be ...`."""
    first, *more = error.errors(include_url=False, include_context=False, include_input=False)
    field = ".".join(str(part) for part in first["loc"])
    return f"{field}: {first['msg']}" + (f" (and {len(more)} more)" if more else "")


def _condition(finding: Finding, service: ServiceRecord, now: datetime) -> Condition:
    before = next((one for one in service.status.conditions if one.type == finding.type), None)
    same = before is not None and before.status == finding.status
    return Condition(
        type=finding.type,
        status=finding.status,
        reason=finding.reason,
        message=finding.message if len(finding.message) <= MAX_MESSAGE else f"{finding.message[: MAX_MESSAGE - 1]}…",
        observed_generation=service.metadata.generation,
        last_transition_time=before.last_transition_time if before is not None and same else now,
    )


def _unless_same(observed: ObservedStatus | None, before: ObservedStatus | None) -> ObservedStatus | None:
    """The old measurement where the new one says the same: a quiet service's status is not written for its time."""
    if observed is None or before is None or observed.model_copy(update={"at": before.at}) != before:
        return observed
    return before


def observed_status(window: Window, fresh: Mapping[str, Sample], now: float, at: datetime) -> ObservedStatus | None:
    """What the engines report together; None without a fresh sample.

    Args:
        window: of the service.
        fresh: the newest samples of ready pods, by uid.
        now: steady clock of the samples.
        at: the same moment by the calendar.
    """
    if not fresh:
        return None
    span = window.since(now - window.span)
    ttft = span.histogram(lambda sample: sample.ttft).percentile(0.95)
    tpot = span.histogram(lambda sample: sample.tpot).percentile(0.95)
    return ObservedStatus(
        queue_depth=sum(one.waiting for one in fresh.values()),
        running=sum(one.running for one in fresh.values()),
        kv_utilization=round(sum(one.kv_usage for one in fresh.values()) / len(fresh), 3),
        ttft_p95=None if ttft is None else format_seconds(ttft),
        tpot_p95=None if tpot is None else format_seconds(tpot),
        preemptions_per_minute=round(span.rate(lambda sample: sample.preemptions) * 60, 1),
        at=at,
    )


def made_decision(kind: Literal["Scaling", "Tuning"], text: str, *, applied: bool, now: datetime) -> Decision:
    """A decision whose sentence is `CHANGE: REASON`."""
    change, _, reason = text.partition(": ")
    return Decision(time=now, kind=kind, change=change, reason=reason, applied=applied)


def is_news(before: InferenceServiceStatus, after: InferenceServiceStatus) -> bool:
    """Whether more changed than measurements and wording: news is written at once, the rest now and then."""
    return _news(before) != _news(after)


def _news(status: InferenceServiceStatus) -> dict[str, Any]:
    content = status.to_dict()
    content.pop("observed", None)
    content["conditions"] = [(one.type, one.status, one.reason, one.observed_generation) for one in status.conditions]
    return content


def ready_transition(
    before: InferenceServiceStatus, after: InferenceServiceStatus
) -> tuple[Literal["Normal", "Warning"], str, str] | None:
    """Type, reason and message of the event for a change of Ready; None when it stayed what it was."""
    was, now = _ready(before), _ready(after)
    if now is None or (was is not None and (was.status, was.reason) == (now.status, now.reason)):
        return None
    return "Normal" if now.reason in _ON_THE_WAY else "Warning", now.reason, now.message


def _ready(status: InferenceServiceStatus) -> Condition | None:
    return next((one for one in status.conditions if one.type == "Ready"), None)


def advised_already(status: InferenceServiceStatus, decision: Decision) -> bool:
    """Whether the last advice was the same change: one record, not one for each window."""
    last = next((one for one in reversed(status.decisions) if one.kind == decision.kind), None)
    return last is not None and not last.applied and last.change == decision.change


def scaling_finding(service: InferenceService, decision: ScalingDecision) -> Finding:
    if service.spec.scaling.mode == "External":
        message = f"spec.replicas counts; the operator finds {decision.replicas} right: {decision.reason}"
        return Finding("ScalingActive", "False", "External", message)
    return Finding("ScalingActive", "True" if decision.able else "False", decision.code, decision.reason)


def tuning_finding(service: InferenceService, note: TuningDecision | None, ready: int, complaint: str) -> Finding:
    if service.spec.tuning.mode == "Off":
        return Finding("TuningActive", "False", "Off", "tuning.mode is Off: engines run at their capacities")
    if complaint:
        return Finding("TuningActive", "False", "LimitsNotTaken", complaint)
    if note is None and ready:
        return Finding("TuningActive", "False", "NoLimits", "no ready engine tells its limits")
    if note is None:
        return Finding("TuningActive", "Unknown", "NoReadyPods", "no engine is ready to be tuned")
    return Finding("TuningActive", "True", note.code, note.reason)
