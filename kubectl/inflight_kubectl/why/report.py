"""The explanation of one service at one moment, as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from inflight_kubectl.events import Event
from inflight_kubectl.pods import Pod
from inflight_kubectl.resources import Condition, Decision, Service
from inflight_kubectl.why.prospects import prospects
from inflight_kubectl.why.waits import waits

MAX_DECISIONS = 5

_MEANINGS = {
    "Ready": ("takes requests", "takes no requests", "may take requests"),
    "Scheduled": ("every pod has a node", "a pod has no node", "has no pods to schedule"),
    "ModelLoaded": ("the model is loaded", "the model is not loaded", "the model has not been loaded yet"),
    "Progressing": ("pods are changing", "pods are not changing", "it is not known whether pods change"),
    "MetricsAvailable": ("engines are measured", "engines are not measured", "there is no engine to measure"),
    "ScalingActive": ("the operator scales", "the operator does not scale", "scaling is not known"),
    "TuningActive": ("the operator tunes limits", "limits stay as they are", "tuning is not known"),
}
"""A condition in words, for True, False and Unknown."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A condition in words.

    Attributes:
        good: whether it is as it should be; None where there is nothing to judge.
    """

    type: str
    status: str
    reason: str
    meaning: str
    message: str
    since: datetime | None
    good: bool | None


@dataclass(frozen=True, slots=True)
class Report:
    """Attributes:
    conditions: in the operator's order.
    decisions: the last ones, newest first.
    waits_for: what stands between the service and its wanted state.
    would_act: what would make the operator change replicas or limits, and what holds it back.
    """

    namespace: str
    name: str
    state: str
    at: datetime
    conditions: tuple[Statement, ...]
    decisions: tuple[Decision, ...]
    waits_for: tuple[str, ...]
    would_act: tuple[str, ...]


def explain(service: Service, pods: Sequence[Pod], events: Sequence[Event], now: datetime) -> Report:
    """The explanation of `service`.

    Args:
        pods: all of its pods.
        events: about them, newest last.
    """
    return Report(
        namespace=service.namespace,
        name=service.name,
        state=service.state,
        at=now,
        conditions=tuple(_statement(one) for one in service.conditions),
        decisions=tuple(reversed(service.decisions[-MAX_DECISIONS:])),
        waits_for=waits(service, pods, events, now),
        would_act=prospects(service, now),
    )


def _statement(condition: Condition) -> Statement:
    holds, fails, unknown = _MEANINGS.get(condition.type, (condition.type, f"not {condition.type}", "not known"))
    meaning = {"True": holds, "False": fails}.get(condition.status, unknown)
    return Statement(
        type=condition.type,
        status=condition.status,
        reason=condition.reason,
        meaning=meaning,
        message=condition.message,
        since=condition.since,
        good=_good(condition),
    )


def _good(condition: Condition) -> bool | None:
    if condition.status == "Unknown":
        return None
    if condition.type == "Progressing":
        return condition.status == "True" or condition.reason == "Complete"
    if condition.type in ("ScalingActive", "TuningActive") and condition.reason in (
        "External",
        "Off",
        "Overridden",
        "ReplicasUnset",
    ):
        return None
    if condition.type == "Ready" and condition.status == "True":
        return condition.reason == "Serving"
    return condition.status == "True"
