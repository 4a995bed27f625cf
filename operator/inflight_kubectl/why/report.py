"""The explanation of one service at one moment, as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from inflight_kubectl.access.events import Event
from inflight_kubectl.access.pods import Pod
from inflight_kubectl.access.resources import Condition, Decision, Service
from inflight_kubectl.engines.engine_metrics import Tiers
from inflight_kubectl.engines.gateway_view import GatewayView
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
    "GatewayReady": ("the gateway routes its requests", "the gateway does not route its requests", "not known"),
    "InferencePool": ("other gateways can use it", "other gateways cannot use it", "not known"),
    "PrefillReady": ("other engines compute its prompts", "it computes its prompts itself", "not known"),
    "Idle": ("at zero replicas until a request comes", "replicas stay while requests come", "not known"),
    "Waking": (
        "requests wait at the gateway for the first replica",
        "no request waits for a first replica",
        "not known",
    ),
    "TuningActive": ("the operator tunes limits", "limits stay as they are", "tuning is not known"),
}
"""Texts of a condition for True, False and Unknown."""

_REPEATED = ("Reconciling", "Stalled")
"""Conditions that repeat Progressing for tools that wait for any resource."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A condition as text.

    Attributes:
        good: True if it has its normal value; None without a normal value.
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
    conditions: conditions in the operator's order.
    decisions: last decisions, newest first.
    waits_for: reasons why the service has not reached its desired state.
    would_act: conditions under which the operator would change replicas or limits, and limits on them.
    gateway: reports of the gateway; None for a service that is not behind the gateway, or without a query.
    tiers: tiers of the KV cache behind the devices; None for a service without them, or without a query.
    """

    namespace: str
    name: str
    state: str
    at: datetime
    conditions: tuple[Statement, ...]
    decisions: tuple[Decision, ...]
    waits_for: tuple[str, ...]
    would_act: tuple[str, ...]
    gateway: GatewayView | None = None
    tiers: Tiers | None = None


def explain(
    service: Service,
    pods: Sequence[Pod],
    events: Sequence[Event],
    now: datetime,
    gateway: GatewayView | None = None,
    tiers: Tiers | None = None,
) -> Report:
    """Returns the explanation of `service`.

    Args:
        pods: all pods of the service.
        events: events about them, newest last.
        gateway: the gateway's reports on it.
        tiers: the tiers of its engines.
    """
    return Report(
        namespace=service.namespace,
        name=service.name,
        state=service.state,
        at=now,
        conditions=tuple(_statement(one) for one in service.conditions if one.type not in _REPEATED),
        decisions=tuple(reversed(service.decisions[-MAX_DECISIONS:])),
        waits_for=waits(service, pods, events, now),
        would_act=prospects(service, now),
        gateway=gateway,
        tiers=tiers,
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
    if condition.status == "Unknown" or condition.type in ("Idle", "Waking"):
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
        return condition.reason in ("Serving", "Asleep", "Idle", "Waking")
    return condition.status == "True"
